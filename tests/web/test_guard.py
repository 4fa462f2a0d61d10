"""What every answer of a page's server forbids to other pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import safemargin as sm

pytest.importorskip("fastapi")
pytest.importorskip("websockets")
pytest.importorskip("plotly")

from fastapi.testclient import TestClient
from helpers.fleet_client import ADDRESS, BEARER
from starlette.testclient import WebSocketDenialResponse

from safemargin.web.access import Access
from safemargin.web.explorer import create_app
from safemargin.web.fleet import Fleet
from safemargin.web.fleet_app import create_fleet_app
from safemargin.web.guard import FREE, LONGEST_WAIT, Refusals, page_policy
from safemargin.web.replay_app import create_replay_app


@pytest.fixture(params=["explorer", "fleet", "replay"])
def server(
    request: pytest.FixtureRequest, drawn_study: Path, fleet: Fleet, log: sm.AuditLog
) -> Iterator[TestClient]:
    if request.param == "explorer":
        with (
            sm.Study.open(drawn_study) as study,
            TestClient(create_app(study), base_url=ADDRESS) as client,
        ):
            yield client
        return
    app = create_replay_app(log, Access("")) if request.param == "replay" else None
    with TestClient(app or create_fleet_app(fleet, Access("t" * 20)), base_url=ADDRESS) as client:
        yield client


def test_every_answer_forbids_frames_and_foreign_content(server: TestClient) -> None:
    for path in ("/", "/pages/style.css", "/nothing", "/api/study", "/api/fleet", "/api/entries"):
        headers = server.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; "), path
        assert "frame-ancestors 'none'" in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    assert server.get("/openapi.json").status_code == 404
    refused = server.get("/", headers={"Host": "evil.example"})
    assert "frame-ancestors 'none'" in refused.headers["content-security-policy"]


def test_a_page_may_run_its_own_scripts_only(server: TestClient) -> None:
    page = server.get("/")
    policy = page.headers["content-security-policy"]
    assert policy == page_policy(page.text, inline_styles="/plotly.js" in page.text)
    scripts = next(each for each in policy.split("; ") if each.startswith("script-src"))
    assert re.fullmatch(r"script-src 'self' 'sha256-[\w+/]{43}='", scripts)
    assert ("'unsafe-inline'" in policy) == ("/plotly.js" in page.text)  # styles of Plotly only


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),  # a program
        ({"Origin": "http://127.0.0.1"}, True),
        ({"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "https://proxy.example", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "http://127.0.0.1:8000"}, False),  # another port of this machine
        ({"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
    ],
)
def test_other_pages_cannot_change_anything(
    server: TestClient, headers: dict[str, str], allowed: bool
) -> None:
    for method, path in [
        ("POST", "/api/episodes/x/steps/0/whatif"),
        ("POST", "/agents/arm"),
        ("DELETE", "/agents/arm"),
    ]:
        answer = server.request(method, path, headers={**BEARER, **headers})
        assert (answer.status_code == 403) != allowed, (method, path)
        if not allowed:
            assert answer.text == "only this server's own page may ask for this\n"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_servers_on_two_ports_keep_their_own_cookies(fleet: Fleet) -> None:
    access = Access("t" * 20, "people's own token")
    app = create_fleet_app(fleet, access)
    with TestClient(app, base_url="http://127.0.0.1:8718") as client:
        assert client.get("/", params={"token": "people's own token"}).status_code == 200
        assert set(client.cookies) == {"safemargin_page_8718"}
        assert client.get("/api/fleet").status_code == 200
        assert client.get("/api/fleet", headers={"Host": "127.0.0.1:8717"}).status_code == 401


def test_refused_tokens_are_logged_and_slowed_down(caplog: pytest.LogCaptureFixture) -> None:
    now, waited = 0.0, []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    refusals = Refusals(clock=lambda: now, sleep=sleep)
    for _ in range(FREE + 4):
        asyncio.run(refusals.wait("10.0.0.7", "/\x1b[31m"))
    assert waited == [0.0] * FREE + [0.5, 1.0, 1.5, 2.0]
    said = r"refused 10.0.0.7, which asked for /\x1b[31m with a wrong or missing token"
    assert [each.getMessage() for each in caplog.records] == [f"safemargin: {said}"]
    now = 100.0
    asyncio.run(refusals.wait("10.0.0.7", "/"))
    assert waited[-1] == 0.0
    assert caplog.messages[-1].endswith(f"token ({FREE + 4} since the last such line)")
    for _ in range(1000):
        asyncio.run(refusals.wait("10.0.0.7", "/"))
    assert waited[-1] == LONGEST_WAIT


def test_only_refused_tokens_wait(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[str] = []

    async def wait(self: Refusals, client: str, path: str) -> None:
        waited.append(path)

    monkeypatch.setattr(Refusals, "wait", wait)
    app = create_fleet_app(fleet, Access("t" * 20, "people's own token"))
    with TestClient(app, base_url=ADDRESS) as client:
        client.get("/", params={"token": "people's own token"})
        assert client.get("/api/fleet").status_code == 200
        assert waited == []
        client.cookies.clear()
        client.get("/", params={"token": "a guess"})
        client.get("/api/fleet")
        client.post("/agents/arm", json={})
        for way in ("/live", "/agents"):
            with (
                pytest.raises(WebSocketDenialResponse),
                client.websocket_connect(f"ws://127.0.0.1{way}"),
            ):
                pass
    assert waited == ["/", "/api/fleet", "/agents/arm", "/live", "/agents"]
