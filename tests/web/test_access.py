"""Who may open the page or report to the server."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import InvalidInput

pytest.importorskip("fastapi")
pytest.importorskip("websockets")

from fastapi import FastAPI
from fastapi.testclient import TestClient
from helpers.fleet_client import (
    ADDRESS,
    AGENTS,
    LIVE,
    TOKEN,
    until,
)
from starlette.testclient import WebSocketDenialResponse

from safemargin.web.access import Access, find_page_token, find_token
from safemargin.web.explorer import create_app
from safemargin.web.fleet import Fleet
from safemargin.web.fleet_app import create_fleet_app
from safemargin.web.server import address_of, listen


@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}]
)
def test_an_agent_with_a_wrong_token(client: TestClient, header: dict[str, str]) -> None:
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect(AGENTS, headers=header),
    ):
        pass
    assert denied.value.status_code == 401
    assert "wrong or missing token: an agent needs" in denied.value.text


def test_another_site_cannot_watch(client: TestClient) -> None:
    headers = {"Origin": "http://evil.example", "Host": "127.0.0.1"}
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect(LIVE, headers=headers),
    ):
        pass
    assert denied.value.status_code == 403
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400


def test_people_from_elsewhere_need_a_token_of_their_own(fleet: Fleet) -> None:
    app = create_fleet_app(fleet, Access(TOKEN, "people's own token"), hosts=("*",))
    with TestClient(app, base_url="http://far.example") as client:
        assert client.get("/").status_code == 401
        assert client.get("/api/fleet").status_code == 401
        live = "ws://far.example/live"
        with pytest.raises(WebSocketDenialResponse), client.websocket_connect(live):
            pass
        assert client.get("/", params={"token": TOKEN}).status_code == 401  # the agents' one
        page = client.get("/", params={"token": "people's own token"})
        assert page.status_code == 200
        assert "Fleet" in page.text
        assert "token" not in str(page.url)
        assert client.get("/api/fleet").status_code == 200
        with client.websocket_connect(live) as socket:
            socket.send_json({"do": "hello", "secret": "x" * 20})
            until(socket, "fleet")


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAFEMARGIN_TOKEN", raising=False)
    made = find_token(None, tmp_path / "watch.db")
    assert len(made) >= 32
    assert find_token(None, tmp_path / "watch.db") == made  # the same after a restart
    kept = tmp_path / "watch.db-token"
    assert kept.stat().st_mode & 0o077 == 0
    people = find_page_token(tmp_path / "watch.db")
    assert people == find_page_token(tmp_path / "watch.db") != made
    assert (tmp_path / "watch.db-page-token").stat().st_mode & 0o077 == 0
    with pytest.raises(InvalidInput, match=r"a token cannot be stored in .*: No such file"):
        find_page_token(tmp_path / "none" / "watch.db")
    monkeypatch.setenv("SAFEMARGIN_TOKEN", "from the environment")
    assert find_page_token(tmp_path / "watch.db") == people
    assert find_token(None, tmp_path / "watch.db") == "from the environment"
    kept.write_text("short\n")
    with pytest.raises(InvalidInput, match="a token of at least 16 plain characters, got 5"):
        find_token(kept, tmp_path / "watch.db")
    with pytest.raises(InvalidInput, match="the token cannot be read from"):
        find_token(tmp_path / "none", tmp_path / "watch.db")


WHAT_IF = "episodes/spread-1-0/steps/3/whatif"
STUDY_PATHS = [
    *("study", "margins/x", "episodes/spread-1-0", "episodes/spread-1-0/film"),
    *("episodes/spread-1-0/frames/0", WHAT_IF, f"{WHAT_IF}/1", f"{WHAT_IF}/1/best/0"),
]


def test_the_explorer_needs_its_token_for_everything_about_the_study(drawn_study: Path) -> None:
    with (
        sm.Study.open(drawn_study) as study,
        TestClient(create_app(study, access=Access("", "the token")), base_url=ADDRESS) as client,
    ):
        for path in STUDY_PATHS:
            for method in ("GET", "POST"):
                answer = client.request(method, f"/api/{path}")
                assert answer.status_code in (401, 405), (method, path)
            assert client.get(f"/api/{path}").status_code == 401
        assert client.get("/").status_code == 401
        assert client.get("/", params={"token": "another"}).status_code == 401
        assert client.get("/", params={"token": "the token"}).status_code == 200
        assert client.get("/api/study").status_code == 200


@pytest.mark.parametrize("command", [["watch", "--remote"], ["watch", "--replay"], ["explore"]])
def test_no_token_is_for_this_machine_only(
    command: list[str],
    log: sm.AuditLog,
    drawn_study: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[bool, str]] = []

    def look(page: FastAPI, *given: Any, query: str, **options: Any) -> None:
        with TestClient(page, base_url=ADDRESS) as client:
            found.append((client.get("/").status_code == 200, query))

    monkeypatch.setattr("safemargin.web.server.serve", look)
    monkeypatch.setattr("gc.freeze", lambda: None)  # the tests go on
    monkeypatch.chdir(log.path.parent)
    log.add("server-started")
    target = {"--replay": str(log.path), "explore": str(drawn_study)}
    arguments = [*command, *([target[command[-1]]] if command[-1] in target else [])]
    arguments += ["--port", "0", "--no-browser"]
    arguments += ["--log", "other.db"] if "--remote" in command else []
    assert main([*arguments, "--no-token"]) == 0
    assert found == [(True, "")]
    assert main(arguments) == 0
    opened, query = found[-1]
    assert not opened
    assert re.fullmatch(r"\?token=[\w-]{32}", query)
    assert main([*arguments, "--no-token", "--host", "0.0.0.0"]) == 2
    assert "--no-token is for pages that only this machine can reach" in capsys.readouterr().err


def test_the_browser_is_given_an_address_that_opens_once(fleet: Fleet) -> None:
    access = Access(TOKEN, "people's own token")
    visit = access.visit()
    assert "people" not in visit
    app = create_fleet_app(fleet, access)
    with TestClient(app, base_url=ADDRESS) as client:
        assert client.get("/" + visit).status_code == 200
        assert client.get("/api/fleet").status_code == 200  # and stays open
        client.cookies.clear()
        assert client.get("/" + visit).status_code == 401
        client.cookies.set("safemargin_page", access.visit().partition("=")[2])
        assert client.get("/api/fleet").status_code == 401
        assert client.get("/" + access.query.replace(" ", "+")).status_code == 200
    assert Access(TOKEN).visit() == ""


def test_a_new_log_is_readable_by_its_owner_only(log: sm.AuditLog) -> None:
    log.add("server-started")
    files = list(log.path.parent.glob("watch.db*"))
    assert len(files) == 4  # with the lock, and what SQLite puts beside it
    assert [each.name for each in files if each.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
@pytest.mark.parametrize("online", [True, False])
def test_the_printed_address_can_be_opened(host: str, online: bool) -> None:
    if ":" in host:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")

    def refuse(self: socket.socket, target: Any) -> None:
        raise OSError("no route")

    with listen(host, 0) as bound:
        with pytest.MonkeyPatch.context() as patch:
            if not online:
                patch.setattr(socket.socket, "connect", refuse)
            address = urlsplit(address_of(bound))
        assert address.hostname not in ("0.0.0.0", "::")
        if not online:
            assert address.hostname == ("::1" if ":" in host else "127.0.0.1")
        with socket.create_connection((address.hostname, address.port), timeout=120):
            pass
