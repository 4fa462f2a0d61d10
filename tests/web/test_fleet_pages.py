"""What pages get: slow ones, many pictures, the replay."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

import safemargin as sm

pytest.importorskip("fastapi")
pytest.importorskip("websockets")

from fastapi.testclient import TestClient
from helpers.fleet import JPEG, pictured
from helpers.fleet_client import (
    ADDRESS,
    opened_page,
)

from safemargin.web.access import Access
from safemargin.web.fleet import Fleet
from safemargin.web.fleet.news import News


def test_a_slow_page_is_told_later_but_all(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from safemargin.web import page_connection
    from safemargin.web.page_connection import BUSY, PageConnection

    page = PageConnection(None, fleet)  # type: ignore[arg-type]

    def read() -> list[Any]:
        """What waits for the page, decisions as lists of their first numbers."""
        found: list[Any] = []
        while page.outgoing.qsize():
            message = page.outgoing.get_nowait()
            told = json.loads(message) if isinstance(message, str) else message
            found.append([row[0] for row in told["rows"]] if "rows" in told else told["kind"])
        return found

    for number in range(500):
        page.update(News(rows=[(number, 0, 0, 0, 0.0, 0)]))
    assert page.outgoing.qsize() == BUSY  # bounded
    assert read() == [[0], [1], [2], [3]]
    page.update(News(rows=[(500, 0, 0, 0, 0.0, 0)]))
    assert read() == [list(range(4, 501))]  # nothing is lost
    assert not page.skipped
    monkeypatch.setattr(page_connection, "MOST_ROWS", 3)
    page.update(News(rows=[(0, 0, 0, 0, 0.0, 0)] * 4))
    assert read() == ["fleet"]  # for ever slower ones, the whole state instead
    assert page.skipped == 4


def test_a_page_of_300_agents_with_pictures(client: TestClient, fleet: Fleet) -> None:
    assert client.portal is not None
    client.portal.call(pictured, fleet, 300)
    with opened_page(client, "Ann") as page:
        for step in (0, 1):
            missing = set(range(300))
            while missing:
                message = page.receive()
                assert message["type"] != "websocket.close", message
                if message.get("bytes"):
                    missing.discard(int.from_bytes(message["bytes"][:2], "big"))
            if not step:  # … and once more, all in one round
                client.portal.call(lambda: [fleet.see(each, 1, JPEG) for each in fleet.agents])


def test_a_slow_page_sees_every_agent(fleet: Fleet) -> None:
    from safemargin.web.page_connection import MOST_PICTURES, PageConnection

    pictured(fleet, 300)
    page = PageConnection(None, fleet)  # type: ignore[arg-type]
    found: list[int] = []
    for _ in range(5):
        for _ in range(3):  # three rounds of new pictures before it has read those of one
            page.update(News(pictured=set(range(300))))
            assert page.outgoing.qsize() == MOST_PICTURES
        while page.outgoing.qsize():
            message = page.outgoing.get_nowait()
            assert isinstance(message, bytes)
            found.append(int.from_bytes(message[:2], "big"))
    assert set(found) == set(range(300))
    assert page.ending is None


def test_the_replay_page_finds_entries_by_number(log: sm.AuditLog) -> None:
    from safemargin.web.replay_app import create_replay_app

    log.add("server-started", picture=JPEG)
    with TestClient(create_replay_app(log, Access("")), base_url=ADDRESS) as client:
        far = 99999999999999999999
        for after, found in [(0, 1), (1, 0), (far, 0), (-far, 1)]:
            answer = client.get("/api/entries", params={"after": after})
            assert len(answer.json()["entries"]) == found
        assert client.get("/api/entries/1/picture").content == JPEG
        for number in (2, far, -far):
            assert client.get(f"/api/entries/{number}/picture").status_code == 404


def test_the_replay_in_a_file_holds_the_log_and_loads_nothing(
    log: sm.AuditLog, tmp_path: Path
) -> None:
    from safemargin.web.replay_file import write_replay

    log.add("server-started")
    log.add("call", agent="</script><script>alert(1)</script>", picture=JPEG)
    text = write_replay(log, tmp_path / "new" / "replay.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "<script>alert" not in text
    found = re.search(r'<script id="recorded" type="application/json">(.*?)</script>', text)
    assert found
    recorded = json.loads(found[1])
    assert [entry["kind"] for entry in recorded["entries"]] == ["server-started", "call"]
    assert recorded["pictures"] == {"2": f"data:image/jpeg;base64,{b64encode(JPEG).decode()}"}


def test_a_replay_that_cannot_be_written_is_refused(log: sm.AuditLog, tmp_path: Path) -> None:
    from safemargin.web.replay_file import write_replay

    with pytest.raises(sm.SafemarginError, match=r"is a folder; name the replay's file, e\.g\."):
        write_replay(log, tmp_path)
    with pytest.raises(sm.SafemarginError, match=r"replay\.html cannot be written"):
        write_replay(log, Path("/dev/null/replay.html"))


def test_the_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/").text
    for name in (
        "style.css",
        "fleet.css",
        "elements.js",
        "fleet.js",
        "fleet-tiles.js",
        "fleet-agent.js",
    ):
        assert f"/pages/{name}" in page
        assert "http:" not in client.get(f"/pages/{name}").text
        assert "https://" not in client.get(f"/pages/{name}").text
    assert client.get("/pages/nothing.js").status_code == 404
