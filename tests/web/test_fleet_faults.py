"""Faults of a fleet, with real processes and sockets: agents fail to their safe behaviour."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from helpers.margins import margins

import safemargin as sm
from safemargin.errors import InvalidInput, OverseerLost

pytest.importorskip("fastapi")
pytest.importorskip("websockets")

from helpers.fleet_server import TOKEN, Network, Person, running, wait_until

SCORES = [0.0, 2.5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """One server for the tests that do not end it; it has a margins file."""
    path = folder / "margins.json"
    margins().save(path)
    with running(folder, "--remote", str(path), "--tolerance", "1") as server:
        yield server.address


def port_of(address: str) -> int:
    port = urlsplit(address).port
    assert port is not None
    return port


def overseer(address: str, name: str, **options: Any) -> sm.RemoteOverseer:
    names = {"action_names": ["LEFT", "RIGHT"], "lost_after": 2.0}
    return sm.RemoteOverseer(address, name=name, token=TOKEN, **{**names, **options})


def index(person: Person, name: str) -> int:
    """Where the server keeps an agent; also waits until it is there."""
    known = [each["index"] for each in person.fleet["agents"] if each["name"] == name]
    if known:
        return int(known[0])
    told = person.hear("agents", lambda m: any(each["name"] == name for each in m["agents"]))
    return next(int(each["index"]) for each in told["agents"] if each["name"] == name)


class Loop(threading.Thread):
    """An agent's control loop: always wants action 0, and keeps what it did."""

    def __init__(self, overseer: sm.RemoteOverseer) -> None:
        super().__init__(daemon=True)
        self.overseer = overseer
        self.did: list[Any] = []
        self.ended: Exception | None = None
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            while not self.enough.wait(0.02):
                self.did.append(self.overseer.decide(0, scores=SCORES))
        except OverseerLost as error:
            self.ended = error

    def __enter__(self) -> Loop:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.enough.set()
        self.overseer.close()
        self.join(20)
        assert not self.is_alive()


def test_a_remote_agent_is_steered(address: str) -> None:
    with Person(address, "Ann") as ann, Loop(overseer(address, "steered")) as loop:
        place = index(ann, "steered")
        wait_until(lambda: loop.did, "the agent to act by itself")
        assert set(loop.did) == {0}
        ann.say(do="look", agent=place)
        ann.say(do="take", agent=place)
        for _ in range(3):
            ann.act(place, 1)
            ann.entry("action")
        wait_until(lambda: loop.did.count(1) == 3, "the person's three actions")
        count = len(loop.did)
        ann.say(do="give", agent=place)
        wait_until(lambda: len(loop.did) > count + 5, "the agent to go on")
        assert loop.did[-5:] == [0] * 5
        assert not loop.overseer.dropped
    with Person(address, "Ann") as ann:
        assert ann.fleet["agents"][place]["status"] == "left"


def test_in_a_gymnasium_environment(address: str) -> None:
    from helpers.worlds import TableWorld, always_first, chain

    table = margins(proxy="log_prob_range", policy={"kind": "logits"})
    watch = sm.Monitor(table, tolerance=1.0, call_at=2)
    with Person(address, "Ann") as ann, overseer(address, "walker", action_names=()) as away:
        env = sm.Overseen(TableWorld(chain(6)), always_first, watch, away)
        env.reset(seed=0)
        assert env.step()[4]["oversight"]["asked"]
        place = index(ann, "walker")
        ann.say(do="look", agent=place)
        env.step()
        ann.entry("call")
        ann.say(do="take", agent=place)
        wait_until(lambda: away.steering.taken, "the take-over")
        acted: list[Any] = []
        step = threading.Thread(target=lambda: acted.append(env.step()))
        step.start()
        seen = ann.hear("seen", lambda message: message.get("waiting"))
        assert (seen["scores"], seen["proposed"]) == ([3.0, 0.0], 0)
        ann.say(do="act", agent=place, episode=0, step=seen["step"], action=1)
        step.join(20)
        assert acted[0][4]["oversight"]["overruled"]
        assert acted[0][2]  # action 1 ends the walk


