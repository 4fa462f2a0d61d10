"""The other end of the bridge, for Python 3.8 or later: it needs nothing but the environment.

    python bridge_child.py CartPole-v1                  # an id of gymnasium, or of the old gym
    python bridge_child.py safety_gymnasium:SafetyPointGoal1-v0
    python bridge_child.py path/to/file.py:make         # a function that returns an environment

safemargin starts it and speaks to it over standard input and output (see `bridge`). What the
environment prints goes to standard error. An environment is saved with copy.deepcopy, unless it has
methods of its own: save_state() and restore_state(state), and digest_state(), a text that only
equal states share.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import struct
import sys
from typing import Any

PROTOCOL = 1


def read_exactly(stream: Any, count: Any) -> Any:
    parts = b""
    while len(parts) < count:
        part = stream.read(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts


def receive(stream: Any) -> Any:
    """Return the next message: JSON with arrays in it."""
    header, binary = struct.unpack(">II", read_exactly(stream, 8))
    text, raw = read_exactly(stream, header), read_exactly(stream, binary)

    def decoded(value: Any) -> Any:
        if "array" in value and value.keys() == {"array", "shape", "at"}:
            import numpy

            kind = numpy.dtype(value["array"])
            count = int(numpy.prod(value["shape"], dtype=int))
            flat = numpy.frombuffer(raw, kind, count, value["at"])
            return flat.reshape(value["shape"]).copy()
        return tuple(value["tuple"]) if value.keys() == {"tuple"} else value

    return json.loads(text.decode("utf-8"), object_hook=decoded)


def send(stream: Any, message: Any) -> None:
    """Send a message: JSON, followed by the bytes of all arrays in it."""
    raw: list[bytes] = []

    def encoded(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(name): encoded(item) for name, item in value.items()}
        if isinstance(value, tuple):
            return {"tuple": [encoded(item) for item in value]}
        if isinstance(value, list):
            return [encoded(item) for item in value]
        if hasattr(value, "tobytes") and hasattr(value, "dtype"):
            at = sum(len(part) for part in raw)
            raw.append(value.tobytes())
            return {"array": value.dtype.str, "shape": list(value.shape), "at": at}
        return value

    text = json.dumps(encoded(message)).encode("utf-8")
    binary = b"".join(raw)
    stream.write(struct.pack(">II", len(text), len(binary)) + text + binary)
    stream.flush()


def described(space: Any) -> Any:
    """Return a space as plain values."""
    kind = type(space).__name__
    if kind == "Discrete":
        return {"space": kind, "n": int(space.n), "start": int(getattr(space, "start", 0))}
    if kind == "Box":
        return {"space": kind, "low": space.low, "high": space.high, "dtype": space.dtype.str}
    if kind == "MultiDiscrete":
        start = getattr(space, "start", 0 * space.nvec)
        return {"space": kind, "nvec": space.nvec, "start": start, "dtype": space.dtype.str}
    if kind == "MultiBinary":
        return {"space": kind, "shape": list(space.shape)}
    if kind == "Dict":
        return {"space": kind, "of": {name: described(one) for name, one in space.spaces.items()}}
    if kind == "Tuple":
        return {"space": kind, "of": [described(one) for one in space.spaces]}
    raise TypeError(f"spaces of type {kind} cannot cross the bridge")


class Environment:
    """What is asked of an environment of gymnasium or gym."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.saved: dict[int, Any] = {}
        self.next = 0
        self.own = hasattr(env.unwrapped, "save_state") and hasattr(env.unwrapped, "restore_state")

    def hello(self) -> Any:
        return {
            "protocol": PROTOCOL,
            "name": str(getattr(getattr(self.env, "spec", None), "id", type(self.env).__name__)),
            "action_space": described(self.env.action_space),
            "observation_space": described(self.env.observation_space),
            "random": self._generator() is not None,
            "keeps": not self.own,
        }

    def reset(self, seed: Any) -> Any:
        try:
            found = self.env.reset(seed=seed)
        except TypeError:  # gym before 0.22
            self.env.seed(seed)
            found = self.env.reset()
        observation, info = found if _is_pair(found) else (found, {})
        return {"observation": observation, "mask": self._mask(info)}

    def step(self, action: Any) -> Any:
        found = self.env.step(action)
        observation, reward = found[:2]
        info = found[-1]
        if len(found) == 4:  # gym before 0.26
            truncated = bool(info.get("TimeLimit.truncated", False))
            terminated = bool(found[2]) and not truncated
        elif len(found) == 6:  # safety_gymnasium: a cost comes after the reward
            terminated, truncated = bool(found[3]), bool(found[4])
            info = dict(info, cost=float(found[2]))
        else:
            terminated, truncated = bool(found[2]), bool(found[3])
        told = {name: one for name, one in info.items() if isinstance(one, (bool, int, float, str))}
        return {
            "observation": observation,
            "reward": float(reward),
            "terminated": terminated,
            "truncated": truncated,
            "mask": self._mask(info),
            "info": told,
        }

    def save(self) -> Any:
        if self.own:
            return {"state": self.env.unwrapped.save_state()}
        self.next += 1
        self.saved[self.next] = copy.deepcopy(self.env)
        return {"state": self.next}

    def restore(self, state: Any) -> Any:
        if self.own:
            self.env.unwrapped.restore_state(state)
        else:
            self.env = copy.deepcopy(self.saved[state])
        return {}

    def forget(self, states: Any) -> Any:
        for state in states:
            self.saved.pop(state, None)
        return {}

    def digest(self) -> Any:
        if hasattr(self.env.unwrapped, "digest_state"):
            return {"digest": str(self.env.unwrapped.digest_state())}
        return {"digest": None}

    def random(self) -> Any:
        generator = self._generator()
        if hasattr(generator, "bit_generator"):
            return {"random": repr(generator.bit_generator.state)}
        return {"random": repr(generator.get_state())}

    def reseed(self, seed: Any) -> Any:
        generator = self._generator()
        if hasattr(generator, "bit_generator"):
            bits = generator.bit_generator
            bits.state = type(bits)(seed).state
        else:
            generator.seed(seed % 2**32)
        return {}

    def render(self) -> Any:
        try:
            return {"picture": self.env.render()}
        except TypeError:  # gym before 0.26
            return {"picture": self.env.render(mode="rgb_array")}

    def _generator(self) -> Any:
        found = getattr(self.env.unwrapped, "np_random", None)
        return found if hasattr(found, "bit_generator") or hasattr(found, "get_state") else None

    def _mask(self, info: Any) -> Any:
        mask = info.get("action_mask") if isinstance(info, dict) else None
        return mask if mask is None else [bool(one) for one in mask]


