"""Training folders of rl-zoo3, and models as they are shared on the Hub: what to play, and how.

The two layouts, of which any model file may also be named itself:

    logs/ppo/HalfCheetah-v4_1/          HalfCheetah-v4.zip, best_model.zip, rl_model_N_steps.zip,
                                        HalfCheetah-v4/{config,args}.yml, …/vecnormalize.pkl
    ppo-HalfCheetah-v3/                 ppo-HalfCheetah-v3.zip, config.yml, args.yml,
                                        env_kwargs.yml, vec_normalize.pkl

The YAML is read as data: its Python tags make no objects, and text that rl-zoo would evaluate is
parsed where its form is known and refused where not. The model and its statistics are pickles,
which Stable-Baselines3 loads: name only folders whose origin you trust.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from safemargin.core.settings import ActionChoice
from safemargin.errors import InvalidInput, MissingExtra, PolicyFault, describe_error, errors_as
from safemargin.policies.base import Policy

try:
    import yaml
except ImportError as error:
    raise MissingExtra("an rl-zoo folder", extra="rl-zoo") from error

PICKLES = (
    "the model and its statistics are pickles, which can run any code when they are loaded; name "
    "only folders whose origin you trust"
)

_REGISTERED_BY = ("ale_py", "minigrid", "panda_gym", "highway_env", "gymnasium_robotics")
"""Packages that register environments when imported, as rl-zoo imports those it finds."""

_STATISTICS = ("vecnormalize.pkl", "vec_normalize.pkl")

_MAPPINGS = ("python/object/apply:collections.OrderedDict",)
_SEQUENCES = ("python/tuple", "python/list")


@dataclass(frozen=True)
class ZooFolder:
    """What a training folder says about its agent."""

    folder: Path
    model: Path
    environment: str
    """The environment's id."""
    arguments: Mapping[str, Any]
    """What the environment is made with."""
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...]
    """The wrappers around it, innermost first: dotted name and arguments."""
    frame_stack: int
    """Frames in an observation; 0: not stacked."""
    statistics: Path | None
    """The file with the VecNormalize statistics that observations are normalised with."""
    packages: tuple[str, ...]
    """Modules to import so that the environment's id is known."""

    @property
    def normalises_frames(self) -> bool:
        """Whether each frame is normalised before it is stacked, which a policy cannot do."""
        return self.statistics is not None and self.frame_stack > 0

    @property
    def described(self) -> str:
        """What is played, and how, in one line."""
        parts = [name.rpartition(".")[2] for name, _ in self.wrappers]
        parts += [f"{self.frame_stack} frames stacked"] * (self.frame_stack > 0)
        parts += [f"normalised with {self.statistics.name}"] if self.statistics is not None else []
        drawn = "drawn at random" if self.samples else "the best by its scores"
        with_these = f" ({', '.join(parts)})" if parts else ""
        return (
            f"rl-zoo: {self.model.name} in {self.environment}{with_these}; actions are {drawn}, as "
            "rl-zoo's enjoy shows them"
        )

    @property
    def recipe(self) -> str:
        """What the environment is made of: the same text for each folder of the same training."""
        return json.dumps(
            [self.environment, dict(self.arguments), self.wrappers, self.frame_stack],
            sort_keys=True,
        )

    def register(self) -> gym.envs.registration.EnvSpec | None:
        """Make the environment's id known, and return what is registered under it."""
        for package in self.packages:
            with errors_as(InvalidInput, f"{self.folder}: importing {package!r} failed:"):
                importlib.import_module(package)
        for package in _REGISTERED_BY:
            if self.environment in gym.registry:
                break
            with contextlib.suppress(ImportError):
                importlib.import_module(package)
        return gym.registry.get(self.environment)

    @property
    def samples(self) -> bool:
        """Whether rl-zoo's `enjoy` draws actions by default: in Atari games and in MiniGrid."""
        registered = self.register()
        entry = str(registered.entry_point) if registered is not None else ""
        return "AtariEnv" in entry or "minigrid" in entry