@pytest.mark.parametrize("on_lost", ["go-on", "hold", "stop"])
def test_the_network_stalls_while_a_person_steers(address: str, on_lost: Any) -> None:
    network = Network(port_of(address))
    away = overseer(network.address, f"stalled {on_lost}", on_lost=on_lost, lost_after=1.5)
    with Person(address, "Ann") as ann, Loop(away) as loop:
        place = index(ann, f"stalled {on_lost}")
        wait_until(lambda: loop.did, "the agent to act by itself")
        ann.say(do="take", agent=place)
        wait_until(lambda: away.steering.taken, "the take-over")
        ann.say(do="look", agent=place)
        ann.hear("seen", lambda message: message.get("waiting"))
        count = len(loop.did)
        network.stalled = True
        wait_until(lambda: away.lost, "the agent to notice")
        if on_lost == "stop":
            wait_until(lambda: loop.ended is not None, "the agent to stop")
            assert "stops: nothing was heard" in str(loop.ended)
            assert len(loop.did) == count
        elif on_lost == "go-on":
            wait_until(lambda: len(loop.did) > count + 5, "the agent to go on")
            assert set(loop.did) == {0}
        network.stalled = False
        if on_lost != "stop":  # it finds its way back, and she has it still
            wait_until(lambda: not away.lost and away.steering.taken, "the agent to be back")
            if on_lost == "hold":
                assert len(loop.did) == count  # it held until now, and waits for her again
            while 1 not in loop.did:  # older questions may still be on their way to her
                ann.act(place, 1)
    network.close()


def test_an_action_to_hold_with(address: str) -> None:
    network = Network(port_of(address))
    away = overseer(network.address, "holder", on_lost="hold", hold_action=7, lost_after=1.5)
    with Loop(away) as loop:
        wait_until(lambda: 0 in loop.did, "the agent to act by itself")
        network.stalled = True
        wait_until(lambda: loop.did[-1] == 7, "the agent to hold")
        network.stalled = False
        wait_until(lambda: loop.did[-1] == 0, "the agent to be back")
    network.close()


def test_the_server_is_killed_and_started_again(tmp_path: Path) -> None:
    path = tmp_path / "margins.json"
    margins().save(path)
    options = ["--remote", str(path), "--tolerance", "1"]
    with running(tmp_path, *options) as first:
        away = overseer(first.address, "survivor", on_lost="go-on", lost_after=1.5)
        port = first.port
        with Loop(away) as loop:
            ann = Person(first.address, "Ann")
            place = index(ann, "survivor")
            ann.say(do="take", agent=place)
            ann.entry("taken")
            wait_until(lambda: away.steering.taken, "the take-over")
            first.kill()
            count = len(loop.did)
            wait_until(lambda: len(loop.did) > count + 5, "the agent to go on alone")
            with sm.AuditLog(tmp_path / "watch.db") as log:
                log.check()  # whole after kill -9
            with running(tmp_path, *options, port=port) as second:
                with Person(second.address, "Ann") as again:
                    state = again.fleet["agents"][0]
                    assert (state["name"], state["control"]) == ("survivor", "Ann")
                    if state["status"] == "lost":
                        again.entry("back")
                    wait_until(lambda: not away.lost and away.steering.taken, "the agent back")
                    again.say(do="give", agent=0)
                    count = len(loop.did)
                    wait_until(lambda: len(loop.did) > count + 5, "the agent to act by itself")
                second.stop()
    with sm.AuditLog(tmp_path / "watch.db") as log:
        kinds = [entry.kind for entry in log]
        log.check()
    assert kinds.count("server-started") == 2
    assert kinds.count("server-stopped") == 1
    assert "back" in kinds
    assert kinds.index("taken") < kinds.index("handed-back")


AGENT = """
import sys, time, safemargin as sm
overseer = sm.RemoteOverseer(sys.argv[1], name="mortal", token=sys.argv[2])
while True:
    overseer.decide(0, scores=[0.0, 2.5])
    time.sleep(0.02)
"""


def test_an_agent_that_dies_shows_as_lost(address: str) -> None:
    with Person(address, "Ann") as ann:
        process = subprocess.Popen([sys.executable, "-c", AGENT, address, TOKEN])
        place = index(ann, "mortal")
        ann.hear("decisions", lambda m: any(row[0] == place for row in m["rows"]))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        entry = ann.entry("lost")
        assert (entry["agent"], entry["details"]["why"]) == ("mortal", "its connection broke")
        ann.say(do="take", agent=place)
        assert ann.hear("note")["text"] == "mortal cannot be taken over: it is lost"


def test_what_the_server_refuses(address: str) -> None:
    with pytest.raises(InvalidInput, match="refuses 'x': wrong or missing token"):
        sm.RemoteOverseer(address, name="x", token="wrong")
    with pytest.raises(InvalidInput, match="refuses 'x': the margins were made for another policy"):
        overseer(address, "x", policy="sha256:other")
    with (
        overseer(address, "x", policy="sha256:abc"),
        pytest.raises(InvalidInput, match="refuses 'x': an agent named 'x' is connected already"),
    ):
        overseer(address, "x")


def refused_at_first(network: Network, name: str, said: str) -> sm.RemoteOverseer:
    """An agent that finds no server when it begins, and is refused by the first it reaches."""
    network.stalled = True
    away = overseer(network.address, name, on_lost="hold", hold_action=7, lost_after=0.5)
    network.stalled = False
    wait_until(lambda: said in away.last_error, "the refusal")
    for _ in range(20):
        assert away.decide(0, scores=SCORES) == 7  # whoever refuses it does not oversee it
        time.sleep(0.02)
    return away


