"""What all Atari trainers do around their algorithm: start or resume, play, report, save.

A trainer brings its own `Settings`, a `Learner` that updates a network, and `Actors` that play
groups of games and let the learner work in between; `main` does the rest.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from atari_training import (
    ActorCritic,
    Curve,
    DuelingQ,
    Games,
    load_checkpoint,
    read_progress,
    save_checkpoint,
)
from torch import Tensor

REPORT_SECONDS = 10
SAVE_SECONDS = 45
PLANNED_STEPS = 20_000_000


@dataclass(frozen=True)
class Settings:
    """What can be set in every training; each field is an option of the command line."""

    groups: int = 2
    games_per_group: int = 128
    learning_rate: float = 1e-4
    eager: bool = field(default=False, metadata={"help": "do without CUDA graphs"})

    @property
    def games(self) -> int:
        """How many games there are in all groups together."""
        return self.groups * self.games_per_group

    @property
    def parts(self) -> list[slice]:
        """The slice of each group's games among all games."""
        size = self.games_per_group
        return [slice(n * size, (n + 1) * size) for n in range(self.groups)]


class Learner(ABC):
    """A network with its optimizer, whose updates run as one CUDA graph on a GPU."""

    statistic_names: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        network: ActorCritic | DuelingQ,
        settings: Settings,
        device: torch.device,
        *,
        learning_rate: float | Tensor,
        adam_epsilon: float,
    ) -> None:
        self.device = device
        self.network: Any = network.to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(),
            lr=learning_rate,
            eps=adam_epsilon,
            fused=True,
            capturable=device.type == "cuda",
        )
        self._statistics = torch.zeros(1 + len(self.statistic_names), device=device)
        self._update = self._plain_update
        self._captured = settings.eager or device.type != "cuda"

    @abstractmethod
    def _plain_update(self) -> None:
        """One step of the optimizer, on tensors that stay where they are."""

    def update(self) -> None:
        """One step of the optimizer."""
        if not self._captured:
            self._captured = True
            self._update = capture_cuda_graph(self._plain_update)
        self._update()

    def autocast(self) -> torch.autocast:
        """Compute all but the last layers in bfloat16 on the GPU."""
        return torch.autocast(
            self.device.type,
            torch.bfloat16,
            enabled=self.device.type == "cuda",
            cache_enabled=False,
        )

    def load(self, directory: Path) -> None:
        """Continue from a checkpoint, if there is one."""
        load_checkpoint(directory, self.network, self.optimizer)

    def set_progress(self, fraction: float) -> None:  # noqa: B027, many have no schedule
        """Follow schedules, where there are any, to this fraction of the planned steps."""

    def count(self, *statistics: Tensor) -> None:
        """Record the statistics of one update, in the order of `statistic_names`."""
        self._statistics += torch.stack([torch.ones_like(statistics[0]), *statistics])

    def read_statistics(self) -> str:
        """Return the number of updates since the last call and the means of their statistics."""
        count, *sums = self._statistics.tolist()
        self._statistics.zero_()
        means = [
            f"{name} {total / max(count, 1.0):.4f}"
            for name, total in zip(self.statistic_names, sums, strict=True)
        ]
        return " ".join([f"updates {count:.0f}", *means])


class Actors(ABC):
    """The groups of games, which always have a step under way."""

    def __init__(self, groups: list[Games], learner: Any) -> None:
        self.groups = groups
        self.learner = learner
        self.parts: list[slice] = learner.settings.parts

    @abstractmethod
    def play(self) -> int:
        """Play for a while, learning in between; gives the number of steps in all games."""

    def mean_of(self, attribute: str) -> float:
        """Return the mean of the recent `life_returns` or `game_scores`."""
        values = [value for group in self.groups for value in getattr(group, attribute)]
        return float(np.mean(values)) if values else float("nan")


