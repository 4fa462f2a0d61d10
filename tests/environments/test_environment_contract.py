"""Every environment we promise to measure: restored runs equal the uninterrupted one.

`make test-worlds` runs all of them and writes the matrix in docs/environments.md.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import WORLDS
from helpers.teams import write_team

from safemargin.environments import (
    EnvironmentSpec,
    Simulator,
    Snapshot,
    Step,
    environment_identity,
    make_simulator,
    same,
)
from safemargin.environments.identity import ActionSource

ATARI = ["pong", "beam_rider", "breakout", "qbert", "freeway", "seaquest"]
CLASSIC = [
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Acrobot-v1",
    "Pendulum-v1",
]
TOY_TEXT = ["Taxi-v4", "FrozenLake-v1", "CliffWalking-v1", "Blackjack-v1"]
MUJOCO = ["HalfCheetah-v5", "Ant-v5", "Hopper-v5"]
MINIGRID = ["minigrid:MiniGrid-DoorKey-8x8-v0", "minigrid:MiniGrid-Dynamic-Obstacles-6x6-v0"]
PETTINGZOO = {
    "pettingzoo:tictactoe_v3/player_2": {"player_1": 9},
    "pettingzoo:connect_four_v3/player_1": {"player_0": 7},
}
ALL = [*(f"atari:{game}" for game in ATARI), *CLASSIC, *TOY_TEXT, *MUJOCO, *MINIGRID, *PETTINGZOO]

# Tried by `make test-slow`, because each takes up to minutes.
HIGHWAY = ["highway_env:highway-fast-v0", "highway_env:parking-v0"]
LARGE = {
    "pettingzoo:rps_v2/player_0": {"player_1": 3},
    "pettingzoo:leduc_holdem_v4/player_1": {"player_0": 4},
    "pettingzoo:knights_archers_zombies_v11/archer_0": {
        "archer_1": 6,
        "knight_0": 6,
        "knight_1": 6,
    },
}
ROBOTS = [
    "gymnasium_robotics:FetchReach-v4",
    "gymnasium_robotics:PointMaze_UMaze-v3",
    f"{WORLDS}:make_meta_world",
]
REPLAYED = [
    "LunarLander-v3",
    "BipedalWalker-v3",
    "CarRacing-v3",
    "gymnasium_robotics:AdroitHandDoor-v1",
]
"""Worlds without a snapshot."""
LIBRARIES = {
    "atari": "ale-py",
    "minigrid": "minigrid",
    "pettingzoo": "pettingzoo",
    "highway_env": "highway-env",
    "gymnasium_robotics": "gymnasium-robotics",
    f"{WORLDS}": "metaworld",
}
"""Beginning of a name → the package that the world comes from; the others are Gymnasium's own."""
SLOW = os.environ.get("SAFEMARGIN_SLOW") == "1"

CONTINUATIONS = 200
RESTORES = 5


