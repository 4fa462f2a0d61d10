"""What the pages of the documentation speak of and leave to the reader: agents, studies, files."""

from __future__ import annotations

import functools
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from helpers.paths import ROOT, WORLDS
from helpers.rl_zoo import write_run
from helpers.small_policies import sb3_model, write_careful_driver
from safemargin.cli import main

QUICK = "--natural 24 --spread 8 --n 1,2 --gamma 0.9 --opening 10 --workers 1"
"""How a study is collected where a page would take the defaults."""
SECOND_CHECKPOINT = """
import numpy as np

def values(observations):
    lean = observations @ np.array([0.1, 0.3, 1.0, 0.5])
    return np.stack([-lean, lean], axis=1)
"""
"""What `gate` compares with the agent of the pages."""
WITH_A_COST = """
import gymnasium as gym

class Costly(gym.Wrapper):
    def step(self, action):
        seen, reward, terminated, truncated, info = self.env.step(action)
        return seen, reward, terminated, truncated, {**info, "cost": float(abs(seen[0]))}

def make():
    return Costly(gym.make("CartPole-v1"))
"""
SLUGGISH = "def sluggish(generator, action, history):\n    return action\n"
TEAM = """
import numpy as np

def first(observations):
    return np.arange(9.0)[None].repeat(len(observations), axis=0)

first.kind = "q"

def team():
    return {"player_1": first, "player_2": first}
"""


def write_studies(folder: Path) -> None:
    """Write an agent, two studies of checkpoints, their margins and a baseline."""
    import safemargin as sm

    shutil.copy(ROOT / "src/safemargin/policies/zoo/cartpole.onnx", folder / "agent.onnx")
    (folder / "second.py").write_text(SECOND_CHECKPOINT)
    (folder / "agent.py").write_text(f"{SECOND_CHECKPOINT}\n\nvalues.kind = 'q'\nmake = values\n")
    for name, agent in (("study", "agent.onnx"), ("new", "second.py:values --scores q")):
        run(f"collect CartPole-v1 {folder}/{agent} -o {folder}/runs/{name} {QUICK}")
    for name in ("pong", "cartpole", "old"):
        shutil.copytree(folder / "runs/study", folder / "runs" / name)
    with sm.Study.open(folder / "runs/study") as study:
        study.fit(0.9).save(folder / "margins.json")
    run(f"gate {folder}/runs/old --save-baseline {folder}/baseline.json")


def run(command: str) -> None:
    """Run a command that must succeed."""
    assert main(command.split()) == 0, command


# -- what only some pages need -------------------------------------------------------------------


def _road(folder: Path) -> None:
    """A study from which something can be learned: losses, and where the agent is wrong."""
    driver = write_careful_driver(folder / "driver.onnx")
    size = "--natural 60 --spread 6 --n 1,2 --gamma 0.5 --workers 1"
    run(f"collect {WORLDS}:make_wrong_road {driver} -o {folder}/runs/road {size}")
    run(f"learn {folder}/runs/road --target regret -o {folder}/regret.json")


def _learned(folder: Path) -> None:
    """That study, with a learned proxy."""
    if not (folder / "runs/road").exists():
        _road(folder)
    run(f"learn {folder}/runs/road")


def _models(folder: Path) -> None:
    """Stable-Baselines3 models, and a training's checkpoints."""
    (folder / "checkpoints").mkdir()
    for name in ("model", "new", "checkpoints/agent-2"):
        sb3_model("ppo").save(folder / f"{name}.zip")
    for name in ("old", "checkpoints/agent-1"):
        sb3_model("a2c").save(folder / f"{name}.zip")


def _grid(folder: Path) -> None:
    """A model of the flat view of a MiniGrid."""
    from minigrid.wrappers import FlatObsWrapper

    env: Any = FlatObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0"))
    _untrained(env).save(folder / "model.zip")


def _untrained(env: Any) -> Any:
    from stable_baselines3 import PPO

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's advice about tiny batches
        network = {"net_arch": [4]}
        return PPO("MlpPolicy", env, policy_kwargs=network, n_steps=8, seed=0, device="cpu")


def _training(folder: Path) -> None:
    """A training folder of rl-zoo, with a best model."""
    run_of = folder / "logs/ppo/CartPole-v1_1"
    write_run(run_of, "CartPole-v1", sb3_model("ppo"))
    shutil.copy(run_of / "CartPole-v1.zip", run_of / "best_model.zip")


def _cleanrl(folder: Path) -> None:
    """The weights that CleanRL's dqn.py saves."""
    import torch

    sizes = ((0, 4, 120), (2, 120, 84), (4, 84, 2))
    network = {f"network.{at}": torch.nn.Linear(*size) for at, *size in sizes}
    weights = {
        f"{name}.{part}": getattr(layer, part).detach()
        for name, layer in network.items()
        for part in ("weight", "bias")
    }
    path = folder / "runs/CartPole-v1__dqn__1/dqn.cleanrl_model"
    path.parent.mkdir(parents=True)
    torch.save(weights, path)