def read_folder(text: str | Path) -> ZooFolder:
    """Read a training folder, or the folder of a model file; InvalidInput says what is missing."""
    path = Path(text).expanduser()
    if not path.exists():
        raise InvalidInput(f"rl-zoo:{text}: there is no such folder")
    folder = path.parent if path.is_file() else path
    records = _records_of(folder)
    config = _read_yaml(records / "config.yml")
    called = _read_yaml(records / "args.yml") if (records / "args.yml").is_file() else {}
    environment = called.get("env", records.name)
    if not isinstance(environment, str):
        raise _unread(records / "args.yml", "env", environment)
    arguments = config.get("env_kwargs") or {}
    if called.get("env_kwargs") is not None:  # given on the command line of the training
        arguments = called["env_kwargs"]
    beside = records / "env_kwargs.yml"
    if not arguments and beside.is_file():
        arguments = _read_yaml(beside)
    if not isinstance(arguments, dict) or _unknown_in(arguments):
        raise _unread(records, "env_kwargs", arguments)
    if config.get("vec_env_wrapper"):
        raise _unread(records / "config.yml", "vec_env_wrapper", config["vec_env_wrapper"])
    stack = config.get("frame_stack") or 0
    if not isinstance(stack, int):
        raise _unread(records / "config.yml", "frame_stack", stack)
    packages = called.get("gym_packages") or []
    if not isinstance(packages, list) or not all(isinstance(name, str) for name in packages):
        raise _unread(records / "args.yml", "gym_packages", packages)
    return ZooFolder(
        folder=folder,
        model=path if path.is_file() else _model_in(folder, environment),
        environment=environment,
        arguments=arguments,
        wrappers=tuple(_wrappers(records / "config.yml", config.get("env_wrapper"))),
        frame_stack=stack,
        statistics=_statistics(records, config.get("normalize")),
        packages=tuple(packages),
    )


def load_rl_zoo(text: str, **options: Any) -> Policy:
    """Return the policy of a folder, normalised as in training, that acts as `enjoy` shows it."""
    from safemargin.policies.sb3 import load_sb3

    if "normalize" in options:
        raise InvalidInput(
            f"policy rl-zoo:{text}: the folder itself says which statistics belong to it; leave "
            "--normalize (normalize=) out, or name the model file without 'rl-zoo:'"
        )
    found = read_folder(text)
    in_policy = found.statistics is not None and not found.normalises_frames
    policy = load_sb3(found.model, **options, normalize=found.statistics if in_policy else False)
    if found.normalises_frames:
        policy = _needs_its_environment(policy)
    if found.samples:
        policy.usual_choice, policy.usual_epsilon = _sampling(policy, text)
    policy.description = f"rl-zoo:{found.model}" + (
        f", normalised with {found.statistics.name}" if found.statistics is not None else ""
    )
    return policy


def recipe_identity(text: str) -> str:
    """Return what the environment of a folder is made of, wherever the folder lies."""
    return read_folder(text).recipe


def _needs_its_environment(policy: Any) -> Any:
    """Make a policy refuse environments that do not normalise frames before they stack them."""
    inner = policy.check

    def check(env: gym.Env[Any, Any]) -> None:
        if not env.has_wrapper_attr("normalises_frames"):
            raise PolicyFault(
                f"policy {policy.description}: it was trained on frames that were normalised "
                "before they were stacked; take the environment of the same folder, too"
            )
        inner(env)

    policy.check = check
    return policy


def _sampling(policy: Any, text: str) -> tuple[ActionChoice, float]:
    """Return how Stable-Baselines3 draws an action of this policy."""
    if policy.kind != "q":
        return ("sampled", 0.0) if policy.kind in ("logits", "gaussian") else ("greedy", 0.0)
    return "epsilon-greedy", policy.exploration


def _records_of(folder: Path) -> Path:
    """Return the folder that holds config.yml: this one, or the only one below that does."""
    found = [each.parent for each in [folder / "config.yml", *sorted(folder.glob("*/config.yml"))]]
    found = [each for each in found if (each / "config.yml").is_file()]
    if len(found) == 1 or (found and found[0] == folder):
        return found[0]
    runs = sorted(str(each.parent.parent) for each in folder.glob("*/*/config.yml"))
    if runs:
        raise InvalidInput(
            f"rl-zoo:{folder}: holds several training runs; name one of them, like rl-zoo:{runs[0]}"
        )
    raise InvalidInput(
        f"rl-zoo:{folder}: expected the folder of one training run, with a config.yml in it or one "
        "folder below, which says how the agent was trained; without it, name the environment, "
        "the model and its statistics yourself (ENV model.zip --normalize FILE)"
    )


