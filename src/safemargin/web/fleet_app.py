"""The fleet page as a web application: agents report to it, people watch and take over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from safemargin.errors import InvalidInput, MissingExtra, SafemarginError
from safemargin.web.access import Access, same_site
from safemargin.web.connections import AgentConnection
from safemargin.web.entrance import HOSTS, WRONG_PAGE_TOKEN, add_entrance, new_app
from safemargin.web.fleet.messages import LONGEST_MESSAGE
from safemargin.web.fleet.news import News
from safemargin.web.fleet.state import Fleet
from safemargin.web.page_connection import PageConnection
from safemargin.web.plain_agents import PlainAgents

try:
    import websockets  # noqa: F401  uvicorn needs it to serve WebSockets
    from fastapi import FastAPI, HTTPException, Request, WebSocket
    from fastapi.responses import PlainTextResponse
    from starlette.requests import ClientDisconnect
except ImportError as error:
    raise MissingExtra("the fleet page", extra="web") from error

TICK = 0.05
"""Seconds between two rounds of news to pages."""
BEAT = 1.0
"""Seconds between two signs of life to agents."""
PAGE_BEAT = 0.5
"""Seconds between two signs of life to pages."""
TIDY = 10.0
"""Seconds between two clean-ups of the log's write-ahead journal."""
MOST_PAGES = 64

WRONG_AGENT_TOKEN = (
    "wrong or missing token: an agent needs the header 'Authorization: Bearer …' with the token "
    "that the server printed\n"
)
NO_REMOTE_AGENTS = "this server accepts no remote agents; start it with --remote\n"

Start = Callable[[asyncio.AbstractEventLoop], None]


def create_fleet_app(
    fleet: Fleet,
    access: Access,
    *,
    hosts: tuple[str, ...] = HOSTS,
    remote: bool = True,
    start: Start = lambda loop: None,
    stop: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Return the fleet page as an application; with `remote`, agents may connect to it.

    `start` is called once the server runs, `stop` before it ends.
    """
    plain = PlainAgents(fleet)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pulse = asyncio.create_task(_pulse(fleet, plain))
        tidying = asyncio.create_task(_tidy(fleet))
        start(asyncio.get_running_loop())
        yield
        pulse.cancel()
        tidying.cancel()
        await asyncio.to_thread(stop)
        await asyncio.sleep(0)  # take in the agents' last messages
        fleet.close()

    app = new_app("fleet", hosts, lifespan)
    admit = add_entrance(app, access, "fleet.html")

    @app.get("/api/fleet")
    async def whole(request: Request) -> dict[str, Any]:
        admit(request)
        return fleet.snapshot()

    @app.websocket("/live")
    async def live(websocket: WebSocket) -> None:
        if not access.person(websocket.cookies):
            await websocket.send_denial_response(PlainTextResponse(WRONG_PAGE_TOKEN, 401))
        elif not same_site(websocket.headers):
            text = "only this server's own page may watch the fleet\n"
            await websocket.send_denial_response(PlainTextResponse(text, 403))
        elif len(fleet.pages) >= MOST_PAGES:
            text = f"{MOST_PAGES} pages are open already; close one\n"
            await websocket.send_denial_response(PlainTextResponse(text, 503))
        else:
            await websocket.accept()
            await PageConnection(websocket, fleet).run()

    @app.websocket("/agents")
    async def agents(websocket: WebSocket) -> None:
        if not remote:
            await websocket.send_denial_response(PlainTextResponse(NO_REMOTE_AGENTS, 403))
        elif not access.agent(websocket.headers):
            await websocket.send_denial_response(PlainTextResponse(WRONG_AGENT_TOKEN, 401))
        else:
            await websocket.accept()
            await AgentConnection(websocket, fleet).run()

    _add_plain_agents(app, access, plain, remote=remote)
    return app


def _add_plain_agents(app: FastAPI, access: Access, plain: PlainAgents, *, remote: bool) -> None:
    """Add the routes of agents that report over plain HTTP."""

    def admit_agent(request: Request) -> None:
        if not remote:
            raise HTTPException(403, NO_REMOTE_AGENTS.strip())
        if not access.agent(request.headers):
            raise HTTPException(401, WRONG_AGENT_TOKEN.strip())

    @app.post("/agents/{name}")
    async def decide(name: str, request: Request) -> dict[str, Any]:
        admit_agent(request)
        try:
            return await plain.decide(name, await _body(request))
        except SafemarginError as error:
            raise HTTPException(400, str(error)) from error

    @app.delete("/agents/{name}")
    async def leave(name: str, request: Request) -> dict[str, str]:
        admit_agent(request)
        try:
            plain.leave(name)
        except InvalidInput as error:
            raise HTTPException(404, str(error)) from error
        return {"said": "goodbye"}


async def _body(request: Request) -> bytes:
    """Return the request's body; refuse it as soon as it is too long."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > LONGEST_MESSAGE:
                text = f"a message may have {LONGEST_MESSAGE >> 20} MiB"
                raise HTTPException(400, text, {"Connection": "close"})
    except ClientDisconnect:
        raise HTTPException(400, "the message was cut off") from None
    return bytes(body)


async def _pulse(fleet: Fleet, plain: PlainAgents) -> None:
    """Send news to pages and signs of life to agents, and look for people who are gone."""
    beat = page_beat = 0.0
    while True:
        await asyncio.sleep(TICK)
        publish(fleet)
        if time.monotonic() - page_beat >= PAGE_BEAT:
            page_beat = time.monotonic()
            for each in tuple(fleet.pages):
                if isinstance(each, PageConnection):
                    each.beat()
        if time.monotonic() - beat >= BEAT:
            beat = time.monotonic()
            for agent in fleet.agents:
                if agent.link is not None:
                    agent.link.send({"kind": "beat", "decisions": agent.track.count})
            plain.sweep()
            fleet.journal.show_faults()
            with contextlib.suppress(SafemarginError):
                fleet.control.check_absence()


async def _tidy(fleet: Fleet) -> None:
    """Clean the log up outside the event loop: on a busy disk that takes long."""
    while True:
        with contextlib.suppress(SafemarginError):
            await asyncio.to_thread(fleet.journal.log.tidy)
        await asyncio.sleep(TIDY)


def publish(fleet: Fleet) -> None:
    """Send everything new to all pages."""
    news, fleet.journal.news = fleet.journal.news, News()
    for each in tuple(fleet.pages):
        if isinstance(each, PageConnection):
            each.update(news)
