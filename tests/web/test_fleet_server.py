"""The server of a fleet, in-process: agents and pages talk to each other."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

import safemargin as sm

pytest.importorskip("fastapi")
pytest.importorskip("websockets")

from fastapi.testclient import TestClient
from helpers.fleet import FORGED, JPEG, NAME, kinds
from helpers.fleet_client import (
    AGENTS,
    BEARER,
    LIVE,
    act,
    hello,
    opened_page,
    until,
)
from starlette.websockets import WebSocketDisconnect

from safemargin.web.connections import AGENT_RATE, MOST_FAULTS
from safemargin.web.fleet import Fleet


def test_from_an_agent_to_a_page_and_back(client: TestClient) -> None:
    with client.websocket_connect(AGENTS, headers=BEARER) as agent:
        agent.send_json(hello())
        assert until(agent, "welcome") == {"kind": "welcome", "taken": False}
        with opened_page(client, "Ann") as page:
            assert [each["name"] for each in until(page, "fleet")["agents"]] == ["arm"]
            page.send_json({"do": "look", "agent": 0})
            until(page, "timeline")
            agent.send_json(
                {"kind": "decision", "step": 0, "margin": 2, "proxy": 1.5, "scores": [1, 0]}
            )
            assert until(page, "decisions")["rows"] == [[0, 0, 0, 2, 1.5, 0]]
            assert until(page, "seen")["scores"] == [1.0, 0.0]
            page.send_json({"do": "take", "agent": 0})
            assert until(agent, "taken")["by"] == "Ann"
            agent.send_bytes(b"P\x00\x00\x00\x01" + JPEG)
            agent.send_json(
                {"kind": "decision", "step": 1, "margin": 0, "call": True, "waits": True}
            )
            while not until(page, "seen")["waiting"]:
                pass
            page.send_json(act(1))
            assert until(agent, "action")["action"] == 1
            page.send_json({"do": "give", "agent": 0})
            until(agent, "free")
            page.send_json({"do": "name", "name": "Anna"})
            while until(page, "you")["name"] != "Anna":
                pass
        with opened_page(client, "Ann") as again:  # closed and opened again: the true state
            state = until(again, "fleet")["agents"][0]
            assert state["control"] is None
            assert not state["calling"]  # nobody is called while a person steers
            assert (state["margin"], state["step"], state["human_actions"]) == (0, 1, 1)
        agent.send_json({"kind": "left"})
        assert until(agent, "closed")["text"] == "goodbye"
    state = client.get("/api/fleet").json()["agents"][0]
    assert (state["status"], state["calling"]) == ("left", False)


def test_two_pages_take_over_at_once(client: TestClient, log: sm.AuditLog) -> None:
    with client.websocket_connect(AGENTS, headers=BEARER) as agent:
        agent.send_json(hello())
        until(agent, "welcome")
        with opened_page(client, "Ann") as ann, opened_page(client, "Ben") as ben:
            until(ann, "you")
            until(ben, "you")
            for page in (ann, ben):
                page.send_json({"do": "take", "agent": 0})
            winner = until(agent, "taken")["by"]  # either, but only one
            told = {"Ann": until(ann, "note")["text"], "Ben": until(ben, "note")["text"]}
            loser, second = ("Ben", ben) if winner == "Ann" else ("Ann", ann)
            assert told[winner] == f"{loser} wants arm, too. You have it."
            assert f"{winner} took arm over before you" in told[loser]
            second.send_json(act(0))
            assert "not yours to steer" in until(second, "note")["text"]
    assert kinds(log).count("taken") == kinds(log).count("refused") == 1


def test_an_action_from_before_a_stall_is_refused(client: TestClient, log: sm.AuditLog) -> None:
    with (
        client.websocket_connect(AGENTS, headers=BEARER) as agent,
        opened_page(client, "Ann") as page,
    ):
        agent.send_json(hello())
        until(agent, "welcome")
        page.send_json({"do": "look", "agent": 0})
        page.send_json({"do": "take", "agent": 0, "beat": time.monotonic() - 32})
        assert until(page, "note")["text"] == (
            "too late: the server had been out of reach for 32 s; not done"
        )
        page.send_json({"do": "take", "agent": 0, "beat": time.monotonic()})
        until(agent, "taken")
        agent.send_json({"kind": "decision", "step": 1, "margin": 0, "waits": True})
        while not until(page, "seen").get("waiting"):
            pass
        wrong = "beat must be the number of the last beat that the page heard, got"
        for beat, said in [
            (time.monotonic() - 4, "too late"),
            (float("nan"), f"{wrong} nan"),
            (None, f"{wrong} null"),
            ("x", f"{wrong} 'x'"),
            (10**400, f"{wrong} 1000"),
        ]:
            page.send_json(act(1, beat=beat))
            told = until(page, "note")
            assert told["undone"] == "act"
            assert told["text"].startswith(said)
        page.send_json(act("1"))
        assert until(page, "note")["text"] == "step must be a whole number, got '1'"
        assert "action" not in kinds(log)
        page.send_json(act(1, beat=until(page, "beat")["beat"]))  # heard just now
        assert until(agent, "action")["action"] == 1
    assert kinds(log).count("action") == kinds(log).count("taken") == 1


def test_an_agent_by_plain_http(client: TestClient, fleet: Fleet, log: sm.AuditLog) -> None:
    decision = {"step": 0, "margin": 3, "scores": [1, 0], "about": {"action_names": ["L", "R"]}}
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        refused = client.post("/agents/arm", json=decision, headers=headers)
        assert refused.status_code == 401
        assert "wrong or missing token" in refused.json()["detail"]
    assert client.post("/agents/arm", json=decision, headers=BEARER).json() == {
        "taken": False, "answered": False, "stop": None,
    }  # fmt: skip
    assert (fleet.agents[0].name, fleet.agents[0].margin) == ("arm", 3)
    for content, said in [(b"{", "must be JSON"), (b"{}", "needs its scores, or a margin")]:
        wrong = client.post("/agents/arm", content=content, headers=BEARER)
        assert wrong.status_code == 400
        assert said in wrong.json()["detail"]
    with opened_page(client, "Ann") as page:
        until(page, "you")
        page.send_json({"do": "look", "agent": 0})
        page.send_json({"do": "take", "agent": 0})
        until(page, "timeline")
        told: list[Any] = []

        def ask() -> None:
            question = {**decision, "step": 1, "waits": True}
            told.append(client.post("/agents/arm", json=question, headers=BEARER).json())

        asking = threading.Thread(target=ask)
        asking.start()
        while not until(page, "seen")["waiting"]:
            pass
        page.send_json(act(1))
        asking.join(30)
    assert told == [{"taken": True, "answered": True, "action": 1}]
    assert client.delete("/agents/arm", headers=BEARER).json() == {"said": "goodbye"}
    assert client.delete("/agents/arm", headers=BEARER).status_code == 404
    assert kinds(log) == ["server-started", "joined", "taken", "action", "left", "handed-back"]


def test_a_plain_agent_that_falls_silent_is_lost(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safemargin.web import plain_agents

    desk = plain_agents.PlainAgents(fleet)
    asyncio.run(desk.decide("arm", b'{"step": 0, "margin": 1}'))
    desk.sweep()
    assert fleet.agents[0].status == "live"
    monkeypatch.setattr(plain_agents, "SILENCE", -1.0)
    desk.sweep()
    assert (fleet.agents[0].status, fleet.agents[0].link) == ("lost", None)
    asyncio.run(desk.decide("arm", b'{"step": 1, "margin": 1}'))
    assert fleet.agents[0].status == "live"


def test_malformed_messages_harm_nobody_else(client: TestClient, fleet: Fleet) -> None:
    with (
        client.websocket_connect(AGENTS, headers=BEARER) as good,
        client.websocket_connect(AGENTS, headers=BEARER) as bad,
    ):
        good.send_json(hello("good"))
        until(good, "welcome")
        bad.send_json(hello("bad"))
        bad.send_text("{")
        assert "must be JSON" in until(bad, "error")["text"]
        bad.send_json({"kind": "dance"})
        assert until(bad, "error")["text"] == "the kind of message 'dance' is unknown"
        bad.send_bytes(b"Pxxxx<html>")
        for _ in range(MOST_FAULTS - 3):
            bad.send_text("[]")
        assert "10 messages could not be read" in until(bad, "closed")["text"]
        with pytest.raises(WebSocketDisconnect) as closed:
            until(bad, "anything")
        assert closed.value.code == 1008
        good.send_json({"kind": "decision", "step": 0, "margin": 3})
        good.send_json({"kind": "left"})
        until(good, "closed")
    assert [(agent.name, agent.status) for agent in fleet.agents] == [
        ("good", "left"),
        ("bad", "lost"),
    ]
    assert fleet.agents[0].margin == 3
    assert "10 messages could not be read" in fleet.agents[1].reason


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        ({"margin": 1, "scores": [10**400]}, 400),
        ({"margin": 1, "proxy": 10**400}, 400),
        ({"margin": 1, "proposed": [10**400]}, 200),
        (
            {"margin": 0, "proxy": 1e39, "call": True, "why": FORGED, "about": {"policy": FORGED}},
            200,
        ),
    ],
)
def test_strange_numbers_and_texts_harm_nobody_else(
    client: TestClient, log: sm.AuditLog, decision: dict[str, Any], status: int
) -> None:
    answer = client.post("/agents/arm", content=json.dumps(decision), headers=BEARER)
    assert answer.status_code == status
    with opened_page(client, "Ann") as page:
        json.loads(page.receive_text(), parse_constant=pytest.fail)  # browsers read no Infinity
    texts = [entry.text for entry in log]
    assert len(texts) == {400: 1, 200: 3 if decision.get("call") else 2}[status]
    assert all(text.isprintable() for text in texts)


def test_a_flood_is_cut_off(client: TestClient, fleet: Fleet) -> None:
    with client.websocket_connect(AGENTS, headers=BEARER) as agent:
        agent.send_json(hello())
        for step in range(int(AGENT_RATE) * 20):
            agent.send_json({"kind": "decision", "step": step, "margin": 1})
        text = until(agent, "closed")["text"]
    assert text == "more than 200 messages a second; report less often"
    assert fleet.agents[0].status == "lost"
    assert fleet.decisions < AGENT_RATE * 20


def test_what_pages_cannot_ask(client: TestClient) -> None:
    with client.websocket_connect(LIVE) as page:
        page.send_json({"do": "take", "agent": 0})
        assert "the first message must be" in until(page, "error")["text"]
        page.send_json({"do": "hello", "secret": "short"})
        assert "secret must be a text of 16 to 100 printable" in until(page, "error")["text"]
        page.send_text('{"do": "hello", "secret": "' + "\\ud800" * 20 + '"}')
        assert "secret must be a text of 16 to 100 printable" in until(page, "error")["text"]
        page.send_json({"do": "hello", "secret": "x" * 20})
        until(page, "fleet")
        page.send_json({"do": "take", "agent": 7})
        assert until(page, "error")["text"] == "there is no agent 7"
        page.send_json({"do": "name", "name": "\n"})
        assert "your name must be a text of 1 to 60 printable" in until(page, "error")["text"]
        page.send_json({"do": "name"})
        assert until(page, "error")["text"] == f"your name must be {NAME}, got nothing"
        page.send_json({"do": "sing"})
        assert until(page, "error")["text"] == "the message 'sing' is unknown"
