"""The environment that a user names: a Gymnasium id, 'atari:GAME', or a factory function."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym

from safemargin.core.importing import locate
from safemargin.environments.simulator import Env, close_environment, require_single
from safemargin.errors import InvalidInput, MissingExtra, did_you_mean, errors_as
from safemargin.policies.loading import LOADERS

_VERSIONED = re.compile(r"-v\d+$")

SCHEMES: Mapping[str, str] = {
    "bridge": "safemargin.environments.bridge:make_bridged",
    "atari": "safemargin.environments.atari:make_atari",
    "jax": "safemargin.environments.functional.naming:make_functional",
    "minigrid": "safemargin.environments.minigrid:make_minigrid",
    "pettingzoo": "safemargin.environments.pettingzoo:make_agent",
    "rl-zoo": "safemargin.environments.rl_zoo:make_rl_zoo",
}
"""'SCHEME:REST' names the environment that this function makes of REST and the arguments."""

FOLDERS: Mapping[str, str] = {
    "rl-zoo": "safemargin.policies.rl_zoo:recipe_identity",
}
"""Where REST is a path, this function says what lies there, wherever that is."""


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """How to make an environment, again and in any process."""

    text: str | None
    """What the user wrote; None for a function that cannot be found by name."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    factory: Callable[..., Env] | None = field(default=None, compare=False)

    @classmethod
    def parse(
        cls,
        source: str | Callable[..., Env] | EnvironmentSpec,
        arguments: Mapping[str, Any] | None = None,
    ) -> EnvironmentSpec:
        """Read 'CartPole-v1', 'ALE/Pong-v5', 'atari:pong', 'package.module:function',
        'path/to/file.py:function', or take a function that returns an environment."""
        if not isinstance(arguments, Mapping | None):
            raise InvalidInput(
                f"environment arguments must be a mapping of names to values, got {arguments!r:.40}"
            )
        given = dict(arguments or {})
        if isinstance(source, EnvironmentSpec):
            return cls(source.text, {**source.arguments, **given}, source.factory)
        if isinstance(source, str):
            if not source.strip():
                raise InvalidInput("environment: expected an id, e.g. 'CartPole-v1', got ''")
            try:
                json.dumps(given)
            except TypeError as error:
                raise InvalidInput(
                    f"environment arguments must be plain values (JSON): {error}"
                ) from None
            return cls(_with_full_path(source.strip()), given)
        if isinstance(source, gym.Env):
            raise InvalidInput(
                "environment: expected an id or a function that makes the environment, got the "
                "environment itself; every worker has to make its own"
            )
        if isinstance(source, gym.vector.VectorEnv) or hasattr(source, "possible_agents"):
            require_single(source)
        if not callable(source):
            raise InvalidInput(
                f"environment: expected an id or a function, got {type(source).__name__}"
            )
        return cls(_importable_name(source), given, source)

    @property
    def name(self) -> str:
        """The name to show to people."""
        if self.text is not None:
            return self.text
        return getattr(self.factory, "__qualname__", repr(self.factory))

    @property
    def scheme(self) -> str | None:
        """The scheme of 'SCHEME:REST', if that is how the environment is named."""
        scheme = (self.text or "").partition(":")[0]
        return scheme if scheme in SCHEMES else None

    def make(self) -> Env:
        """Make a new environment."""
        if self.factory is not None:
            env: Any = self._called(self.factory)
        elif self.text is None:
            raise InvalidInput("environment: this study was made with a function that has no name")
        elif (scheme := self.scheme) is not None:
            maker = locate(SCHEMES[scheme], what="environment")
            rest = self.text.partition(":")[2]
            env = self._called(lambda **given: maker(rest, **given))
        elif ":" in self.text and not _VERSIONED.search(self.text):
            found = locate(self.text, what="environment")
            if not callable(found):
                raise InvalidInput(
                    f"environment {self.text!r}: expected a function that makes it, "
                    f"got {type(found).__name__}"
                )
            env = self._called(found)
        else:
            env = self._registered(self.text)
        require_single(env)
        return env  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def opened(self) -> Iterator[Env]:
        """Make an environment for a block of code, and close it afterwards."""
        env = self.make()
        try:
            yield env
        finally:
            close_environment(env)

    def with_team(self, policy: Any) -> tuple[EnvironmentSpec, Any]:
        """Return the environment and the policy measured in it.

        In 'pettingzoo:GAME/AGENT' the policy may name a whole team, whose other members then
        become part of the environment.
        """
        if self.scheme != "pettingzoo" or not isinstance(policy, str) or "team" in self.arguments:
            return self, policy
        from safemargin.policies.team import find_team, member_of

        if find_team(policy) is None:
            return self, policy
        team, agent = _with_full_path(policy), str(self.text).rpartition("/")[2]
        return EnvironmentSpec.parse(self, {"team": team}), member_of(agent, team)

    @property
    def own_policy(self) -> str | None:
        """The text that names the policy trained here, where the environment comes with one."""
        return self.text if self.scheme in LOADERS else None

    @property
    def identity(self) -> str:
        """The text that enters the identity: for a file, its name without the folder."""
        scheme, _, rest = (self.text or "").partition(":")
        if scheme in FOLDERS:
            lies_there = locate(FOLDERS[scheme], what="environment")(rest)
            arguments = json.dumps(dict(self.arguments), sort_keys=True, default=repr)
            return f"{scheme}:{lies_there} {arguments}"
        source, colon, attribute = (self.text or self.name).rpartition(":")
        if source.endswith(".py"):
            source = Path(source).name
        given = dict(self.arguments)
        if self.scheme == "pettingzoo" and isinstance(given.get("team"), str):
            given["team"] = Path(given["team"]).name
        arguments = json.dumps(given, sort_keys=True, default=repr)
        return f"{source}{colon}{attribute} {arguments}"

    def to_json(self) -> str | None:
        """Return a text for `from_json`, or None for a function that cannot be found by name."""
        if self.text is None:
            return None
        try:
            return json.dumps({"env": self.text, "arguments": dict(self.arguments)}, sort_keys=True)
        except TypeError:
            return None

    @classmethod
    def from_json(cls, text: str) -> EnvironmentSpec:
        """Read what `to_json` wrote."""
        try:
            values = json.loads(text)
            source, arguments = values["env"], values["arguments"]
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(f"environment: {text!r:.80} does not name one") from None
        return cls.parse(source, arguments)

    def _called(self, function: Callable[..., Any]) -> Any:
        with errors_as(InvalidInput, f"environment {self.name!r} could not be made:"):
            return function(**self.arguments)

    def _registered(self, name: str) -> Env:
        if name.startswith("ALE/"):
            from safemargin.environments.atari import games

            games()
        with errors_as(InvalidInput, f"environment {name!r} could not be made:"):
            try:
                return gym.make(name, **self.arguments)
            except gym.error.DependencyNotInstalled as error:
                if "mujoco" in str(error).lower() or "imageio" in str(error).lower():
                    raise MissingExtra(f"environment {name!r}", extra="mujoco") from error
                raise
            except (gym.error.UnregisteredEnv, ModuleNotFoundError) as error:
                if isinstance(error, ModuleNotFoundError) and ":" not in name:
                    raise _missing_module(name, error) from error
                if name.endswith(".py"):
                    raise InvalidInput(
                        f"environment {name!r} is a file; name the function in it that makes the "
                        f"environment, like '{name}:make'"
                    ) from error
                known = [key for key in gym.registry if not key.startswith(("phys2d/", "tabular/"))]
                raise InvalidInput(
                    f"environment {name!r} is unknown; {did_you_mean(name, known)}"
                ) from error


