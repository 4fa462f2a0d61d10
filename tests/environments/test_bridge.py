"""Environments in processes of their own: another Python, or a simulator in any language."""

from __future__ import annotations

import ast
import contextlib
import gc
import shutil
import sqlite3
import struct
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.paths import ROOT

import safemargin as sm
from safemargin.cli import main
from safemargin.environments import EnvironmentSpec, make_simulator, same
from safemargin.environments.bridge import BridgedEnvironment
from safemargin.environments.identity import ActionSource
from safemargin.errors import EnvironmentFault, InvalidInput
from safemargin.study.signing import code_named

FERRY = f"bridge:{sys.executable} -S {ROOT / 'examples/bridge/ferry.py'}"
CHILD = f"bridge:{sys.executable} {{child}} "

WORLD = '''
import sys
import numpy as np
import gymnasium as gym

class World(gym.Env):
    """A walk whose noise is drawn; with `leak`, part of it is never saved."""

    def __init__(self, leak=False, form="dict"):
        self.leak, self.form = leak, form
        box = gym.spaces.Box(-99, 99, (2, 2), np.float64)
        self.observation_space = gym.spaces.Dict(at=box, turn=gym.spaces.Discrete(50))
        if form == "tuple":
            self.observation_space = gym.spaces.Tuple((box, gym.spaces.MultiBinary(2)))
        self.action_space = gym.spaces.MultiDiscrete([2, 3], start=[0, 1])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        print("this must not disturb the messages")
        self.at, self.turn = np.zeros((2, 2)), 0
        return self.observe(), {"action_mask": np.ones(5, bool)}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.turn += 1
        self.at = self.at + self.np_random.normal(size=(2, 2)) + action
        return self.observe(), float(self.at.sum()), self.turn == 12, False, {"note": "x"}

    def observe(self):
        if self.form == "tuple":
            return self.at.copy(), np.array([1, 0], np.int8)
        return {"at": self.at.copy(), "turn": self.turn}

    def save_state(self):
        kept = self.np_random.bit_generator.state
        return [self.at.copy(), self.turn if not self.leak else None, kept]

    def restore_state(self, state):
        self.at, turn, self.np_random.bit_generator.state = state[0].copy(), state[1], state[2]
        self.turn = self.turn if turn is None else turn

class Copied(World):
    save_state = property()  # deepcopy instead

def world(**given): return World(**given)
def copied(**given):
    env = Copied(**given)
    return env
def failing(): raise RuntimeError("no licence")
'''


@pytest.fixture
def world(tmp_path: Path) -> str:
    path = tmp_path / "world.py"
    path.write_text(WORLD)
    return f"{CHILD}{path}"


def make(text: str, **given: Any) -> Any:
    return EnvironmentSpec.parse(text, given).make()


def restored_runs(env: gym.Env[Any, Any], runs: int = 12) -> None:
    """Compare runs from a snapshot with the uninterrupted one."""
    simulator, actions = make_simulator(env), ActionSource(env, 3)
    for seed in range(runs):
        simulator.reset(seed)
        for _ in range(seed % 5):
            simulator.step(actions.draw())
        saved, digest = simulator.save(), simulator.digest()
        taken = [actions.draw() for _ in range(5)]
        seen = [(simulator.step(action), simulator.digest()) for action in taken]
        simulator.reset(seed + 100)
        simulator.restore(saved)
        assert simulator.digest() == digest
        for action, (expected, after) in zip(taken, seen, strict=True):
            step = simulator.step(action)
            assert same(step.observation, expected.observation)
            assert step.reward == expected.reward
            assert simulator.digest() == after


@pytest.mark.parametrize("name", ["world", "copied"])
@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_another_process_is_restored_exactly(world: str, name: str, form: str) -> None:
    env = make(f"{world}:{name}", form=form)
    assert env.action_space == gym.spaces.MultiDiscrete([2, 3], start=[0, 1])
    observation, info = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    assert info["action_mask"].all()
    restored_runs(env)
    env.close()


def test_a_simulator_in_plain_python_is_restored_exactly() -> None:
    env = make(FERRY)
    restored_runs(env)
    simulator = make_simulator(env)
    simulator.reset(0)
    assert simulator.digest() is not None
    assert simulator.random_sources() == 2  # the ferry's, and the one of every gymnasium.Env
    before = simulator.random_state()
    simulator.step(0)
    assert simulator.random_state() != before
    env.close()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_a_simulator_in_another_language(tmp_path: Path, capsys: Any) -> None:
    text = f"bridge:node {ROOT / 'examples/bridge/lander.js'}"
    env = make(text, render_mode="rgb_array")
    restored_runs(env)
    env.reset(seed=1)
    picture = env.render()
    assert picture.shape == (32, 32, 3)
    assert picture[10].max() == 255  # at a height of 20
    env.close()
    with pytest.raises(EnvironmentFault, match="cannot fly"):
        make(text).remote.ask("fly")

    agent = tmp_path / "agent.py"
    agent.write_text("def burn(seen):\n    return [[0, -0.7 - one[1]] for one in seen]\n")
    study = str(tmp_path / "study")
    words = ["collect", text, f"{agent}:burn", "--scores", "logits", "-o", study, "--n", "1"]
    words += ["--gamma", "0.9", "--natural", "2", "--spread", "0", "--trials", "4"]
    assert main([*words, "--workers", "1", "--opening", "2"]) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "study" / "study.db")) as database:
        database.execute("DELETE FROM meta WHERE name = 'signature'")  # as from somebody else
        database.commit()
    capsys.readouterr()
    more = ["export", study, "-o", "minari:lander-v0"]
    assert main(more) == 2
    assert f"would run bridge:node {ROOT}" in capsys.readouterr().err
    with sm.Study.open(study, trust=True) as opened:
        assert opened.job().environment.text == text


