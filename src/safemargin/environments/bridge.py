"""An environment in a process of its own: another Python, or a simulator in any language.

'bridge:COMMAND' starts the command and asks it over its standard input and output. A message is
two big-endian 32-bit lengths, a JSON object of the first length, and raw bytes of the second. An
array in the JSON is {"array": dtype, "shape": […], "at": offset} with its bytes behind; lists of
numbers will do as well. A tuple is {"tuple": […]}. docs/environments.md lists the messages.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import struct
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.environments.codecs import UNSEEN, Codec, Reference
from safemargin.environments.simulator import Env
from safemargin.errors import EnvironmentFault, InvalidInput

PROTOCOL = 1
CHILD = "{child}"
"""In a command, this stands for the file of the Python child."""

_LONGEST = 2**28
"""Text read as a length is larger: its first byte is at least 0x20."""


class Remote:
    """A running child. All of its state lies at the other end."""

    def __init__(self, words: list[str], name: str) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 — it lives as long as the child
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is the parent's business
            )
        except OSError as error:
            self._errors.close()
            raise InvalidInput(f"{name}: cannot start {words[0]!r}: {error.strerror}") from error
        self._finalizer = weakref.finalize(self, _stop, self._process, self._errors)
        self._dropped: list[Any] = []
        self.hello = self.ask("hello")
        if self.hello.get("protocol") != PROTOCOL:
            self.close()
            raise InvalidInput(
                f"{name}: speaks protocol {self.hello.get('protocol')!r} of the bridge, not "
                f"{PROTOCOL}"
            )

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Send a request and return the answer."""
        raw: list[bytes] = []
        text = json.dumps({"do": do, **{key: _encoded(each, raw) for key, each in what.items()}})
        binary, header = b"".join(raw), text.encode()
        try:
            stream: Any = self._process.stdin
            stream.write(struct.pack(">II", len(header), len(binary)) + header + binary)
            stream.flush()
            lengths = struct.unpack(">II", self._read(8))
            if max(lengths) > _LONGEST:
                raise EnvironmentFault(
                    f"{self.name}: answered {do!r} with something else than a message; its "
                    "standard output must carry nothing but messages"
                )
            header, binary = map(self._read, lengths)
        except (OSError, EOFError) as error:
            raise EnvironmentFault(f"{self.name}: {self._ending(do)}") from error
        try:
            answer: Any = json.loads(header, object_hook=lambda value: _decoded(value, binary))
        except ValueError as error:
            raise EnvironmentFault(
                f"{self.name}: answered {do!r} with what is no JSON ({error})"
            ) from error
        if not isinstance(answer, dict):
            raise EnvironmentFault(f"{self.name}: its answer to {do!r} is no JSON object")
        if "error" in answer:
            raise EnvironmentFault(f"{self.name}: {do} failed there: {answer['error']}")
        return answer

    def save(self) -> Kept:
        """Save the state; the child may forget it when nobody holds what is returned."""
        if self._dropped:
            self.ask("forget", states=list(self._dropped))
            self._dropped.clear()
        kept = Kept(self.ask("save").get("state"))
        if self.hello.get("keeps"):
            weakref.finalize(kept, self._dropped.append, kept.state).atexit = False
        return kept

    def close(self) -> None:
        """End the child."""
        self._finalizer()

    def _read(self, count: int) -> bytes:
        stream: Any = self._process.stdout
        found: bytes = stream.read(count)
        if len(found) < count:
            raise EOFError
        return found

    def _ending(self, do: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        return f"the process ended (status {self._process.returncode}) when asked to {do}{last}"


def _stop(process: subprocess.Popen[bytes], errors: Any) -> None:
    errors.close()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Kept:
    """A state that the child saved, or that it sent."""

    def __init__(self, state: Any) -> None:
        self.state = state


class RemoteRandom:
    """The random generator at the other end."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote


class RemoteState(Codec):
    """All the state of a child."""

    mutable = True

    def content(self, value: Any) -> Any:
        return value.save()

    def restore(self, value: Any, content: Any) -> None:
        value.ask("restore", state=content.state)

    def encode(self, value: Any, reference: Reference) -> Any:
        digest = value.ask("digest").get("digest")
        return (UNSEEN, "Remote") if digest is None else ("Remote", str(digest))


class RandomState(Codec):
    """The generator of a child, saved with the rest of it."""

    can_reseed = True

    def encode(self, value: Any, reference: Reference) -> Any:
        return ("RemoteRandom", str(value.remote.ask("random").get("random")))

    def reseed(self, value: Any, generator: np.random.Generator) -> None:
        value.remote.ask("reseed", seed=int(generator.integers(2**31)))


class BridgedEnvironment(gym.Env[Any, Any]):
    """An environment at the other end of a bridge."""

    def __init__(self, words: list[str], name: str, render_mode: str | None = None) -> None:
        self.remote = Remote(words, name)
        hello = self.remote.hello
        try:
            self.action_space = _space(hello["action_space"])
            self.observation_space = _space(hello["observation_space"])
        except (KeyError, TypeError, ValueError) as error:
            self.remote.close()
            raise InvalidInput(
                f"{name}: its hello does not describe its spaces ({type(error).__name__}: {error})"
            ) from error
        self.random = RemoteRandom(self.remote) if hello.get("random") else None
        self.metadata = {"render_modes": ["rgb_array"] if hello.get("draws", True) else []}
        self.render_mode = render_mode
        self.safemargin_identity = hashlib.sha256(
            json.dumps([hello.get("name"), hello.get("identity")]).encode()
        ).hexdigest()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._seen(self.remote.ask("reset", seed=seed))

    def step(self, action: Any) -> Any:
        answer = self.remote.ask("step", action=action)
        missing = {"observation", "reward", "terminated", "truncated"} - answer.keys()
        if missing:
            raise EnvironmentFault(
                f"{self.remote.name}: its answer to a step lacks {', '.join(sorted(missing))}"
            )
        observation, info = self._seen(answer)
        return observation, answer["reward"], answer["terminated"], answer["truncated"], info

    def _seen(self, answer: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        info = dict(answer.get("info") or {})
        if answer.get("mask") is not None:
            info["action_mask"] = np.asarray(answer["mask"], bool)
        try:
            return _shaped(self.observation_space, answer["observation"]), info
        except (KeyError, TypeError, ValueError) as error:
            raise EnvironmentFault(
                f"{self.remote.name}: its observation is none of {self.observation_space} "
                f"({type(error).__name__}: {error})"
            ) from error

    def render(self) -> Any:
        picture = self.remote.ask("render").get("picture")
        return None if picture is None else np.asarray(picture, np.uint8)

    def close(self) -> None:
        self.remote.close()


def make_bridged(rest: str, *, render_mode: str | None = None, **arguments: Any) -> Env:
    """Start the command of 'bridge:COMMAND'; arguments are added to it as NAME=VALUE."""
    words = shlex.split(rest)
    if not words:
        raise InvalidInput("environment 'bridge:': name the command of a simulator after the colon")
    child = str(Path(__file__).with_name("bridge_child.py"))
    words = [child if word == CHILD else word for word in words]
    words += [f"{name}={json.dumps(value)}" for name, value in arguments.items()]
    if render_mode is not None and child in words:
        words.append(f"render_mode={render_mode}")
    return BridgedEnvironment(words, f"environment 'bridge:{rest}'", render_mode)


def _encoded(value: Any, raw: list[bytes]) -> Any:
    if isinstance(value, dict):
        return {name: _encoded(item, raw) for name, item in value.items()}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item, raw) for item in value]}
    if isinstance(value, list):
        return [_encoded(item, raw) for item in value]
    if isinstance(value, np.ndarray):
        at = sum(map(len, raw))
        raw.append(value.tobytes())
        return {"array": value.dtype.str, "shape": list(value.shape), "at": at}
    return value.item() if isinstance(value, np.generic) else value


def _decoded(value: dict[str, Any], raw: bytes) -> Any:
    if value.keys() == {"array", "shape", "at"}:
        count = int(np.prod(value["shape"], dtype=int))
        kind = np.dtype(value["array"])
        if kind.hasobject:
            raise ValueError(f"arrays of {kind} cannot cross the bridge")
        return np.frombuffer(raw, kind, count, value["at"]).reshape(value["shape"]).copy()
    return tuple(value["tuple"]) if value.keys() == {"tuple"} else value


def _space(given: dict[str, Any]) -> gym.Space[Any]:
    kind = given["space"]
    if kind == "Discrete":
        return gym.spaces.Discrete(given["n"], start=given.get("start", 0))
    if kind == "Box":
        dtype = np.dtype(given.get("dtype", "<f4"))
        low, high = (np.asarray(given[end], dtype) for end in ("low", "high"))
        return gym.spaces.Box(low, high, dtype=dtype.type)
    if kind == "MultiDiscrete":
        start = given.get("start")
        return gym.spaces.MultiDiscrete(
            np.asarray(given["nvec"]), start=None if start is None else np.asarray(start)
        )
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(given["shape"])
    if kind == "Dict":
        return gym.spaces.Dict({name: _space(one) for name, one in given["of"].items()})
    if kind == "Tuple":
        return gym.spaces.Tuple([_space(one) for one in given["of"]])
    raise ValueError(f"a space of type {kind!r} is unknown to the bridge")


def _shaped(space: gym.Space[Any], value: Any) -> Any:
    """Return an observation in the form of its space; lists become arrays."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _shaped(one, value[name]) for name, one in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_shaped(one, part) for one, part in zip(space.spaces, value, strict=True))
    if isinstance(space, gym.spaces.Discrete):
        return int(value)
    return np.asarray(value, space.dtype).reshape(space.shape or ())
