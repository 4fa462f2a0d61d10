"""Somebody who opens a printed link without a browser."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from typing import Any


def visit(link: str) -> Callable[..., Any]:
    """Open the link and keep its cookie; return what asks for paths below it."""
    cookies = urllib.request.HTTPCookieProcessor()
    opener = urllib.request.build_opener(cookies)
    opener.open(link, timeout=120).close()
    start = link.partition("?")[0]

    def ask(path: str, method: str = "GET") -> Any:
        return opener.open(urllib.request.Request(start + path, method=method), timeout=120)

    return ask
