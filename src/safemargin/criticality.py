"""True criticality at one moment, by perturbed rollouts from its saved state (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.coalescing import Meetings
from safemargin.environments import EnvironmentSpec, make_simulator
from safemargin.errors import EnvironmentFault, InvalidInput, NotMeasurable
from safemargin.plans import Plan, Planner
from safemargin.policies import load_policy
from safemargin.policies.base import Policy, ScoreKind
from safemargin.records import Array, Episode, EpisodeKey, Estimate, Floats, Measurement
from safemargin.rollouts import Point, Runner, Streams
from safemargin.seeding import Purpose, stream
from safemargin.settings import Settings

LEFT_FOR = 16
"""So many random actions are taken between saving a point and proving its snapshot."""

PROVED_AGAIN = 32
"""After the trials of each n, so many steps are proven once more."""


@dataclass(frozen=True, slots=True)
class Randomness:
    """What is random besides the perturbation, and so must be drawn anew in each trial."""

    environment: bool
    policy: bool

    @property
    def none(self) -> bool:
        return not (self.environment or self.policy)


class MomentMeasurer:
    """Estimates c*(t, n) for any n at one moment of one recorded episode.

    Trial j draws the same random actions for every n (see `plans`) and, where something else is
    random, meets the same noise as the j-th unperturbed trial: differences between n, and between
    perturbed and unperturbed, are then less noisy, and each trial still follows the definition.
    """

    def __init__(
        self,
        runner: Runner,
        episode: Episode,
        step: int,
        randomness: Randomness,
        *,
        earlier_lives: Sequence[Array] = (),
    ) -> None:
        self.runner = runner
        self.settings = runner.settings
        self.randomness = randomness
        self.episode = episode
        self.step = step
        self.earlier_lives = earlier_lives
        # One n of each moment; over a study, all of them.
        n_values = runner.settings.n_values
        self._repeated_n = n_values[(episode.key.index + step) % len(n_values)]
        self.keys = (*episode.key.stream_keys, step)
        self.steps = 0
        self.point = runner.go_to(episode, step, earlier_lives)
        self.meetings = Meetings(self.settings.horizon) if randomness.none else None
        self._leave()
        self._prove(meetings=self.meetings)
        self.steps += sum(map(len, earlier_lives)) + step
        self.steps += min(episode.steps - step, self.settings.horizon)
        self.planner = Planner(
            self.settings,
            runner.random_actions,
            self.keys,
            enumerable=randomness.none and self.point.snapshot.mask is None,
        )
        self._unperturbed: list[float] = []
        if randomness.none:  # the recorded episode is the unperturbed run: no trial needed
            self._unperturbed.append(runner.discounted(episode.rewards[step:]))

    def measure(self, n: int) -> Measurement:
        """Trials as the plan has them, until its rule is content."""
        plan = self.planner.plan(n)
        rule = plan.rule
        before = self.steps
        perturbed: list[float] = []
        while not rule.stopped:
            trial = len(perturbed)
            perturbed.append(self._return(plan.uniforms(trial), trial))
            rule.add(self._unperturbed_return(trial) - perturbed[-1])
        self._prove(steps=PROVED_AGAIN)
        if n == self._repeated_n:
            self._repeat_some(plan, perturbed)
        used = self._unperturbed[: 1 if self.randomness.none else len(perturbed)]
        estimate = Estimate(
            n=n,
            mean=rule.mean,
            half_width=0.0 if plan.exact else rule.half_width,
            trials=rule.trials,
            exact=plan.exact,
            unperturbed=float(np.mean(used)),
            capped=not rule.sure,
        )
        return Measurement(
            estimate=estimate,
            perturbed=np.asarray(perturbed),
            unperturbed=np.asarray(used),
            steps=self.steps - before,
        )

    def _leave(self) -> None:
        """Let something else happen: what the snapshot does not hold is then no longer there."""
        generator = stream(self.settings.seed, Purpose.DOCTOR, *self.keys)
        uniforms = generator.random((LEFT_FOR, self.runner.random_actions.width))
        self.steps += self.runner.leave(self.point, uniforms)

    def _prove(self, *, steps: int | None = None, meetings: Meetings | None = None) -> None:
        """EnvironmentFault where the restored state no longer repeats the recorded episode."""
        if not self.runner.repeats(
            self.point, self.episode, self.step, steps=steps, meetings=meetings
        ):
            raise EnvironmentFault(
                f"a rollout from the restored state at step {self.step} of episode "
                f"{self.episode.key} did not repeat the recorded episode: the environment hides "
                "state from its snapshot; run the doctor on it"
            )

    def _repeat_some(self, plan: Plan, returns: list[float]) -> None:
        """Run a few trials once more in an environment that no trial has touched.

        State that only mistakes reach is not on the recorded way, and what one trial leaves behind
        may change the next. The trial that lost most is repeated from the start of the game; the
        one that lost least and two others after a reset.
        """
        generator = stream(self.settings.seed, Purpose.DOCTOR, *self.keys)
        others = generator.integers(len(returns), size=2)
        worst = int(np.argmin(returns))
        point = self.runner.go_to(self.episode, self.step, self.earlier_lives)
        self.steps += sum(map(len, self.earlier_lives)) + self.step
        for trial in (worst, int(np.argmax(returns)), *map(int, others)):
            rollout, steps = self.runner.run_trial(
                point, plan.uniforms(trial), self._streams(trial)
            )
            self.steps += steps
            if self.runner.discounted(rollout.rewards) != returns[trial]:
                raise EnvironmentFault(
                    f"a trial at step {self.step} of episode {self.episode.key} gives another "
                    "return in an environment that other trials have not touched: the environment "
                    "hides state that only mistakes reach; run the doctor on it, and see "
                    "register_state"
                )
            self.runner.simulator.reset(self.episode.seed)

    def _unperturbed_return(self, trial: int) -> float:
        if self.randomness.none:
            return self._unperturbed[0]
        while len(self._unperturbed) <= trial:
            self._unperturbed.append(self._return(self._nothing, len(self._unperturbed)))
        return self._unperturbed[trial]

    @property
    def _nothing(self) -> Floats:
        return np.empty((0, self.runner.random_actions.width))

    def _return(self, uniforms: Floats, trial: int) -> float:
        """The discounted return of one trial."""
        rollout, steps = self.runner.run_trial(
            self.point, uniforms, self._streams(trial), self.meetings
        )
        self.steps += steps
        return self.runner.discounted(rollout.rewards)

    def _streams(self, trial: int) -> Streams:
        seed = self.settings.seed
        return Streams(
            environment=stream(seed, Purpose.TRIAL_ENVIRONMENT, *self.keys, trial)
            if self.randomness.environment
            else None,
            policy=stream(seed, Purpose.TRIAL_POLICY, *self.keys, trial)
            if self.randomness.policy
            else None,
        )


def true_criticality(
    env: gym.Env[Any, Any] | str,
    policy: Policy | Any,
    *,
    step: int,
    n: int | Sequence[int],
    seed: int = 0,
    settings: Settings | None = None,
    scores: ScoreKind | None = None,
) -> list[Estimate]:
    """Algorithm 1 at one step of the episode that starts from `seed`.

    Whether the environment can be saved and restored, and whether it is deterministic, is found
    out at that very step: a restored run is compared with the uninterrupted one. Where saving
    fails, the episode is replayed from its start instead; where that fails too, NotMeasurable.
    """
    n_values = list(np.atleast_1d(n).tolist())
    if not n_values or any(not isinstance(value, int) or value < 1 for value in n_values):
        raise InvalidInput(f"n must be whole numbers from 1 on, got {n_values}")
    given = Settings() if settings is None else settings
    settings = replace(given, n_values=tuple(sorted(set(n_values))))
    loaded = load_policy(policy, kind=scores)
    live = EnvironmentSpec.parse(env).make() if isinstance(env, str) else env
    loaded.check(live)
    key = EpisodeKey("natural", seed)
    for way in ("snapshot", "replay"):
        runner = Runner(make_simulator(live, way=way), loaded, settings)
        episode = runner.run_episode(key, seed=seed)
        if not 0 <= step < episode.steps:
            raise InvalidInput(
                f"step {step} lies outside the episode of {episode.steps} steps from seed {seed}"
            )
        try:
            point = runner.go_to(episode, step)
            randomness = find_randomness(runner, point)
            measurer = MomentMeasurer(runner, episode, step, randomness)
        except EnvironmentFault:
            if way == "replay":
                raise
            continue
        return [measurer.measure(value).estimate for value in n_values]
    raise NotMeasurable("no way to return to a step of this environment was found")


def find_randomness(runner: Runner, point: Point) -> Randomness:
    """Whether the environment draws random numbers after a point, and the policy's choice does."""
    simulator, settings = runner.simulator, runner.settings
    actions = stream(settings.seed, Purpose.DOCTOR)
    draws = False
    for length in (0, *settings.n_values):
        uniforms = actions.random((length, runner.random_actions.width))
        simulator.restore(point.snapshot)
        before = simulator.random_state()
        runner.run_trial(point, uniforms, Streams(policy=actions))
        draws = draws or simulator.random_state() != before
    return Randomness(environment=draws, policy=not runner.policy_actions.deterministic)