def _is_pair(found: Any) -> Any:
    return isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)


def make(name: Any, arguments: Any) -> Any:
    """Make the environment that a name stands for."""
    source, _, attribute = name.rpartition(":")
    if source.endswith(".py"):
        spec: Any = importlib.util.spec_from_file_location("bridged", source)
        module = importlib.util.module_from_spec(spec)
        sys.modules["bridged"] = module
        sys.path.insert(0, os.path.dirname(os.path.abspath(source)))
        spec.loader.exec_module(module)
        return getattr(module, attribute)(**arguments)
    if source:
        module = importlib.import_module(source)
        if hasattr(module, "make"):
            return module.make(attribute, **arguments)
        name = attribute
    try:
        library = importlib.import_module("gymnasium")
    except ImportError:
        library = importlib.import_module("gym")
    return library.make(name, **arguments)


def serve(simulator: Any, source: Any, sink: Any) -> None:
    """Answer until the other end closes."""
    while True:
        try:
            message = receive(source)
        except EOFError:
            return
        try:
            answer = getattr(simulator, message.pop("do"))(**message)
        except Exception as error:  # noqa: BLE001 — it is reported over the bridge
            answer = {"error": f"{type(error).__name__}: {error}"}
        send(sink, answer)


def main() -> None:
    # Prints of the environment must not end up between the messages.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = os.fdopen(os.dup(0), "rb")
    arguments = {}
    for pair in sys.argv[2:]:
        name, _, value = pair.partition("=")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    try:
        simulator = Environment(make(sys.argv[1], arguments))
    except Exception as error:  # noqa: BLE001 — it is reported over the bridge
        receive(source)
        send(sink, {"error": f"{type(error).__name__}: {error}"})
        return
    serve(simulator, source, sink)


if __name__ == "__main__":
    main()
