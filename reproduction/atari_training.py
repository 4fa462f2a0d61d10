"""What the Atari trainers share: games, networks, checkpoints and training curves."""

from __future__ import annotations

import csv
import itertools
import mmap
import multiprocessing
import os
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ale_py import AtariVectorEnv
from torch import Tensor, nn

from safemargin.environments.atari import VECTOR_OPTIONS

GAME_OPTIONS: dict[str, Any] = {**VECTOR_OPTIONS, "reward_clipping": False}
"""The games that studies measure, but with all points, for the scores; `Step.reward` is clipped."""

FRAME_SKIP: int = VECTOR_OPTIONS["frameskip"]
OBSERVATION_SHAPE: tuple[int, int, int] = (
    VECTOR_OPTIONS["stack_num"],
    VECTOR_OPTIONS["img_height"],
    VECTOR_OPTIONS["img_width"],
)
DISCOUNT = 0.99
WEIGHTS_FILE = "weights.pt"
OPTIMIZER_FILE = "optimizer.pt"
CURVE_FILE = "curve.csv"
CURVE_COLUMNS = ["steps", "frames", "seconds", "return_per_life", "game_score"]


@dataclass
class Step:
    """The results of one step of all games of a group."""

    observation: np.ndarray
    """The new observations, uint8 [games, 4, 84, 84], valid until the next `send`."""
    points: np.ndarray
    """The rewards of the game."""
    reward: np.ndarray
    """The rewards clipped to -1, 0 or 1."""
    ended: np.ndarray
    """Whether the life or the game ended with this step."""
    restarted: np.ndarray
    """Whether this step only started a new game: its action and reward mean nothing."""


