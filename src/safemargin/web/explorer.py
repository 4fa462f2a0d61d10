"""The explorer as a web application over one study."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from typing import Any

from safemargin.errors import InvalidInput, MissingExtra
from safemargin.replay.films import Films
from safemargin.replay.pictures import Camera
from safemargin.replay.recordings import Recording, Recordings
from safemargin.replay.whatif import ROLES, WhatIfs
from safemargin.study.study import Study
from safemargin.web.access import Access
from safemargin.web.describe import describe_episode, describe_study, starting_point
from safemargin.web.entrance import HOSTS, add_entrance, new_app, picture_answer
from safemargin.web.margin_tables import margin_tables
from safemargin.web.pages import KINDS, plotly_script

try:
    from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, Response
except ImportError as error:
    raise MissingExtra("the explorer", extra="web") from error

OPEN = Access("")
"""No token is needed."""
PATIENCE = 0.5
"""Seconds that each kind of background work has to finish."""


class _Explorer:
    """What the routes share: the study, its recordings, and work in the background."""

    films: Films
    what_ifs: WhatIfs

    def __init__(self, study: Study, recordings: Recordings) -> None:
        self.study = study
        self.recordings = recordings

    def recording(self, name: str, step: int = 0, *, end: int = 0) -> Recording:
        """Return the recording; 404 if it has no such step (`end`: this many more are valid)."""
        try:
            found = self.recordings.open(name)
        except InvalidInput as error:
            raise HTTPException(404, str(error)) from error
        last = found.episode.steps - 1 + end
        if not 0 <= step <= last:
            raise HTTPException(404, f"{name} has no step {step}: its steps are 0 to {last}")
        return found

    def start(self, episode: str, step: int) -> None:
        """Start the background threads, with the film of the episode shown first.

        Called after all routes are there: the threads make environments, which briefly changes
        Python's warning filters, and all threads share these. FastAPI sets its own filters while it
        adds routes.
        """
        self.films = Films(lambda: Camera(self.study.environment_spec))
        self.what_ifs = WhatIfs(self.recordings, lambda: Camera(self.study.environment_spec))
        if episode:
            self.films.begin(self.recordings.open(episode), step)

    def stop(self) -> None:
        self.films.stop()
        self.what_ifs.stop()

    def close(self) -> bool:
        """Stop, and return whether all background work has ended."""
        self.stop()
        ended = [work.close(seconds=PATIENCE) for work in (self.films, self.what_ifs)]
        return all(ended)


def create_app(
    study: Study,
    *,
    recordings: Recordings | None = None,
    episode: str | None = None,
    step: int | None = None,
    hosts: tuple[str, ...] = HOSTS,
    access: Access = OPEN,
) -> FastAPI:
    """Return the explorer as an application that starts at `episode` and `step`.

    With a page token in `access`, it answers only to browsers that have opened `/?token=…`.
    """
    plotly_script()  # MissingExtra now, not on the first page
    study.require_trust()
    explorer = _Explorer(study, recordings or Recordings(study))
    start = starting_point(explorer.recordings, episode, step)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.ended = explorer.close()

    app = new_app("explorer", hosts, lifespan)
    app.state.stop = explorer.stop
    app.state.ended = False
    _add_errors(app)
    admit = _add_pages(app, access)
    api = APIRouter(prefix="/api", dependencies=[Depends(admit)])
    _add_study(api, explorer, start)
    _add_what_ifs(api, explorer)
    app.include_router(api)
    explorer.start(*start)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        wrong = error.errors()[0]
        text = f"{wrong['loc'][-1]} must be a whole number, got {wrong['input']!r}"
        return JSONResponse({"detail": text}, 422)


def _add_pages(app: FastAPI, access: Access) -> Callable[[Request], None]:
    """Serve the page; return the check of everything about the study."""

    @app.get("/plotly.js")
    def plotly() -> Response:
        headers = {"Cache-Control": "max-age=86400"}
        return Response(plotly_script(), media_type=KINDS[".js"], headers=headers)

    return add_entrance(app, access, "index.html", inline_styles=True)


def _add_study(api: APIRouter, explorer: _Explorer, start: tuple[str, int]) -> None:
    version = secrets.token_hex(4)  # browsers cache pictures; a later server has others

    @api.get("/study")
    def about() -> dict[str, Any]:
        return {"version": version, **describe_study(explorer.study, explorer.recordings, start)}

    fitting = threading.Lock()

    @lru_cache(maxsize=32)
    def tables(proxy: str) -> dict[str, Any]:
        return margin_tables(explorer.study, proxy).to_dict()

    @api.get("/margins/{proxy}")
    def margins(proxy: str) -> dict[str, Any]:
        if proxy not in explorer.study.proxies:
            raise HTTPException(404, f"the study has no proxy {proxy!r}")
        with fitting:  # once, not once per request
            return tables(proxy)

    @api.get("/episodes/{name}")
    def episode_of(name: str) -> dict[str, Any]:
        return describe_episode(explorer.recordings, explorer.recording(name))

    @api.get("/episodes/{name}/film")
    def film(name: str) -> dict[str, Any]:
        recording, films = explorer.recording(name), explorer.films
        taken, fault = films.taken(recording)
        return {
            "ready": films.ready,
            "taken": taken,
            "of": recording.episode.steps + 1,
            "fault": fault,
            "action_names": films.action_names,
        }

    @api.get("/episodes/{name}/frames/{step}")
    def frame(name: str, step: int) -> Response:
        return picture_answer(explorer.films.picture(explorer.recording(name, step, end=1), step))


def _add_what_ifs(api: APIRouter, explorer: _Explorer) -> None:
    """Add the what-if trials: POST starts them (again), GET reports progress."""
    n_values = explorer.study.settings.n_values

    @api.post("/episodes/{name}/steps/{step}/whatif")
    def ask(name: str, step: int) -> dict[str, Any]:
        return explorer.what_ifs.ask(explorer.recording(name, step), step).to_dict(n_values)

    @api.get("/episodes/{name}/steps/{step}/whatif")
    def asked(name: str, step: int) -> dict[str, Any]:
        return explorer.what_ifs.known(name, step).to_dict(n_values)

    @api.post("/episodes/{name}/steps/{step}/whatif/{n}")
    def show(name: str, step: int, n: int) -> dict[str, Any]:
        return explorer.what_ifs.show(explorer.what_ifs.known(name, step), n).to_dict()

    @api.get("/episodes/{name}/steps/{step}/whatif/{n}")
    def shown(name: str, step: int, n: int) -> dict[str, Any]:
        return explorer.what_ifs.known_showing(name, step, n).to_dict()

    @api.get("/episodes/{name}/steps/{step}/whatif/{n}/{role}/{frame}")
    def trial_frame(name: str, step: int, n: int, role: str, frame: int) -> Response:
        take = explorer.what_ifs.known_showing(name, step, n).takes.get(role)
        if role not in ROLES or take is None or not 0 <= frame < len(take.pictures):
            raise HTTPException(404, f"there is no frame {frame} of the {role} trial (yet)")
        return picture_answer(take.pictures[frame])