def test_an_agent_whose_name_is_held_at_first(address: str) -> None:
    network = Network(port_of(address))
    with overseer(address, "held"):
        away = refused_at_first(network, "held", "an agent named 'held' is connected already")
    with Loop(away) as loop:
        wait_until(lambda: 0 in loop.did, "the agent to be welcome")
    network.close()


def test_an_agent_whose_token_is_wrong_at_first(address: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another token than that of the tests")
    with running(tmp_path, "--remote", "--token-file", str(tmp_path / "token")) as other:
        network = Network(other.port)
        away = refused_at_first(network, "unknown", "wrong or missing token")
        network.target = port_of(address)
    with Loop(away) as loop:
        wait_until(lambda: 0 in loop.did, "the agent to be welcome")
    network.close()


def test_a_server_that_is_away_from_the_start() -> None:
    nowhere = "http://127.0.0.1:9"
    with sm.RemoteOverseer(nowhere, name="x", token=TOKEN, lost_after=0.2) as alone:
        assert alone.decide(3, scores=SCORES) == 3
        assert alone.lost
        assert "refused" in alone.last_error
        for _ in range(600):  # what cannot be told is bounded
            assert alone.decide(3, scores=SCORES) == 3
        assert alone.dropped > 0
    with (
        sm.RemoteOverseer(nowhere, name="x", token=TOKEN, lost_after=0.2, on_lost="stop") as alone,
        pytest.raises(OverseerLost, match="x stops: nothing was heard from ws://127.0.0.1:9"),
    ):
        alone.decide(3, scores=SCORES)


def test_options_that_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="must be like http://host:8718, got somewhere"):
        sm.RemoteOverseer("somewhere", name="x")
    for wrong in ("http://[x", "http://x:99999"):
        with pytest.raises(InvalidInput, match="must be like http://host:8718, got http://"):
            sm.RemoteOverseer(wrong, name="x")
    with pytest.raises(InvalidInput, match="on_lost='halt' is unknown; did you mean 'hold'"):
        sm.RemoteOverseer("http://localhost", name="x", on_lost="halt")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="lost_after must be above 0 s"):
        sm.RemoteOverseer("http://localhost", name="x", lost_after=0)


def test_a_flood_harms_nobody_else(address: str) -> None:
    """One agent talks as fast as it can; another and a page go on as before."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    headers = {"Authorization": f"Bearer {TOKEN}"}
    way_in = f"ws://127.0.0.1:{port_of(address)}/agents"

    def flood() -> None:
        with connect(way_in, additional_headers=headers) as socket:
            socket.send('{"kind": "hello", "name": "flood"}')
            for step in range(1_000_000):
                socket.send(f'{{"kind": "decision", "step": {step}, "margin": 1}}')

    def too_large() -> None:
        with connect(way_in, additional_headers=headers) as socket:
            socket.send("x" * (2 << 20))
            socket.recv(timeout=120)

    with Person(address, "Ann") as ann, Loop(overseer(address, "calm")) as loop:
        place = index(ann, "calm")
        with pytest.raises((ConnectionClosed, ConnectionError)):
            flood()
        lost = ann.entry("lost")
        assert lost["agent"] == "flood"
        assert "more than 200 messages a second" in lost["text"]
        with pytest.raises((ConnectionClosed, ConnectionError)):
            too_large()
        ann.hear("decisions", lambda m: any(row[0] == place for row in m["rows"]))
        assert not loop.overseer.lost


def test_a_huge_request_is_refused_before_it_is_read(address: str) -> None:
    """Its end never comes: who waits for it hears nothing."""
    port = port_of(address)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as way_in:
        head = f"POST /agents/huge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {600 << 20}\r\n"
        way_in.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        way_in.sendall(bytes(3 << 19))
        answer = b""
        while b"a message may have 1 MiB" not in answer:
            heard = way_in.recv(4096)
            assert heard, answer
            answer += heard
        assert answer.startswith(b"HTTP/1.1 400")
        way_in.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert way_in.recv(4096) == b""  # and it is closed


def test_pictures_of_a_remote_agent(address: str) -> None:
    picture = np.zeros((300, 900, 3), np.uint8)
    with Person(address, "Ann") as ann, overseer(address, "seer") as away:
        place = index(ann, "seer")
        ann.say(do="look", agent=place)
        wait_until(lambda: away.wants_picture, "somebody to look")
        away.decide(0, scores=SCORES, picture=picture)
        told = ann.hear(
            "agents", lambda m: any(e["name"] == "seer" and e["pictured"] for e in m["agents"])
        )
        assert told
        wait_until(lambda: away.wants_picture, "somebody to look")
        with pytest.raises(InvalidInput, match=r"a picture must be an array \[height, width, 3\]"):
            away.decide(0, scores=SCORES, picture=picture / 2)