def _with_full_path(text: str) -> str:
    """Complete the path in 'file.py:function', so that it is found from any folder."""
    scheme, _, rest = text.partition(":")
    if scheme == "bridge":
        words = [
            str(Path(word).absolute()) if Path(word).is_file() else word for word in rest.split()
        ]
        return f"{scheme}:{' '.join(words)}"
    if scheme in FOLDERS:
        return f"{scheme}:{Path(rest).expanduser().resolve()}"
    if scheme in SCHEMES:
        return f"{scheme}:{_with_full_path(rest)}"
    source, colon, attribute = text.rpartition(":")
    if source.endswith(".py") and Path(source).expanduser().is_file():
        return f"{Path(source).expanduser().resolve()}{colon}{attribute}"
    return text


def _missing_module(name: str, error: ModuleNotFoundError) -> InvalidInput:
    if error.name in ("mujoco", "imageio", "glfw"):
        return MissingExtra(f"environment {name!r}", extra="mujoco")
    return InvalidInput(f"environment {name!r} needs the module {error.name!r}")


def _importable_name(function: Callable[..., Any]) -> str | None:
    """Return 'module:function' if any process finds the same function under that name."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if module in (None, "__main__") or name is None or "<" in name:
        return None
    target: Any = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    if target is not function:
        return None
    origin = getattr(sys.modules[module], "__file__", None)
    if importlib.util.find_spec(module.partition(".")[0]) is None and origin is not None:
        return f"{origin}:{name}"  # loaded from a file that is on no path
    return f"{module}:{name}"
