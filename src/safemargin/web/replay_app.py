"""The replay page: the log of a watched fleet, entry by entry."""

from __future__ import annotations

from typing import Any

from safemargin.errors import MissingExtra
from safemargin.monitor.audit import AuditLog
from safemargin.web.access import Access
from safemargin.web.entrance import HOSTS, add_entrance, new_app, picture_answer

try:
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import Response
except ImportError as error:
    raise MissingExtra("the replay page", extra="web") from error

MOST_ENTRIES = 2000
"""The most entries in one answer; the page asks again for the rest."""


def create_replay_app(log: AuditLog, access: Access, *, hosts: tuple[str, ...] = HOSTS) -> FastAPI:
    """Return the replay of one log as an application; it only reads the log."""
    app = new_app("replay", hosts)
    admit = add_entrance(app, access, "replay.html")

    @app.get("/api/entries")
    def entries(request: Request, after: int = 0) -> dict[str, Any]:
        admit(request)
        found = [entry.to_dict() for entry in log.entries(after=after, most=MOST_ENTRIES)]
        return {"log": log.path.name, "total": len(log), "entries": found}

    @app.get("/api/entries/{number}/picture")
    def picture(request: Request, number: int) -> Response:
        admit(request)
        kept = log.picture(number)
        if kept is None:
            raise HTTPException(404, f"entry {number} has no picture")
        return picture_answer(kept)

    return app