def train(
    make_learner: Callable[[int, Any, torch.device], Learner],
    make_actors: Callable[[list[Games], Any], Actors],
    settings: Settings,
    *,
    game: str,
    directory: Path,
    planned_steps: int,
    minutes: float,
    seed: int,
) -> None:
    """Train until the planned steps or the minutes are over; resume from a checkpoint."""
    started = time.monotonic()
    progress = read_progress(directory)
    steps, seconds = progress.get("steps", 0), progress.get("seconds", 0.0)
    planned_steps = planned_steps or progress.get("planned_steps", PLANNED_STEPS)
    first_seed = (seed * 1_000_003 + steps) % 2**30
    groups = [
        Games(game, settings.games_per_group, first_seed + part.start) for part in settings.parts
    ]
    action_count = groups[0].action_count
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = True
    learner = make_learner(action_count, settings, device)
    learner.load(directory)
    learner.set_progress(steps / planned_steps)
    curve = Curve(directory, steps)
    actors = make_actors(groups, learner)
    pieces = pieces_with_this_one(progress, planned_steps=planned_steps, **asdict(settings))
    print(
        f"{game}: {action_count} actions, start at step {steps} on {device}, "
        f"{time.monotonic() - started:.1f} s to set up",
        flush=True,
    )

    def save() -> None:
        counters = {
            "game": game,
            "actions": action_count,
            "steps": steps,
            "seconds": seconds + time.monotonic() - started,
            "planned_steps": planned_steps,
            "seed": seed,
            "pieces": pieces,
        }
        save_checkpoint(directory, learner.network, learner.optimizer, counters)

    reported_at, reported_steps, saved_at = time.monotonic(), steps, time.monotonic()
    while steps < planned_steps and time.monotonic() - started < minutes * 60:
        steps += actors.play()
        learner.set_progress(steps / planned_steps)
        now = time.monotonic()
        if now - reported_at > REPORT_SECONDS:
            life_return = actors.mean_of("life_returns")
            score = actors.mean_of("game_scores")
            curve.add(steps, seconds + now - started, life_return, score)
            speed = (steps - reported_steps) / (now - reported_at)
            print(
                f"{now - started:.0f} s, step {steps}, {speed:.0f} steps/s, "
                f"return per life {life_return:.2f}, score {score:.1f}, "
                f"{learner.read_statistics()}",
                flush=True,
            )
            reported_at, reported_steps = now, steps
        if now - saved_at > SAVE_SECONDS:
            save()
            saved_at = now
    save()
    print(f"stopped at step {steps} after {time.monotonic() - started:.0f} s", flush=True)


def pieces_with_this_one(progress: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """Return the pieces in which an agent was trained: first step, command, options."""
    command = shlex.join(["python", f"reproduction/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    piece = {"first_step": progress.get("steps", 0), "command": command, **options}
    return [*progress.get("pieces", []), piece]


def capture_cuda_graph(update: Callable[[], None]) -> Callable[[], None]:
    """Record `update` as one CUDA graph after three ordinary runs, which change what it changes.

    `update` must read and write only tensors that stay where they are.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    return graph.replay


def main(
    description: str,
    settings: type[Settings],
    make_learner: Callable[[int, Any, torch.device], Learner],
    make_actors: Callable[[list[Games], Any], Actors],
) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("game", help="name of the game as in ale-py, for example beam_rider")
    parser.add_argument(
        "--out",
        dest="directory",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="where the checkpoint is, or will be",
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument(
        "--steps",
        dest="planned_steps",
        type=int,
        default=0,
        metavar="STEPS",
        help="the whole plan, which schedules follow; default: as planned before, "
        f"else {PLANNED_STEPS}",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    for entry in fields(settings):
        option, default = "--" + entry.name.replace("_", "-"), entry.default
        kind = {"action": "store_true"} if isinstance(default, bool) else {"type": type(default)}
        text = entry.metadata.get("help", f"default: {default}")
        parser.add_argument(option, default=default, help=text, **kind)
    arguments = vars(parser.parse_args())
    chosen = settings(**{entry.name: arguments.pop(entry.name) for entry in fields(settings)})
    train(make_learner, make_actors, chosen, **arguments)
