"""The fleet page as a web application: agents report to it, people watch and take over."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from safemargin.errors import InvalidInput, MissingExtra, SafemarginError
from safemargin.web.access import Access, same_site
from safemargin.web.connections import AgentConnection, Connection
from safemargin.web.entrance import HOSTS, WRONG_PAGE_TOKEN, add_entrance, new_app
from safemargin.web.fleet.messages import LONGEST_MESSAGE
from safemargin.web.fleet.news import News
from safemargin.web.fleet.state import Fleet
from safemargin.web.page_connection import PageConnection
from safemargin.web.plain_agents import PlainAgents

try:
    import websockets  # noqa: F401  uvicorn needs it to serve WebSockets
    from fastapi import Depends, FastAPI, HTTPException, Request, WebSocket
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
        refused = None
        if not access.person(websocket.headers, websocket.cookies):
            refused = 401, WRONG_PAGE_TOKEN
        elif not same_site(websocket.headers):
            refused = 403, "only this server's own page may watch the fleet\n"
        elif len(fleet.pages) >= MOST_PAGES:
            refused = 503, f"{MOST_PAGES} pages are open already; close one\n"
        await _meet(PageConnection(websocket, fleet), refused)

    def refusal(headers: Mapping[str, str]) -> tuple[int, str] | None:
        if not remote:
            return 403, NO_REMOTE_AGENTS
        return None if access.agent(headers) else (401, WRONG_AGENT_TOKEN)

    @app.websocket("/agents")
    async def agents(websocket: WebSocket) -> None:
        await _meet(AgentConnection(websocket, fleet), refusal(websocket.headers))

    def admit_agent(request: Request) -> None:
        if refused := refusal(request.headers):
            raise HTTPException(refused[0], refused[1].strip())

    @app.post("/agents/{name}", dependencies=[Depends(admit_agent)])
    async def decide(name: str, request: Request) -> dict[str, Any]:
        return await plain.decide(name, await _body(request))

    @app.delete("/agents/{name}", dependencies=[Depends(admit_agent)])
    async def leave(name: str) -> dict[str, str]:
        try:
            plain.leave(name)
        except InvalidInput as error:
            raise HTTPException(404, str(error)) from error
        return {"said": "goodbye"}

    return app


async def _meet(connection: Connection, refused: tuple[int, str] | None) -> None:
    """Serve a WebSocket until it ends, or refuse it with a status and a reason."""
    websocket = connection.websocket
    if refused is not None:
        await websocket.send_denial_response(PlainTextResponse(refused[1], refused[0]))
    else:
        await websocket.accept()
        await connection.run()


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
                agent.tell({"kind": "beat", "decisions": agent.track.count})
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
