"""What agents and pages may say to the server: read strictly, refused in one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from safemargin.errors import InvalidInput
from safemargin.monitor.audit import printable
from safemargin.monitor.pictures import picture_kind

LONGEST_MESSAGE = 1 << 20
"""Bytes of one message, at most."""
LARGEST_PICTURE = 512 << 10
MOST_SCORES = 1024
MOST_ACTIONS = 256
LARGEST_ACTION = 2**53
"""From here on browsers cannot tell whole numbers apart."""
LONGEST_NAME = 60

PICTURE = b"P"
"""The first byte of a binary message that holds a picture; 4 bytes of step and the file follow."""


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent introduces itself."""

    name: str
    instance: str
    """The same after a reconnection, another for another program of the same name."""
    action_names: tuple[str, ...] = ()
    dimensions: int = 0
    """Of continuous actions; 0 where actions are numbers from `first_action` on."""
    first_action: int = 0
    policy: str | None = None
    environment: str | None = None
    on_lost: str = "go-on"
    """What it does when the server is lost."""


@dataclass(frozen=True, slots=True)
class Report:
    """One decision of an agent."""

    episode: int
    step: int
    scores: tuple[float, ...] | None = None
    proposed: Any = None
    margin: int | None = None
    """None: the server shall find it from the scores."""
    proxy: float | None = None
    call: bool = False
    outside: bool = False
    muted: bool = False
    void: bool = False
    why: str = ""
    waits: bool = False
    """It does nothing until a person acts."""


def read_json(text: str | bytes) -> dict[str, Any]:
    """One JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a message must be JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"a message must be a JSON object, got {_kind(value)}")
    return value


def read_hello(message: Mapping[str, Any]) -> Hello:
    """The first message of an agent."""
    if message.get("kind") != "hello":
        raise InvalidInput('the first message must be {"kind": "hello", "name": …}')
    names = message.get("action_names") or []
    if not isinstance(names, list) or len(names) > MOST_ACTIONS:
        raise InvalidInput(f"action_names must be a list of at most {MOST_ACTIONS} texts")
    return Hello(
        name=read_name(message.get("name"), "name"),
        instance=_text(message, "instance", "", 64),
        action_names=tuple(printable(str(name)[:30]) for name in names),
        dimensions=_whole(message, "dimensions", most=MOST_ACTIONS),
        first_action=_whole(message, "first_action", least=-(2**31)),
        policy=_text_or_none(message, "policy"),
        environment=_text_or_none(message, "environment"),
        on_lost=_text(message, "on_lost", "go-on", 20),
    )


def read_report(message: Mapping[str, Any]) -> Report:
    """A decision, checked field by field."""
    scores = message.get("scores")
    margin = message.get("margin")
    if scores is None and margin is None:
        raise InvalidInput("a decision needs its scores, or a margin")
    return Report(
        episode=_whole(message, "episode"),
        step=_whole(message, "step"),
        scores=None if scores is None else _scores(scores),
        proposed=_action_or_none(message.get("proposed")),
        margin=None if margin is None else _whole(message, "margin"),
        proxy=_number(message, "proxy"),
        call=message.get("call") is True,
        outside=message.get("outside") is True,
        muted=message.get("muted") is True,
        void=message.get("void") is True,
        why=_text(message, "why", "", 300),
        waits=message.get("waits") is True,
    )


def read_picture(message: bytes) -> tuple[int, bytes]:
    """The step and the file, a JPEG or PNG."""
    picture = message[5:]
    if message[:1] != PICTURE or picture_kind(picture) is None:
        raise InvalidInput("a binary message must be a picture: 'P', its step, a JPEG or PNG file")
    if len(picture) > LARGEST_PICTURE:
        raise InvalidInput(
            f"a picture may have {LARGEST_PICTURE >> 10} KiB, got {len(picture) >> 10}; make it "
            "smaller"
        )
    return int.from_bytes(message[1:5], "big"), picture


def read_name(value: Any, what: str) -> str:
    """A name that people can read."""
    if not isinstance(value, str) or not 1 <= len(value.strip()) <= LONGEST_NAME:
        raise InvalidInput(f"{what} must be a text of 1 to {LONGEST_NAME} characters")
    if not value.isprintable():
        raise InvalidInput(f"{what} must be printable, got {value!r}")
    return value.strip()


def read_action(value: Any, hello: Hello, actions: int) -> Any:
    """A person's action for this agent; None: the agent's own."""
    if value is None:
        return None
    if hello.dimensions:
        if (
            not isinstance(value, list)
            or len(value) != hello.dimensions
            or not all(is_number(each) for each in value)
        ):
            raise InvalidInput(f"an action of {hello.name} is {hello.dimensions} numbers")
        return [float(each) for each in value]
    if not actions:
        raise InvalidInput(f"{hello.name} did not say which actions it has (action_names)")
    least, most = hello.first_action, hello.first_action + actions - 1
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(f"an action of {hello.name} is a number from {least} to {most}")
    return value


def _scores(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_SCORES:
        raise InvalidInput(f"scores must be a list of 1 to {MOST_SCORES} numbers")
    try:
        # What is not finite comes as null, which JSON has.
        return tuple([math.nan if each is None else _as_number(each) for each in value])
    except (TypeError, OverflowError):
        raise InvalidInput("scores must be numbers, or null for what is not finite") from None


def _as_number(value: Any) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    raise TypeError


def is_number(value: Any) -> bool:
    """Whether it is a number that is finite as a float."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _number(message: Mapping[str, Any], name: str) -> float | None:
    value = message.get(name)
    if value is None:
        return None
    if not is_number(value):
        raise InvalidInput(f"{name} must be a finite number or null, got {_kind(value)}")
    return float(value)


def _whole(message: Mapping[str, Any], name: str, *, least: int = 0, most: int = 2**31 - 1) -> int:
    value = message.get(name, 0)
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(f"{name} must be a whole number from {least} to {most}")
    return value


def _text_or_none(message: Mapping[str, Any], name: str) -> str | None:
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} must be a text, got {_kind(value)}")
    return None if value is None else _text(message, name, "", 200)


def _text(message: Mapping[str, Any], name: str, default: str, most: int) -> str:
    return printable(str(message.get(name, default))[:most])


def _action_or_none(value: Any) -> Any:
    if value is None or (type(value) is int and abs(value) < LARGEST_ACTION):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) <= MOST_ACTIONS:
        return [float(each) for each in value if is_number(each)]
    if type(value) is float and is_number(value):
        return value
    raise InvalidInput(f"proposed must be an action, got {_kind(value)}")


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(
        type(value), f"{value!r:.40}"
    )
