"""One perturbed trial of a moment, played again, with pictures where the environment draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from safemargin.core.records import Floats
from safemargin.criticality.estimation import trial_randomness, trial_streams
from safemargin.criticality.perturbations import History
from safemargin.criticality.plans import Planner
from safemargin.criticality.rollouts import Point, Runner
from safemargin.engines import Job
from safemargin.environments import make_simulator
from safemargin.replay.pictures import Camera, encode
from safemargin.replay.recordings import Recording


@dataclass(frozen=True, slots=True, eq=False)
class PlayedTrial:
    """A trial, step by step."""

    number: int
    """Its index among the trials of its n."""
    random_steps: int
    rewards: Floats  # [steps]
    pictures: tuple[bytes, ...]  # [steps + 1], JPEG; none where the environment does not draw
    discounted: float
    """The discounted return up to the horizon."""


class TrialPlayer:
    """Plays trials of moments in one environment; belongs to one thread."""

    def __init__(self, job: Job, camera: Camera | None) -> None:
        """Without a camera, trials are played in an environment that does not draw."""
        self.job = job
        self.camera = camera
        if camera is None:
            self.simulator = make_simulator(job.environment.make(), way=job.way)
        else:
            self.simulator = camera.simulator
        self.runner = Runner(
            self.simulator, job.policy, job.settings, perturbation=job.perturbation,
            reference=job.reference,
        )  # fmt: skip
        self._at: tuple[Recording, int] | None = None
        self._point: Point | None = None
        self._first: list[bytes] = []

    def play(
        self,
        recording: Recording,
        step: int,
        n: int,
        number: int,
        *,
        exact: bool,
        stop: Callable[[], bool] = lambda: False,
    ) -> PlayedTrial:
        """Play the trial of that number with n mistakes, exactly as it was measured.

        `exact`: every sequence of actions was measured once (`Estimate.exact`).
        """
        point = self._go_to(recording, step)
        runner, simulator, settings = self.runner, self.simulator, self.job.settings
        keys = (*recording.episode.key.stream_keys, step)
        mask = point.snapshot.mask
        mistakes = runner.mistakes
        planner = Planner(
            settings,
            runner.random_actions,
            keys,
            mistakes,
            enumerable=exact,
            mask=mask,
        )
        history = History(runner.random_actions, point.earlier)
        uniforms = planner.plan(n).uniforms(number)  # [n, width]
        randomness = trial_randomness(runner, self.job.randomness)
        streams = trial_streams(settings.seed, randomness, keys, number)
        simulator.restore(point.snapshot)
        if streams.environment is not None:
            simulator.reseed(streams.environment)
        memory = point.memory
        gained: list[tuple[float, ...]] = []
        pictures = list(self._first)
        while not simulator.ended and len(gained) < settings.horizon and not stop():
            rows, (memory,) = runner.scores([simulator.observation], [memory])
            if len(gained) < len(uniforms):
                history.observation, history.mask = simulator.observation, simulator.mask
                uniform = uniforms[len(gained)]
                action = runner.err(mistakes, uniform, history, rows[0], streams.policy)
            elif runner.successor is not None:
                (action,), _ = runner.successor.actions(runner, [simulator])
            else:
                action = runner.choose(rows[0], streams.policy, simulator.mask)
            gained.append(runner.gained(simulator.step(action)))
            pictures += self._look()
        return PlayedTrial(
            number=number,
            random_steps=min(len(uniforms), len(gained)),
            rewards=np.array([first for first, *_ in gained]),
            pictures=tuple(pictures),
            discounted=runner.returns(gained)[0],
        )

    def close(self) -> None:
        """Close the environment."""
        self.simulator.close()

    def _go_to(self, recording: Recording, step: int) -> Point:
        if self._point is None or self._at != (recording, step):
            self._point = self.runner.go_to(recording.episode, step, recording.earlier_lives)
            self._at = recording, step
            # An emulator's screen is not part of its state, so its picture is kept as well.
            self._first = self._look()
        return self._point

    def _look(self) -> list[bytes]:
        """Return the picture of this moment in a list; an empty one without a camera."""
        if self.camera is None:
            return []
        self.camera.forget()
        return [encode(self.camera.picture())]
