"""One perturbed trial of a moment, played again with pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from safemargin.criticality import trial_streams
from safemargin.engines import Job
from safemargin.lanes import Streams
from safemargin.plans import Planner
from safemargin.recordings import Recording
from safemargin.records import Array, Floats
from safemargin.replay import Camera, encode
from safemargin.rollouts import Point, Runner


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """A trial as it went."""

    number: int
    """Among the trials of its n."""
    random_steps: int
    rewards: Floats  # [steps]
    actions: Array  # [steps] or [steps, dimensions]
    pictures: tuple[bytes, ...]  # [steps + 1], JPEG
    discounted: float
    """Its return, up to the horizon."""


class TrialCamera:
    """Plays trials of moments in an environment that draws; belongs to one thread."""

    def __init__(self, camera: Camera, job: Job) -> None:
        self.camera = camera
        self.job = job
        self.runner = Runner(camera.simulator, job.policy, job.settings)
        self._place: tuple[Recording, int] | None = None
        self._point: Point | None = None
        self._first = b""

    def play(
        self,
        recording: Recording,
        step: int,
        n: int,
        number: int,
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> Take:
        """The trial of that number for n random actions, exactly as it was measured."""
        point = self._go_to(recording, step)
        keys = (*recording.episode.key.stream_keys, step)
        planner = Planner(
            self.job.settings,
            self.runner.random_actions,
            keys,
            enumerable=self.job.randomness.none and point.snapshot.mask is None,
        )
        streams = trial_streams(self.job.settings.seed, self.job.randomness, keys, number)
        return self._play(point, planner.plan(n).uniforms(number), streams, number, stop)

    def _go_to(self, recording: Recording, step: int) -> Point:
        if self._point is None or self._place != (recording, step):
            self.camera.forget()
            self._point = self.runner.go_to(recording.episode, step, recording.earlier_lives)
            self._place = recording, step
            # An emulator's screen is not part of its state: it is kept beside it.
            self._first = encode(self.camera.picture())
        return self._point

    def _play(
        self,
        point: Point,
        uniforms: Floats,  # [n, width]
        streams: Streams,
        number: int,
        stop: Callable[[], bool],
    ) -> Take:
        runner, simulator = self.runner, self.camera.simulator
        simulator.restore(point.snapshot)
        if streams.environment is not None:
            simulator.reseed(streams.environment)
        memory = point.memory
        rewards: list[float] = []
        actions = []
        pictures = [self._first]
        while not simulator.ended and len(rewards) < runner.settings.horizon and not stop():
            rows, (memory,) = runner.scores([simulator.observation], [memory])
            if len(rewards) < len(uniforms):
                action = runner.random_actions(uniforms[len(rewards)], simulator.mask)
            else:
                action = runner.choose(rows[0], streams.policy, simulator.mask)
            rewards.append(simulator.step(action).reward)
            actions.append(action)
            self.camera.forget()
            pictures.append(encode(self.camera.picture()))
        return Take(
            number=number,
            random_steps=min(len(uniforms), len(rewards)),
            rewards=np.array(rewards),
            actions=np.array(actions),
            pictures=tuple(pictures),
            discounted=runner.discounted(rewards),
        )
