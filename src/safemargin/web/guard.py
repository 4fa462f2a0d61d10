"""Guards every answer of a web application: what browsers may do with it, and who may ask."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from safemargin.core.text import printable
from safemargin.web.access import same_site

READING = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""
REFUSAL_EVERY = 0.5
"""Seconds between two refused tokens, after the first few."""
FREE = 10
"""Refused tokens that need not wait."""
LONGEST_WAIT = 30.0
LOG_EVERY = 10.0
"""Seconds between two lines about refused tokens."""
LOGGER = logging.getLogger("safemargin.web")
OTHER_SITE = "only this server's own page may ask for this\n"

HEADERS = {
    # For everything that is not a page; a page sends its own policy.
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",  # for browsers that do not know frame-ancestors
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    # 'no-referrer' would also hide the origin of a page's own POST requests.
    "referrer-policy": "same-origin",
}


def page_policy(text: str, *, inline_styles: bool = False) -> str:
    """Return the Content-Security-Policy of a page: its own files, and the scripts within it.

    `inline_styles`: Plotly writes its styles into the page.
    """
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    return "; ".join(
        [
            "default-src 'none'",
            " ".join(["script-src 'self'", *(f"'sha256-{each}'" for each in hashes)]),
            "style-src 'self'" + " 'unsafe-inline'" * inline_styles,
            "img-src 'self' blob: data:",  # pictures that arrive over a WebSocket, and the icon
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


class Refusals:
    """Logs refused tokens and has each wait for its turn, so that nobody can try many.

    Only refusals wait: whoever has the token is answered at once, whatever others try.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._turn = self._logged = -math.inf
        self._unlogged = 0

    async def wait(self, client: str, path: str) -> None:
        """Log a refusal and wait for its turn: the first few at once, then one each half second."""
        now = self._clock()
        self._unlogged += 1
        if now - self._logged >= LOG_EVERY:
            more = f" ({self._unlogged} since the last such line)" if self._unlogged > 1 else ""
            LOGGER.warning(
                "safemargin: refused %s, which asked for %s with a wrong or missing token%s",
                *(client, printable(path)[:80], more),
            )
            self._logged, self._unlogged = now, 0
        self._turn = max(self._turn, now) + REFUSAL_EVERY
        await self._sleep(min(max(0.0, self._turn - now - FREE * REFUSAL_EVERY), LONGEST_WAIT))


class Guard:
    """Adds the headers to every answer; refuses requests to change anything from other sites."""

    def __init__(self, app: ASGIApp, refusals: Refusals) -> None:
        self.app = app
        self.refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                given = list(message.get("headers", ()))
                known = {name.lower() for name, _ in given}
                added = [(name.encode(), text.encode()) for name, text in HEADERS.items()]
                given += [each for each in added if each[0] not in known]
                message = {**message, "headers": given}
                if message["status"] == 401:
                    client = scope["client"][0] if scope.get("client") else "somebody"
                    await self.refusals.wait(client, scope["path"])
            await send(message)

        changes = scope["type"] == "http" and scope["method"] not in READING
        if changes and not same_site(Headers(scope=scope)):
            await PlainTextResponse(OTHER_SITE, 403)(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)
