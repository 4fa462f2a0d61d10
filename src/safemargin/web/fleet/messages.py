"""Messages that agents and pages send to the server; a malformed one is refused in one sentence."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from safemargin.errors import InvalidInput
from safemargin.monitor.pictures import picture_kind
from safemargin.web.fleet import fields
from safemargin.web.fleet.fields import Reader, is_number, kind_of, shortened, whole_number

LONGEST_MESSAGE = 1 << 20
"""The most bytes that one message may have."""
LARGEST_PICTURE = 512 << 10

PICTURE = b"P"
"""The first byte of a binary message with a picture; 4 bytes of step and the file follow."""

# -- from agents ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent introduces itself."""

    name: fields.Name
    instance: Annotated[str, shortened(64)] = ""
    """The same after a reconnection, different for another program with the same name."""
    action_names: fields.ActionNames = ()
    dimensions: Annotated[int, whole_number(most=fields.MOST_ACTIONS)] = 0
    """How many numbers a continuous action has; 0 where actions count from `first_action`."""
    first_action: Annotated[int, whole_number(least=-fields.LARGEST_WHOLE - 1)] = 0
    policy: fields.Label = None
    environment: fields.Label = None
    on_lost: Annotated[str, shortened(20)] = "go-on"
    """What the agent does when it loses the server."""


@dataclass(frozen=True, slots=True)
class Report:
    """One decision of an agent."""

    episode: fields.Whole = 0
    step: fields.Whole = 0
    scores: fields.Scores = None
    proposed: fields.OwnAction = None
    margin: fields.WholeOrNull = None
    """None: the server finds it from the scores."""
    proxy: fields.FiniteOrNull = None
    call: fields.Flag = False
    outside: fields.Flag = False
    muted: fields.Flag = False
    void: fields.Flag = False
    why: Annotated[str, shortened(300)] = ""
    waits: fields.Flag = False
    """The agent does nothing until a person acts."""
    reward: fields.FiniteOrNull = None
    """What the decision before this one brought."""
    state: Annotated[str, shortened(40)] = ""
    """The same for equal states, if the agent says so."""


_read_hello, _read_report = Reader(Hello), Reader(Report)


def read_json(text: str | bytes) -> dict[str, Any]:
    """Return one JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a message must be JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"a message must be a JSON object, got {kind_of(value)}")
    return value


def read_hello(message: Mapping[str, Any]) -> Hello:
    """Return the first message of an agent."""
    if message.get("kind") != "hello":
        raise InvalidInput('the first message must be {"kind": "hello", "name": …}')
    return _read_hello(message)


def read_introduction(name: str, message: Mapping[str, Any]) -> Hello:
    """Return what an agent without a WebSocket says about itself with its first decision."""
    about = message.get("about", {})
    if not isinstance(about, dict):
        expected = "an object with the fields of a hello"
        raise InvalidInput(f"about must be {expected}, got {kind_of(about)}")
    return read_hello({**about, "kind": "hello", "name": name, "instance": secrets.token_hex(8)})


def read_report(message: Mapping[str, Any]) -> Report:
    """Return a decision; it needs scores, a margin, or both."""
    report = _read_report(message)
    if report.scores is None and report.margin is None:
        raise InvalidInput("a decision needs its scores, or a margin")
    return report


def read_picture(message: bytes) -> tuple[int, bytes]:
    """Return the step and the file, a JPEG or PNG."""
    picture = message[5:]
    if message[:1] != PICTURE or picture_kind(picture) is None:
        raise InvalidInput("a binary message must be a picture: 'P', its step, a JPEG or PNG file")
    if len(picture) > LARGEST_PICTURE:
        raise InvalidInput(
            f"a picture may have {LARGEST_PICTURE >> 10} KiB, got {len(picture) >> 10}; make it "
            "smaller"
        )
    return int.from_bytes(message[1:5], "big"), picture


# -- from pages ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Renaming:
    """A person gives their name."""

    name: fields.YourName


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first message of a page."""

    secret: fields.Secret
    name: fields.YourNameOrNull = None


@dataclass(frozen=True, slots=True)
class Steering:
    """A person takes an agent over, hands it back or dismisses it."""

    beat: fields.BeatOrNull = None
    force: fields.Flag = False
    """Take the agent from whoever has it."""


@dataclass(frozen=True, slots=True)
class Snooze:
    """A person does not want to be called by an agent for a while."""

    beat: fields.BeatOrNull = None
    seconds: fields.Seconds = 0.0
    """0: they want to be called again."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """A person gives an agent, or its call, to somebody else."""

    to: fields.Name
    beat: fields.BeatOrNull = None


@dataclass(frozen=True, slots=True)
class Act:
    """A person's action for one decision of an agent."""

    episode: fields.Index
    step: fields.Index
    beat: fields.Beat
    action: Any = None


read_renaming, read_greeting = Reader(Renaming), Reader(Greeting)
read_steering, read_act = Reader(Steering), Reader(Act)
read_snooze, read_hand_over = Reader(Snooze), Reader(HandOver)


def read_action(value: Any, hello: Hello, actions: int) -> Any:
    """Return a person's action for this agent; None stands for the agent's own action."""
    if value is None:
        return None
    if hello.dimensions:
        if (
            not isinstance(value, list)
            or len(value) != hello.dimensions
            or not all(is_number(each) for each in value)
        ):
            raise InvalidInput(
                f"an action of {hello.name} is a list of {hello.dimensions} finite numbers"
            )
        return [float(each) for each in value]
    if not actions:
        raise InvalidInput(f"{hello.name} did not say which actions it has (action_names)")
    least, most = hello.first_action, hello.first_action + actions - 1
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(f"an action of {hello.name} is a whole number from {least} to {most}")
    return value