@dataclass
class _Memory:
    """Arrays shared between the trainer and the processes that run the games."""

    observations: np.ndarray
    actions: np.ndarray
    points: np.ndarray
    ended: np.ndarray
    frames: np.ndarray

    @classmethod
    def create(cls, count: int) -> _Memory:
        def shared(dtype: type, *shape: int) -> np.ndarray:
            buffer = mmap.mmap(-1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
            return np.frombuffer(buffer, dtype).reshape(shape)

        return cls(
            shared(np.uint8, count, *OBSERVATION_SHAPE),
            shared(np.int64, count),
            shared(np.float32, count),
            shared(np.bool_, count),
            shared(np.int64, count),
        )


def _run_games(game: str, part: slice, seed: int, memory: _Memory, pipe: Connection) -> None:
    """Run some games in a separate process; one message starts a step, one answers it."""
    environment = AtariVectorEnv(
        game, num_envs=part.stop - part.start, num_threads=1, **GAME_OPTIONS
    )
    memory.observations[part], information = environment.reset(seed=seed)
    memory.frames[part] = information["episode_frame_number"]
    pipe.send(int(environment.single_action_space.n))
    parent = os.getppid()
    while True:
        while not pipe.poll(2.0):
            if os.getppid() != parent:
                return
        pipe.recv_bytes()
        images, points, terminated, truncated, information = environment.step(memory.actions[part])
        memory.observations[part] = images
        memory.points[part] = points
        memory.ended[part] = terminated | truncated
        memory.frames[part] = information["episode_frame_number"]
        pipe.send_bytes(b".")


class Games:
    """A group of games stepped together, with the scores of those that finished.

    The games have the DeepMind preprocessing. A lost life is reported as an end while the game
    itself continues. They run in forked processes, since loading the game takes a tenth of a
    second for each: make them before the first use of the GPU.
    """

    def __init__(self, game: str, count: int, seed: int, workers: int = 0, window: int = 200):
        self.count = count
        self.life_returns: deque[float] = deque(maxlen=window)
        self.game_scores: deque[float] = deque(maxlen=window)
        self._memory = _Memory.create(count)
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        context = multiprocessing.get_context("fork")
        workers = min(workers or len(os.sched_getaffinity(0)), count)
        borders = [count * number // workers for number in range(workers + 1)]
        for start, stop in itertools.pairwise(borders):
            pipe, other_end = context.Pipe()
            arguments = (game, slice(start, stop), seed + start, self._memory, other_end)
            process = context.Process(target=_run_games, args=arguments, daemon=True)
            process.start()
            self._pipes.append(pipe)
            self._processes.append(process)
        self._ready = False
        self._action_count = 0
        self._life_return = np.zeros(count)
        self._score = np.zeros(count)

    def _wait_until_ready(self) -> None:
        if not self._ready:
            for pipe in self._pipes:
                self._action_count = pipe.recv()
            self._episode_frames = self._memory.frames.copy()
            self._ready = True

    @property
    def action_count(self) -> int:
        """How many actions the game has."""
        self._wait_until_ready()
        return self._action_count

    @property
    def episode_frames(self) -> np.ndarray:
        """How many frames each game has had, [games]; at the start, one and the no-ops."""
        self._wait_until_ready()
        return self._episode_frames

    @property
    def observation(self) -> np.ndarray:
        """The present observations, valid until the next `send`."""
        self._wait_until_ready()
        return self._memory.observations

    def send(self, actions: np.ndarray) -> None:
        """Start a step of all games; the emulator works while the caller continues."""
        self._wait_until_ready()
        self._memory.actions[:] = actions
        for pipe in self._pipes:
            pipe.send_bytes(b".")

    def receive(self) -> Step:
        """Wait for the step that was started with `send`."""
        for pipe in self._pipes:
            pipe.recv_bytes()
        points, ended = self._memory.points.copy(), self._memory.ended.copy()
        restarted = self._memory.frames < self._episode_frames
        self._episode_frames = self._memory.frames.copy()
        clipped = np.sign(points)
        self._life_return += clipped
        self._score += points
        # That a game was over shows only one step later, when a new one has started.
        self.game_scores.extend(self._score[restarted].tolist())
        self._score[restarted] = 0.0
        self.life_returns.extend(self._life_return[ended].tolist())
        self._life_return[ended] = 0.0
        return Step(self.observation, points, clipped, ended, restarted)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join()


class Torso(nn.Module):
    """The convolutional part of the Nature network, from uint8 images to features."""

    feature_count = 3136

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )

    def forward(self, observation: Tensor) -> Tensor:
        return self.layers(observation.float() / 255.0)


def _orthogonal(module: nn.Module, gain: float = 2**0.5) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)


