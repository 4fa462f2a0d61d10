"""Which environment is meant, and what is said when there is none."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import safemargin as sm
from safemargin.environments import EnvironmentSpec
from safemargin.environments.atari import GameStart, make_atari
from safemargin.errors import InvalidInput, MissingExtra

FACTORY = """
import gymnasium as gym

def make(length=20):
    return gym.make("CartPole-v1", max_episode_steps=length)

def make_vector():
    return gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")

def make_nothing():
    return None

def broken():
    raise OSError("no such robot")
"""


@pytest.fixture
def factory(tmp_path: Path) -> Path:
    path = tmp_path / "robots.py"
    path.write_text(FACTORY)
    return path


def local_factory(length: int = 30) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=length)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"max_episode_steps": 9}),
        ("gymnasium.envs.classic_control:CartPoleEnv", {}),
        ("gymnasium:CartPole-v1", {}),
    ],
)
def test_texts_make_environments_and_survive_json(text: str, arguments: dict[str, Any]) -> None:
    spec = EnvironmentSpec.parse(text, arguments)
    written = spec.to_json()
    assert written is not None
    again = EnvironmentSpec.from_json(written)
    assert again == spec
    assert again.name == text
    assert isinstance(again.make(), gym.Env)


def test_a_file_with_a_function(factory: Path) -> None:
    env = EnvironmentSpec.parse(f"{factory}:make", {"length": 7}).make()
    assert env.spec is not None
    assert env.spec.max_episode_steps == 7


def test_a_file_may_import_its_neighbour(tmp_path: Path) -> None:
    for folder, length in (("one", 5), ("two", 6)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"length_{folder}.py").write_text(f"LENGTH = {length}\n")
        (tmp_path / folder / "robots.py").write_text(
            f"from length_{folder} import LENGTH\n{FACTORY.replace('=20', '=LENGTH')}"
        )
    envs = [EnvironmentSpec.parse(f"{tmp_path}/{name}/robots.py:make").make() for name in
            ("one", "two", "one")]  # fmt: skip
    assert [env.spec.max_episode_steps for env in envs if env.spec] == [5, 6, 5]


@pytest.mark.parametrize("text", ["{folder}/leaves.py:make", "leaves_when_imported:make"])
def test_a_file_that_leaves_is_told_in_a_sentence(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("leaves", "leaves_when_imported"):
        (tmp_path / f"{name}.py").write_text("import sys\nsys.exit('bye')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match=r"failed: SystemExit: bye \(leaves\w*\.py, line 2\)"):
        EnvironmentSpec.parse(text.format(folder=tmp_path)).make()


def test_a_function_that_can_be_found_has_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvironmentSpec.parse(gym.envs.classic_control.CartPoleEnv)
    assert spec.text == "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    assert isinstance(EnvironmentSpec.from_json(spec.to_json() or "").make(), gym.Env)
    mine = EnvironmentSpec.parse(local_factory, {"length": 3})
    assert mine.make().spec.max_episode_steps == 3  # type: ignore[union-attr]
    nameless = EnvironmentSpec.parse(lambda: gym.make("CartPole-v1"))
    assert nameless.text is None
    assert nameless.to_json() is None
    assert isinstance(nameless.make(), gym.Env)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("robots.py", "environment 'robots.py' is a file; name the function in it that makes the"),
        ("CartPol-v1", "environment 'CartPol-v1' is unknown; did you mean 'CartPole-v1'"),
        ("NoSuchThing-v3", "environment 'NoSuchThing-v3' is unknown"),
        ("NoSpace/Thing-v3", "environment 'NoSpace/Thing-v3' is unknown"),
        ("", "expected an id, e.g. 'CartPole-v1', got ''"),
        ("no_such_module:make", "no module named 'no_such_module' can be imported"),
        ("no_such_module:Thing-v0", "environment 'no_such_module:Thing-v0' is unknown"),
        ("no/such/file.py:make", "there is no file no/such/file.py"),
        ("FILE:mak", "no 'mak' there; did you mean 'make'"),
        ("FILE:gym", "expected a function that makes it, got module"),
        ("FILE:make_vector", "is a vector environment"),
        ("FILE:make_nothing", "expected a gymnasium.Env, got builtins.NoneType"),
        ("FILE:broken", "could not be made: OSError: no such robot"),
    ],
)
def test_unknown_names_are_answered_with_a_sentence(text: str, message: str, factory: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        EnvironmentSpec.parse(text.replace("FILE", str(factory))).make()


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidInput, match="plain values"):
        EnvironmentSpec.parse("CartPole-v1", {"a": object()})
    with pytest.raises(InvalidInput, match="must be a mapping of names to values, got 'x'"):
        EnvironmentSpec.parse("CartPole-v1", "x")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="does not name one"):
        EnvironmentSpec.from_json('{"env": "CartPole-v1"}')
    with pytest.raises(InvalidInput, match="could not be made: TypeError"):
        EnvironmentSpec.parse("CartPole-v1", {"no_such_option": 1}).make()
    with pytest.raises(InvalidInput, match="every worker has to make its own"):
        EnvironmentSpec.parse(gym.make("CartPole-v1"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="expected an id or a function, got int"):
        EnvironmentSpec.parse(3)  # type: ignore[arg-type]


class ManyAgents:
    """What PettingZoo's environments look like."""

    possible_agents = ("left", "right")