def test_an_environment_behind_the_bridge_is_the_same_as_before_it() -> None:
    near, far = gym.make("CartPole-v1"), make(f"{CHILD}CartPole-v1")
    assert near.observation_space == far.observation_space
    assert same(near.reset(seed=5)[0], far.reset(seed=5)[0])
    for action in (0, 1, 1, 0, 1):
        here, there = near.step(action), far.step(action)
        assert same(here[0], there[0])
        assert here[1:4] == there[1:4]
    far.close()


def test_a_study_runs_over_the_bridge(tmp_path: Path) -> None:
    def steer(observations: np.ndarray) -> np.ndarray:
        wanted = np.sign(5 - observations[:, 1:]) + 1
        return np.asarray(3.0 * (wanted == np.arange(3)))

    policy = sm.load_policy(steer, kind="logits")
    settings = sm.Settings(gamma=1 - 1e-9, horizon_error=0.99, trials=8, n_values=(1, 2))
    with sm.Study.create(tmp_path / "study", FERRY, policy, settings) as study:
        assert study.diagnosis["way"] == "snapshot"
        assert study.diagnosis["environment_deterministic"] is False
        study.collect(natural=4, spread=2, workers=1)
        assert study.tuples().criticalities.shape == (6, 2)


def test_the_doctor_finds_a_child_that_leaks(world: str) -> None:
    diagnosis = sm.examine(
        EnvironmentSpec.parse(f"{world}:world", {"leak": True}).make, way="snapshot"
    )
    assert not diagnosis.measurable


def test_what_the_child_no_longer_needs_is_forgotten(world: str) -> None:
    env = make(f"{world}:copied")
    env.reset(seed=0)
    kept = [env.remote.save() for _ in range(3)]
    assert env.remote.hello["keeps"]
    states = [one.state for one in kept]
    del kept[:2]
    gc.collect()
    env.remote.save()
    with pytest.raises(EnvironmentFault, match="restore failed there: KeyError"):
        env.remote.ask("restore", state=states[0])
    env.remote.ask("restore", state=states[2])
    env.close()


def test_a_command_is_code_that_has_to_be_trusted() -> None:
    assert code_named(EnvironmentSpec.parse(FERRY)) == [f"{FERRY}()"]


def test_files_of_a_command_are_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sim.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert EnvironmentSpec.parse("bridge:python sim.py").text == f"bridge:python {tmp_path}/sim.py"


SAYS = """
import json, struct, sys
text = json.dumps({!r}).encode()
sys.stdin.buffer.read(8)
sys.stdout.buffer.write(struct.pack(">II", len(text), 0) + text)
sys.stdout.flush()
input()
"""


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "raise SystemExit('no board')",
            r"the process ended \(status 1\) when asked to hello",
        ),
        (
            "print('Loading the physics engine...'); input()",
            "something else than a message",
        ),
        (SAYS.format({"protocol": 2}), "speaks protocol 2 of the bridge, not 1"),
        (SAYS.format({"protocol": 1}), "does not describe its spaces .KeyError: 'action_space'"),
        (SAYS.format([1]), "its answer to 'hello' is no JSON object"),
        (SAYS.format({"error": "out of fuel"}), "hello failed there: out of fuel"),
    ],
)
def test_a_child_that_breaks_the_protocol_is_named(tmp_path: Path, code: str, text: str) -> None:
    path = tmp_path / "child.py"
    path.write_text(code)
    with pytest.raises((EnvironmentFault, InvalidInput), match=text):
        BridgedEnvironment([sys.executable, "-S", str(path)], "sim")


def test_bad_commands_are_refused(world: str) -> None:
    with pytest.raises(InvalidInput, match="name the command of a simulator after the colon"):
        make("bridge: ")
    with pytest.raises(InvalidInput, match="cannot start 'no-such-program': No such file"):
        make("bridge:no-such-program")
    with pytest.raises((InvalidInput, EnvironmentFault), match="RuntimeError: no licence"):
        make(f"{world}:failing")


def test_the_child_is_written_for_old_pythons() -> None:
    source = (ROOT / "src/safemargin/environments/bridge_child.py").read_text()
    ast.parse(source, feature_version=(3, 8))
    assert "import numpy" not in source.replace("            import numpy", "")  # only for arrays


def test_a_message_is_what_the_page_says() -> None:
    """docs/environments.md describes the messages; an array travels as its bytes."""
    from safemargin.environments.bridge import _decoded, _encoded

    raw: list[bytes] = []
    sent = _encoded({"a": np.arange(3, dtype="<i2"), "b": (1, [2.5])}, raw)
    array = {"array": "<i2", "shape": [3], "at": 0}
    assert sent == {"a": array, "b": {"tuple": [1, [2.5]]}}
    assert raw == [struct.pack("<3h", 0, 1, 2)]
    assert _decoded(array, raw[0]).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="arrays of object cannot cross"):
        _decoded({"array": "O", "shape": [1], "at": 0}, b"")
