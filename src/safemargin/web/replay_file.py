"""The replay of a watched fleet as one file that needs no server."""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path

from safemargin.core.files import written_whole
from safemargin.core.plain import plain_values
from safemargin.errors import InvalidInput
from safemargin.monitor.audit import AuditLog
from safemargin.monitor.pictures import picture_kind
from safemargin.web.pages import page


def write_replay(log: AuditLog, path: str | Path) -> Path:
    """Check a log, and write its replay as one HTML file with all pictures inside."""
    target = Path(path)
    if target.is_dir():
        raise InvalidInput(f"{target} is a folder; name the replay's file, e.g. replay.html")
    log.check()
    text = replay_page(log)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as file:
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{target} cannot be written: {error}") from error
    return target


def replay_page(log: AuditLog) -> str:
    """Return the replay page with its styles, its scripts and the whole log inside."""
    entries = list(log.entries())
    pictures = {}
    for entry in entries:
        kept = log.picture(entry.id) if entry.pictured else None
        if kept is not None:
            kind = picture_kind(kept)
            pictures[entry.id] = f"data:{kind};base64,{base64.b64encode(kept).decode()}"
    recorded = {
        "log": log.path.name,
        "total": len(entries),
        "entries": [entry.to_dict() for entry in entries],
        "pictures": pictures,
        "written": time.time(),
    }
    # No '<' in the data: it could end the script element.
    data = json.dumps(plain_values(recorded), allow_nan=False).replace("<", "\\u003c")
    whole = page("replay.html")
    whole = re.sub(
        r'<link rel="stylesheet" href="/pages/([\w.-]+)">',
        lambda found: f"<style>{page(found[1])}</style>",
        whole,
    )
    whole = re.sub(
        r'<script src="/pages/([\w.-]+)"></script>',
        lambda found: f"<script>{page(found[1])}</script>",
        whole,
    )
    inside = f'<script id="recorded" type="application/json">{data}</script>\n'
    return whole.replace("<script>begin();</script>", f"{inside}<script>begin();</script>")