VECTOR = "SyncVectorEnv is a vector environment, .* give the single environment it was made from"
MANY = "ManyAgents is a multi-agent environment; give a gymnasium.Env in which one agent acts and"


@pytest.mark.parametrize("given", ["object", "made by a function"])
@pytest.mark.parametrize("message", [VECTOR, MANY])
def test_vector_and_multi_agent_environments_are_refused_by_name(given: str, message: str) -> None:
    env: Any = ManyAgents() if message == MANY else gym.make_vec("CartPole-v1", 2, "sync")
    with pytest.raises(InvalidInput, match=message):
        EnvironmentSpec.parse(env if given == "object" else lambda: env).make()
    with pytest.raises(InvalidInput, match=message):
        sm.true_criticality(env, lambda observations: observations, step=0, n=1, scores="q")
    with pytest.raises(
        InvalidInput, match=r"expected a gymnasium\.Env, got builtins\.function; give"
    ):
        sm.true_criticality(
            local_factory, lambda observations: observations, step=0, n=1, scores="q"
        )


def test_no_argument_of_an_atari_game_is_mistaken_for_something_else() -> None:
    pytest.importorskip("ale_py")
    for name in ("function", "self", "game"):
        with pytest.raises(InvalidInput, match=f"could not be made: TypeError: .*'{name}'"):
            EnvironmentSpec.parse("atari:pong", {name: 1}).make()


def test_unknown_atari_games_are_answered_with_the_nearest() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(InvalidInput, match="'atari:beamrider' is unknown; did you mean 'beam_ri"):
        EnvironmentSpec.parse("atari:beamrider").make()
    with pytest.raises(InvalidInput, match="'ALE/Pung-v5' is unknown; did you mean 'ALE/Pong-v5'"):
        EnvironmentSpec.parse("ALE/Pung-v5").make()


@pytest.mark.parametrize(
    ("text", "missing", "line"),
    [
        ("atari:pong", "ale_py", r"an Atari game needs .*pip install 'safemargin\[atari\]'"),
        ("ALE/Pong-v5", "ale_py", r"pip install 'safemargin\[atari\]'"),
        ("Hopper-v5", "mujoco", r"'Hopper-v5' needs .*pip install 'safemargin\[mujoco\]'"),
    ],
)
def test_missing_extras_are_answered_with_the_line_that_installs_them(
    text: str, missing: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith(("gymnasium.envs.mujoco", missing)):
            monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=line):
        EnvironmentSpec.parse(text).make()


def test_the_atari_stack_is_the_papers() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    env = EnvironmentSpec.parse("atari:breakout").make()
    assert env.observation_space.shape == (4, 84, 84)
    assert env.observation_space.dtype == np.uint8
    env.reset(seed=3)
    rewards, steps, lives = set(), 0, env.unwrapped.ale.lives()  # type: ignore[attr-defined]
    ended = False
    while not ended:
        _, reward, terminated, truncated, _ = env.step(steps % 4)
        rewards.add(float(reward))
        steps += 1
        ended = terminated or truncated
    assert rewards <= {-1.0, 0.0, 1.0}
    assert env.unwrapped.ale.lives() == lives - 1  # type: ignore[attr-defined]


def test_quick_starts_give_the_same_games_as_full_ones() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    for game in ("pong", "qbert"):
        quick, full = make_atari(game), make_atari(game)
        layer: Any = full
        while not isinstance(layer, GameStart):
            layer = layer.env
        assert layer._quick
        layer._quick = False
        for seed in (5, 6):
            assert np.array_equal(quick.reset(seed=seed)[0], full.reset(seed=seed)[0])
            for step in range(25):
                one, other = quick.step(step % 6), full.step(step % 6)
                assert np.array_equal(one[0], other[0])
                assert one[1:4] == other[1:4]