def _model_in(folder: Path, environment: str) -> Path:
    """Return the last model of a training, which is what `enjoy` plays by default."""
    name = environment.replace("/", "-")
    wanted = [folder / f"{name}.zip", *sorted(folder.glob(f"*-{name}.zip"))]
    found = [each for each in wanted if each.is_file()]
    if len(found) == 1:
        return found[0]
    others = sorted(each.name for each in folder.glob("*.zip"))
    if not others:
        raise InvalidInput(f"rl-zoo:{folder}: there is no model (a .zip file) in it")
    lacks = "has no" if not found else "has more than one"
    raise InvalidInput(
        f"rl-zoo:{folder}: {lacks} model called {name}.zip, the last of a training; name one of "
        f"the files there, like rl-zoo:{folder / others[0]} (there: {', '.join(others)})"
    )


def _statistics(records: Path, normalize: Any) -> Path | None:
    """Return the file of statistics that observations are normalised with, None without one."""
    if isinstance(normalize, str):
        normalize = _evaluated_as_dict(records / "config.yml", normalize)
    if not isinstance(normalize, bool | dict | None) or _unknown_in(normalize):
        raise _unread(records / "config.yml", "normalize", normalize)
    found = [records / name for name in _STATISTICS if (records / name).is_file()]
    if not normalize:
        if found:
            raise InvalidInput(
                f"rl-zoo:{records}: {found[0].name} holds VecNormalize statistics, but config.yml "
                "says that the agent was trained without; name the environment and the model "
                f"yourself, with --normalize {found[0]} or --normalize none"
            )
        return None
    if isinstance(normalize, dict) and not normalize.get("norm_obs", True):
        return None
    if not found:
        raise InvalidInput(
            f"rl-zoo:{records}: config.yml says that the agent was trained under VecNormalize, but "
            f"its statistics are missing ({' or '.join(_STATISTICS)}), and without them it would "
            "act differently; add the file that the training wrote"
        )
    return found[0]


def _wrappers(config: Path, value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Read env_wrapper: a dotted name, {name: arguments}, or a list of these."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for each in value if isinstance(value, list) else [value] if value else []:
        name, arguments = each, None
        if isinstance(each, dict) and len(each) == 1:
            name, arguments = next(iter(each.items()))
        named = isinstance(name, str) and name.replace(".", "_").isidentifier() and "." in name
        if not named or not isinstance(arguments or {}, dict) or _unknown_in(arguments):
            raise _unread(config, "env_wrapper", each)
        found.append((name, arguments or {}))
    return found


def _evaluated_as_dict(file: Path, text: str) -> dict[str, Any]:
    """Read "{'norm_obs': False}" or "dict(norm_obs=False)", which rl-zoo evaluates, as data."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            if tree.func.id != "dict" or any(each.arg is None for each in tree.keywords):
                raise ValueError
            return {str(each.arg): ast.literal_eval(each.value) for each in tree.keywords}
        value = ast.literal_eval(tree)
        if not isinstance(value, dict):
            raise ValueError
        return value
    except (ValueError, SyntaxError):
        raise _unread(file, "normalize", text) from None


@dataclass(frozen=True)
class _Unknown:
    """Stands for a Python object in a YAML file, which nothing makes."""

    tag: str

    def __repr__(self) -> str:
        return f"!!{self.tag}"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads the YAML that rl-zoo dumps without making any Python object of its tags."""


def _tagged(loader: Any, suffix: str, node: Any) -> Any:
    if suffix in _MAPPINGS:
        parts = loader.construct_sequence(node, deep=True)
        return dict(parts[0]) if parts else {}
    if suffix in _SEQUENCES:
        return loader.construct_sequence(node, deep=True)
    return _Unknown(suffix)


_Loader.add_multi_constructor("tag:yaml.org,2002:", _tagged)


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        with file.open(encoding="utf-8") as opened:
            value = yaml.load(opened, Loader=_Loader)
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise InvalidInput(f"rl-zoo:{file}: cannot be read: {describe_error(error)}") from error
    if isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value):
        value = dict(value)  # rl-zoo's hyperparameters, in their order
    if not isinstance(value, dict | None):
        raise InvalidInput(f"rl-zoo:{file}: expected names and values, got {value!r:.60}")
    return value or {}


def _unknown_in(value: Any) -> bool:
    """Whether a value holds anything that only Python could make."""
    if isinstance(value, dict):
        return any(map(_unknown_in, value.values())) or any(map(_unknown_in, value))
    return any(map(_unknown_in, value)) if isinstance(value, list) else isinstance(value, _Unknown)


def _unread(file: Path, name: str, value: Any) -> InvalidInput:
    return InvalidInput(
        f"rl-zoo:{file}: {name} is {value!r:.120}, which cannot be read without running code; "
        "write a function that makes the environment, and name it and the model instead "
        "(file.py:function model.zip)"
    )