@pytest.fixture(params=[*ALL, *HIGHWAY, *LARGE, *ROBOTS, *REPLAYED] if SLOW else ALL)
def spec(
    request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> EnvironmentSpec:
    text = request.param
    if text.startswith("atari:"):
        pytest.importorskip("ale_py")
        pytest.importorskip("cv2")
    if text in MUJOCO or "robotics" in text or "meta_world" in text:
        pytest.importorskip("mujoco")
        pytest.importorskip("imageio")
        monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it stands
    module = text.partition(":")[0]
    if module in ("highway_env", "gymnasium_robotics", "minigrid"):
        pytest.importorskip(module)
    if text.startswith(str(WORLDS)):
        pytest.importorskip("metaworld")
    if text in REPLAYED and module == text:
        pytest.importorskip("Box2D")
    if text.startswith("pettingzoo:"):
        pytest.importorskip("pettingzoo")
        pytest.importorskip("pygame")
        monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
        team = write_team(tmp_path / "linear.py", {**PETTINGZOO, **LARGE}[text])
        return EnvironmentSpec.parse(text, {"team": team, "partners": "sampled"})
    return EnvironmentSpec.parse(text)


@dataclass
class Saved:
    snapshot: Snapshot
    digest: bytes
    followed: list[tuple[Any, Step, bytes]]


def uninterrupted(
    simulator: Simulator, count: int, length: int, seed: int, *, depth: int
) -> list[Saved]:
    """Save at random points of episodes that then go on as if nothing had happened."""
    generator = np.random.default_rng(seed)
    actions = ActionSource(simulator.env, seed)
    found: list[Saved] = []
    episode = 0
    while len(found) < count:
        episode += 1
        simulator.reset(1000 * seed + episode)
        going: list[Saved] = []
        saves = 0
        while not simulator.ended and (simulator.steps < depth or going):
            here = saves == 0 and simulator.steps == 0 and generator.random() < 0.3
            if (here or generator.random() < 8 / depth) and simulator.steps < depth:
                saves += 1
                going.append(Saved(simulator.save(), simulator.digest(), []))
                found.append(going[-1])
            action = actions.draw(simulator.mask)
            step = simulator.step(action)
            digest = simulator.digest() if going else b""
            for saved in going:
                saved.followed.append((action, step, digest))
            going = [saved for saved in going if len(saved.followed) < length]
    return found[:count]


def assert_repeats(simulator: Simulator, saved: Saved) -> None:
    simulator.restore(saved.snapshot)
    assert simulator.digest() == saved.digest
    for action, expected, digest in saved.followed:
        step = simulator.step(action)
        assert same(step.observation, expected.observation)
        assert step.reward == expected.reward
        assert (step.terminated, step.truncated) == (expected.terminated, expected.truncated)
        assert simulator.digest() == digest


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Gymnasium, Box2D and robots
@pytest.mark.filterwarnings("ignore:.*without specifying any render mode:UserWarning")
@pytest.mark.filterwarnings("ignore:.*:UserWarning:gymnasium")
def test_restored_runs_equal_the_uninterrupted_one(spec: EnvironmentSpec) -> None:
    simulator = make_simulator(spec.make(), way="replay" if spec.text in REPLAYED else "snapshot")
    depth = 150
    saves = uninterrupted(simulator, CONTINUATIONS // RESTORES, 12, 3, depth=depth)
    generator = np.random.default_rng(5)
    compared = 0
    for _ in range(RESTORES):
        for index in generator.permutation(len(saves)):
            if generator.random() < 0.1:
                simulator.reset(int(generator.integers(1000)))
            assert_repeats(simulator, saves[index])
            compared += 1
    assert compared >= CONTINUATIONS
    long = uninterrupted(simulator, 1, 400, 7, depth=60)[0]
    simulator.reset(1)
    assert_repeats(simulator, long)
    simulator.close()
    note(spec, simulator.way, compared + 1)


def note(spec: EnvironmentSpec, way: str, continuations: int) -> None:
    """Write what was found equal where `make test-worlds` collects it."""
    if "SAFEMARGIN_WORLDS" not in os.environ:
        return
    text = str(spec.text)
    usual = "mujoco" if text in MUJOCO else "gymnasium"
    library = next((LIBRARIES[each] for each in LIBRARIES if text.startswith(each)), usual)
    world = "Meta-World/goal_observable" if library == "metaworld" else text
    row = {"world": world, "library": library, "way": way}
    row |= {"version": importlib.metadata.version(library), "continuations": str(continuations)}
    with Path(os.environ["SAFEMARGIN_WORLDS"]).open("a") as file:
        file.write(json.dumps(row) + "\n")


@pytest.mark.parametrize("text", ["CartPole-v1", "Taxi-v4", "atari:pong", "Hopper-v5"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:gymnasium")
def test_replay_equals_the_uninterrupted_run_too(
    text: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    simulator = make_simulator(EnvironmentSpec.parse(text).make(), way="replay")
    assert simulator.way == "replay"
    for saved in uninterrupted(simulator, 6, 12, 3, depth=60):
        assert_repeats(simulator, saved)
        assert_repeats(simulator, saved)
    simulator.close()


@pytest.mark.parametrize("text", ["CartPole-v1", "FrozenLake-v1", "atari:pong"])
def test_identity_is_stable_and_tells_environments_apart(text: str) -> None:
    spec = EnvironmentSpec.parse(text)
    first, second = (environment_identity(spec, spec.make()) for _ in range(2))
    assert first == second
    assert first.startswith("sha256:")
    other = EnvironmentSpec.parse("CartPole-v1", {"max_episode_steps": 77})
    assert environment_identity(other, other.make()) != first


def test_identity_sees_behaviour() -> None:
    calm = EnvironmentSpec.parse("FrozenLake-v1", {"is_slippery": False})
    env = EnvironmentSpec.parse("FrozenLake-v1", {"is_slippery": True}).make()
    assert environment_identity(calm, calm.make()) != environment_identity(calm, env)


@pytest.mark.parametrize("game", ["Qbert", "Tetris", "Pong"])
def test_the_first_frames_of_a_game_survive_too(game: str) -> None:
    """ALE's state misses something there: without our care Qbert and Tetris go wrong."""
    pytest.importorskip("ale_py")
    spec = EnvironmentSpec.parse(
        f"ALE/{game}-v5", {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "ram"}
    )
    simulator = make_simulator(spec.make())
    simulator.reset(0)
    begin = simulator.save()
    for before in (0, 1, 2, 3, 5):
        simulator.restore(begin)
        for _ in range(before):
            simulator.step(0)
        saved = Saved(simulator.save(), simulator.digest(), [])
        for step in range(15):
            action = 7 * step % 4
            saved.followed.append((action, simulator.step(action), simulator.digest()))
        for between in (None, 0, 1, 2, 4):
            if between is not None:
                simulator.env.unwrapped.ale.reset_game()  # type: ignore[attr-defined]
                for _ in range(between):
                    simulator.env.step(0)
            assert_repeats(simulator, saved)