class ActorCritic(nn.Module):
    """The Nature network with a policy head and a value head."""

    kind = "logits"

    def __init__(self, action_count: int) -> None:
        super().__init__()
        self.torso = Torso()
        self.hidden = nn.Sequential(nn.Linear(Torso.feature_count, 512), nn.ReLU())
        self.policy = nn.Linear(512, action_count)
        self.value = nn.Linear(512, 1)
        _orthogonal(self)
        _orthogonal(self.policy, 0.01)
        _orthogonal(self.value, 1.0)

    def both(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the action logits and the state values; the heads always compute in float32."""
        hidden = self.hidden(self.torso(observation))
        with torch.autocast(observation.device.type, enabled=False):
            hidden = hidden.float()
            return self.policy(hidden), self.value(hidden).squeeze(-1)

    def forward(self, observation: Tensor) -> Tensor:
        return self.both(observation)[0]


class DuelingQ(nn.Module):
    """The Nature network with separate streams for the state value and the advantages."""

    kind = "q"

    def __init__(self, action_count: int) -> None:
        super().__init__()
        self.torso = Torso()
        self.value_hidden = nn.Sequential(nn.Linear(Torso.feature_count, 512), nn.ReLU())
        self.advantage_hidden = nn.Sequential(nn.Linear(Torso.feature_count, 512), nn.ReLU())
        self.value = nn.Linear(512, 1)
        self.advantage = nn.Linear(512, action_count)

    def forward(self, observation: Tensor) -> Tensor:
        features = self.torso(observation)
        value_hidden = self.value_hidden(features)
        advantage_hidden = self.advantage_hidden(features)
        with torch.autocast(observation.device.type, enabled=False):
            advantage = self.advantage(advantage_hidden.float())
            centred = advantage - advantage.mean(1, keepdim=True)
            return self.value(value_hidden.float()) + centred


NETWORKS: dict[str, type[ActorCritic] | type[DuelingQ]] = {"logits": ActorCritic, "q": DuelingQ}


def _write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    temporary.replace(path)


def _to_storage(value: Any) -> Any:
    """Optimizer state on the CPU, its large tensors as bfloat16 to halve the file."""
    if isinstance(value, Tensor):
        return value.detach().cpu().to(torch.bfloat16 if value.numel() > 1 else value.dtype)
    if isinstance(value, dict):
        return {key: _to_storage(entry) for key, entry in value.items()}
    return [_to_storage(entry) for entry in value] if isinstance(value, list) else value


def save_checkpoint(
    directory: Path,
    network: ActorCritic | DuelingQ,
    optimizer: torch.optim.Optimizer,
    progress: dict[str, Any],
) -> None:
    """Save weights, optimizer and counters, and a copy under $OUT where that is set."""
    weights = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    content = {"kind": network.kind, "weights": weights, "progress": progress}
    _write_atomically(directory / WEIGHTS_FILE, lambda path: torch.save(content, path))
    state = _to_storage(optimizer.state_dict()["state"])
    _write_atomically(directory / OPTIMIZER_FILE, lambda path: torch.save(state, path))
    if "OUT" in os.environ:
        for name in (WEIGHTS_FILE, OPTIMIZER_FILE, CURVE_FILE):
            if (directory / name).exists():
                target = Path(os.environ["OUT"]) / directory.name / name
                _write_atomically(
                    target, lambda path, name=name: shutil.copy(directory / name, path)
                )


def load_checkpoint(
    directory: Path, network: ActorCritic | DuelingQ, optimizer: torch.optim.Optimizer
) -> None:
    """Load what `save_checkpoint` saved, if there is a checkpoint."""
    if not (directory / WEIGHTS_FILE).exists():
        return
    content = torch.load(directory / WEIGHTS_FILE, map_location="cpu", weights_only=True)
    network.load_state_dict(content["weights"])
    if (directory / OPTIMIZER_FILE).exists():
        state = torch.load(directory / OPTIMIZER_FILE, map_location="cpu", weights_only=True)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def read_progress(directory: Path) -> dict[str, Any]:
    """Return the counters of a checkpoint, or {} where there is none."""
    if not (directory / WEIGHTS_FILE).exists():
        return {}
    return torch.load(directory / WEIGHTS_FILE, map_location="cpu", weights_only=True)["progress"]


def load_network(path: Path) -> tuple[ActorCritic | DuelingQ, dict[str, Any]]:
    """Rebuild a trained network from its weights file, in evaluation mode on the CPU."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    network = NETWORKS[content["kind"]](content["progress"]["actions"])
    network.load_state_dict(content["weights"])
    return network.eval(), content["progress"]


class Curve:
    """The training curve as a CSV file; rows later than the checkpoint are dropped on resume."""

    def __init__(self, directory: Path, steps: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / CURVE_FILE
        rows: list[list[str]] = []
        if self.path.exists():
            with self.path.open(newline="") as file:
                rows = [row for row in list(csv.reader(file))[1:] if int(row[0]) <= steps]
        with self.path.open("w", newline="") as file:
            csv.writer(file).writerows([CURVE_COLUMNS, *rows])

    def add(self, steps: int, seconds: float, life_return: float, score: float) -> None:
        """Append one row."""
        row = [steps, steps * FRAME_SKIP, round(seconds, 1), round(life_return, 3), round(score, 2)]
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)
