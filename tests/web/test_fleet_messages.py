"""Messages of agents: which are read, which are refused, and with what sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from safemargin.errors import InvalidInput

pytest.importorskip("pydantic")

from helpers.fleet import FORGED, JPEG, NAME

from safemargin.web.fleet.messages import Report, read_hello, read_json, read_picture, read_report

SCORES = "a list of 1 to 1024 numbers, with null for one that is not finite"
PLAIN = r"low\n   999  2026-01-01 10:00:00       0/7  Ann acted for arm: FIRE\x1b[31m\ud800"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("[1]", "must be a JSON object, got a list"),
        ('{"kind": "decision", "step": 1}', "the first message must be"),
    ],
)
def test_messages_that_are_no_hello(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_hello(read_json(text))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, f"name must be {NAME}, got ''$"),
        ({"name": "  "}, f"name must be {NAME}, got '  '$"),
        ({"name": 3}, f"name must be {NAME}, got 3$"),
        ({"name": "a" * 61}, f"name must be {NAME}, got 'aaaa"),
        ({"name": "a\x00"}, rf"name must be {NAME}, got 'a\\x00'$"),
        ({"name": "a\n"}, rf"name must be {NAME}, got 'a\\n'$"),
        ({}, f"name must be {NAME}, got nothing$"),
        (
            {"name": "a", "action_names": 3},
            "action_names must be a list of at most 256 texts, got 3$",
        ),
        ({"name": "a", "action_names": ["x"] * 257}, "action_names must be .* texts, got a list$"),
        (
            {"name": "a", "dimensions": -1},
            "dimensions must be a whole number from 0 to 256, got -1$",
        ),
        ({"name": "a", "dimensions": None}, "dimensions must be a whole number .*, got null$"),
        ({"name": "a", "policy": 3}, "policy must be a text or null, got 3$"),
    ],
)
def test_hellos_that_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_hello({"kind": "hello", **fields})


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"step": 1}, "needs its scores, or a margin"),
        ({"step": -1, "margin": 1}, "step must be a whole number from 0 to 2147483647, got -1$"),
        ({"step": 1.5, "margin": 1}, r"step must be a whole number .*, got 1\.5$"),
        ({"step": True, "margin": 1}, "step must be a whole number .*, got True$"),
        ({"step": None, "margin": 1}, "step must be a whole number .*, got null$"),
        ({"step": 2**40, "margin": 1}, f"step must be a whole number .*, got {2**40}$"),
        ({"margin": "3"}, "margin must be a whole number .*, got '3'$"),
        ({"margin": 3, "proxy": "high"}, "proxy must be a finite number or null, got 'high'$"),
        ({"margin": 3, "proxy": True}, "proxy must be a finite number or null, got True$"),
        ({"margin": 3, "proxy": math.inf}, "proxy must be a finite number or null, got inf$"),
        ({"margin": 3, "proxy": 10**400}, "proxy must be a finite number or null, got 1000"),
        ({"scores": []}, f"scores must be {SCORES}, got a list$"),
        ({"scores": [0] * 1025}, f"scores must be {SCORES}, got a list$"),
        ({"scores": "12"}, f"scores must be {SCORES}, got '12'$"),
        ({"scores": [1, "2"]}, f"scores must be {SCORES}, got '2' at index 1$"),
        ({"scores": [1, True]}, f"scores must be {SCORES}, got True at index 1$"),
        ({"scores": [10**400]}, f"scores must be {SCORES}, got 1000.* at index 0$"),
        ({"scores": [1], "proposed": {}}, "proposed must be an action: .*, got an object$"),
        ({"scores": [1], "proposed": True}, "proposed must be an action: .*, got True$"),
        ({"scores": [1], "proposed": [0] * 257}, "proposed must be an action: .*, got a list$"),
        ({"margin": 3, "proposed": 10**400}, "proposed must be an action: .*, got 1000000"),
        ({"margin": 3, "proposed": 2**53}, "proposed must be an action: .*, got 9007"),
    ],
)
def test_reports_that_are_refused(message: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_report(message)


def test_null_stands_for_what_is_missing() -> None:
    nothing = dict.fromkeys(["scores", "proposed", "proxy", "call", "waits"])
    assert read_report({"margin": 1, **nothing}) == Report(margin=1)
    scores = read_report({"scores": [1, None], "margin": None}).scores
    assert scores is not None
    assert scores[0] == 1.0
    assert math.isnan(scores[1])


def test_what_cannot_be_printed_is_spelled_out() -> None:
    assert read_report({"margin": 1, "why": FORGED}).why == PLAIN
    assert read_report({"margin": 1, "why": "1\u202f234 · größer"}).why == "1 234 · größer"
    texts = {"policy": FORGED, "environment": FORGED, "instance": "\n", "on_lost": "\x00"}
    read = read_hello({"kind": "hello", "name": "a", "action_names": ["UP\r"], **texts})
    assert read.action_names == (r"UP\r",)
    assert (read.policy, read.environment) == (PLAIN, PLAIN)
    assert (read.instance, read.on_lost) == (r"\n", r"\x00")


def test_pictures_are_pictures() -> None:
    assert read_picture(b"P\x00\x00\x01\x00" + JPEG) == (256, JPEG)
    for wrong in (b"", b"P", b"Q\x00\x00\x01\x00" + JPEG, b"P\x00\x00\x00\x00<script>"):
        with pytest.raises(InvalidInput, match="a binary message must be a picture"):
            read_picture(wrong)
    with pytest.raises(InvalidInput, match="a picture may have 512 KiB, got 600"):
        read_picture(b"P\x00\x00\x00\x00" + JPEG + bytes(600 << 10))
