"""What all web applications share: trusted hosts, the check of a token, page files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from safemargin.errors import InvalidInput, MissingExtra, NoPictures, SafemarginError
from safemargin.monitor.pictures import picture_kind
from safemargin.web.access import LOOPBACK, Access, cookie_name
from safemargin.web.pages import KINDS, page

try:
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from safemargin.web.guard import Guard, Refusals, page_policy
except ImportError as error:
    raise MissingExtra("a page", extra="web") from error

HOSTS = LOOPBACK
"""Names that pages answer to; other sites must not reach them under another name."""
WRONG_PAGE_TOKEN = "wrong or missing token: open the whole address that the server printed\n"


def new_app(title: str, hosts: Sequence[str], lifespan: Any = None) -> FastAPI:
    """Return an application that answers to these host names only, and our errors with 400."""
    app = FastAPI(title=f"safemargin {title}", lifespan=lifespan, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.add_middleware(Guard, refusals=Refusals())

    @app.exception_handler(SafemarginError)
    def answer_error(request: Request, error: SafemarginError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404 if isinstance(error, NoPictures) else 400)

    return app


def hosts_of(host: str) -> tuple[str, ...]:
    """Return the names that a server answers to: only its own where nobody else can come."""
    return HOSTS if host in LOOPBACK else ("*",)


def add_entrance(
    app: FastAPI, access: Access, first_page: str, *, inline_styles: bool = False
) -> Callable[[Request], None]:
    """Serve a page and its files to holders of the token; return the check for other requests."""

    def admit(request: Request) -> None:
        if not access.person(request.headers, request.cookies):
            raise HTTPException(401, WRONG_PAGE_TOKEN.strip())

    @app.get("/")
    def index(request: Request, token: str | None = None) -> Response:
        if token is not None and access.page(token):
            answer = RedirectResponse("/", status_code=303)
            name, kept = cookie_name(request.headers), access.page_token or ""
            answer.set_cookie(name, kept, httponly=True, samesite="strict")
            return answer
        if token is not None or not access.person(request.headers, request.cookies):
            return PlainTextResponse(WRONG_PAGE_TOKEN, 401)
        text = page(first_page)
        headers = {"Content-Security-Policy": page_policy(text, inline_styles=inline_styles)}
        return Response(text, media_type=KINDS[".html"], headers=headers)

    add_page_files(app)
    return admit


def add_page_files(app: FastAPI) -> None:
    """Serve the scripts and styles of all pages; they hold nothing secret."""

    @app.get("/pages/{name}")
    def static(name: str) -> Response:
        try:
            return Response(page(name), media_type=KINDS["." + name.rpartition(".")[2]])
        except InvalidInput as error:
            raise HTTPException(404, str(error)) from error


def picture_answer(picture: bytes) -> Response:
    """Send a JPEG or PNG file; a browser keeps it, as it never changes."""
    headers = {"Cache-Control": "private, max-age=3600, immutable"}
    return Response(picture, media_type=picture_kind(picture), headers=headers)