def _team(folder: Path) -> None:
    """Two players of noughts and crosses."""
    (folder / "agents.py").write_text(TEAM)


def _own_files(folder: Path) -> None:
    """An environment with a cost, a package with Q values, and a fault."""
    (folder / "my").mkdir()
    (folder / "my" / "__init__.py").touch()
    (folder / "my" / "package.py").write_text(SECOND_CHECKPOINT.replace("values", "q_values"))
    (folder / "costly.py").write_text(WITH_A_COST)
    (folder / "faults.py").write_text(SLUGGISH)


PROPS: dict[str, Callable[[Path], None]] = {
    r"\.zip|checkpoints/|EvaluationWatch|load_policy\(model": _models,
    r"DoorKey": _grid,
    r"rl-zoo:": _training,
    r"cleanrl:": _cleanrl,
    r"agents\.py": _team,
    r"my\.|faults\.|Pendulum|\"cost\"": _own_files,
    r"safemargin learn|--by regret|regret\.json": _road,
    r"--proxy learned|with_value": _learned,
}
"""A text of a page → what the reader has beforehand; later ones replace files of earlier ones."""


class Props:
    """Makes what a page needs once, and copies it into a working folder."""

    def __init__(self, kept: Path) -> None:
        self.kept = kept
        self._made = functools.cache(self._make)

    def put(self, text: str, folder: Path) -> None:
        """Put what a block needs into a folder."""
        shutil.copytree(self._made(write_studies), folder, dirs_exist_ok=True)
        for pattern, make in PROPS.items():
            if re.search(pattern, text):
                shutil.copytree(self._made(make), folder, dirs_exist_ok=True)

    def _make(self, make: Callable[[Path], None]) -> Path:
        folder = self.kept / make.__name__
        folder.mkdir()
        make(folder)
        return folder


# -- Python --------------------------------------------------------------------------------------


class RobotEnv(gym.Env[np.ndarray, int]):
    """An environment whose state is behind an engine."""


def names(text: str) -> dict[str, Any]:
    """What the pages take for granted: an agent, its environment, margins, some scores."""
    import safemargin as sm

    policy = sm.load_policy("agent.onnx")
    env = gym.make("CartPole-v1")
    drawn = np.random.default_rng(0)
    proxies = drawn.uniform(1, 8, 200)
    found = {
        "sm": sm,
        "gym": gym,
        "np": np,
        "env": env,
        "policy": policy,
        "monitor": sm.Monitor("margins.json", tolerance=1e-9, call_at=2),  # calls always
        "margins": sm.Margins.load("margins.json"),
        "scores": np.array([0.1, 2.3]),
        "scores_of_all": drawn.normal(size=(20, 2)),
        "observation": np.zeros(4, np.float32),
        "observations": np.zeros((3, 4), np.float32),
        "observation_shape": (4,),
        "proxies": proxies,
        "criticalities": proxies[:, None] * drawn.uniform(0, 1, (200, 4)),
        "n_values": [1, 2, 4, 8],
        "ask": lambda *question: 0,
        "action": 0,
        "own": 0,
        "tolerance": 0.5,
        "picture": None,
        "sluggish": lambda generator, action, history: action,
        "RobotEnv": RobotEnv,
    }
    if "[agents, actions]" in text:
        found["scores"] = found["scores_of_all"]
    for name, make in MADE.items():
        if re.search(rf"\b{name}\b", text) and not re.search(rf"(?m)^{name} = ", text):
            found[name] = make()
    return found


def _actor() -> Any:
    import torch

    agent = torch.nn.Module()
    agent.actor = torch.nn.Linear(4, 2)
    return agent


def _study() -> Any:
    """A study that holds nothing yet, of an environment with a cost."""
    import safemargin as sm

    Path("costly.py").write_text(WITH_A_COST)
    settings = sm.Settings(gamma=0.9, n_values=(1, 2), opening=10)
    return sm.Study.create("runs/anew", "costly.py:make", "agent.onnx", settings)


def _overseer() -> Any:
    """An overseer whose server is away, as it may be when an agent starts."""
    import safemargin as sm

    return sm.RemoteOverseer("http://127.0.0.1:9", name="arm 3", token="none", on_lost="go-on")


MADE: dict[str, Callable[[], Any]] = {
    "torch": lambda: __import__("torch"),
    "time": lambda: __import__("time"),
    "agent": _actor,
    "network": lambda: _actor().actor,
    "model": lambda: sb3_model("ppo"),
    "study": _study,
    "overseer": _overseer,
    "rewards": lambda: np.zeros(20),
}
"""A name that some blocks use → what makes it."""
