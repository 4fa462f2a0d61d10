"""True criticality at one moment, by perturbed rollouts from its saved state (Algorithm 1)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from safemargin.core.records import Array, Episode, Floats, Measurement
from safemargin.core.seeding import Purpose, stream
from safemargin.criticality import reference
from safemargin.criticality.batch import Streams, Trial, TrialBatch
from safemargin.criticality.coalescing import Rollout, StateIndex
from safemargin.criticality.plans import Plan, Planner, listed
from safemargin.criticality.rollouts import Point, Runner
from safemargin.criticality.stopping import StoppingRule, WorstRule
from safemargin.errors import DiagnosisWrong, EnvironmentFault, InvalidInput

DETOUR_STEPS = 16
"""Random actions taken between saving a point and proving its snapshot."""

REPROOF_STEPS = 32
"""Steps of the recorded episode that are proven again after the trials of a moment."""

ALWAYS_REPEATED = 8
"""Some trials are run again in this many first episodes of a study ..."""

REPEATED_EVERY = 8
"""... and afterwards in one episode out of this many."""


NOT_RANDOM = (
    "perturb {perturb!r} compares single rollouts, and where the environment or the policy is "
    "random the worst of them is the unluckiest; it takes a deterministic environment and a greedy "
    "policy"
)


@dataclass(frozen=True, slots=True)
class Randomness:
    """Whether something besides the perturbation is random, so that each trial must draw it."""

    environment: bool
    policy: bool

    @property
    def none(self) -> bool:
        return not (self.environment or self.policy)


@dataclass(slots=True, eq=False)
class _Series:
    """The trials of one n, in index order."""

    n: int
    plan: Plan
    rules: dict[int, StoppingRule]
    """The rule of each signal, by its position."""
    trials: list[Trial] = field(default_factory=list)

    @property
    def stopped(self) -> bool:
        """Whether no signal needs a further trial."""
        return all(rule.stopped for rule in self.rules.values())

    @property
    def judged(self) -> int:
        """The number of trials given to the rules; those that have stopped took fewer."""
        return max(rule.trials for rule in self.rules.values())

    def wanted(self, *, sure: bool) -> int:
        """Return how many trials should be running, only those certain to be needed if `sure`."""
        running = [rule for rule in self.rules.values() if not rule.stopped]
        return max(rule.certain if sure else rule.likely // 2 for rule in running)

    @property
    def pending(self) -> int:
        """The number of trials started but not yet given to the rules."""
        return len(self.trials) - self.judged


@dataclass(eq=False)
class MomentMeasurer:
    """Estimates c*(t, n) for any n at one moment of one recorded episode.

    While the environment counts as deterministic, the random generators are watched in the recorded
    episode and in every trial that counts; DiagnosisWrong if one of them is used, or if a snapshot
    turns out to leave something out.

    Trial j makes the same mistakes for every n (see `plans`) and, where something else is
    random, the same noise as the j-th unperturbed trial. This makes differences between n, and
    between perturbed and unperturbed, less noisy; each trial still follows the definition.
    """

    runner: Runner
    episode: Episode
    step: int
    randomness: Randomness
    earlier_lives: Sequence[Array] = field(default=(), kw_only=True)
    repeat_every_n: bool = field(default=False, kw_only=True)
    """Whether some trials of every n are repeated, not only those of one n."""

    def __post_init__(self) -> None:
        runner, episode, step = self.runner, self.episode, self.step
        self.reference = runner.successor
        if self.reference is not None and self.reference.looks_ahead and not self.randomness.none:
            raise InvalidInput(reference.NOT_RANDOM.format(reference=self.reference.text))
        randomness = self.randomness = trial_randomness(runner, self.randomness)
        if randomness.none and episode.cut and step + runner.settings.horizon > episode.steps:
            raise InvalidInput(
                f"step {step} was not followed for its horizon of {runner.settings.horizon} steps: "
                f"the episode was cut after {episode.steps}; raise max_episode_steps, or take an "
                "earlier step"
            )
        self.settings = runner.settings
        if runner.mistakes.worst and not randomness.none:
            raise InvalidInput(NOT_RANDOM.format(perturb=runner.mistakes.text))
        self.keys = (*episode.key.stream_keys, step)
        self.overhead = 0
        """Simulator steps outside the trials since the last measurement."""
        self.point = self._go_to()
        recognised = randomness.none and runner.simulator.digest_is_whole
        self.state_index = StateIndex(self.settings.horizon) if recognised else None
        self._leave()
        self._own: list[tuple[float, ...]] = []  # under the policy, from the first proof
        # A reference goes on otherwise, so its trials have nothing in common with the episode.
        self._prove(self.settings.horizon, None if self.reference else self.state_index)
        self.planner = Planner(
            self.settings,
            runner.random_actions,
            self.keys,
            runner.mistakes,
            enumerable=randomness.none,
            mask=self.point.snapshot.mask,
        )
        self._unperturbed: list[Trial] = []
        # Where nothing is random, one run says what there is to lose: the recorded episode itself,
        # or one in which the reference acts from here on.
        self._sole_returns = runner.returns(self._own)
        if self.reference is not None and randomness.none:
            alone = self._trial(runner.no_uniforms, 0)
            self._batch(self.point).run([alone])
            self.overhead += alone.steps
            self._sole_returns = self._returns(alone)

    def measure(self, *n_values: int) -> list[Measurement]:
        """Run the trials that the plan of each n asks for, until its rule stops."""
        return self.measure_signals(*n_values)[0]

    def measure_signals(self, *n_values: int) -> list[list[Measurement]]:
        """Measure every signal of the runner from the same trials, [signals][n].

        Each gives what it would give alone: its rule sees the same trials in the same order. What
        trials cost is reported with the first signal.
        """
        signals = range(len(self.runner.gains))
        if self.runner.mistakes.beam is None:
            every = [self._series(n, signals) for n in n_values]
            self._run(every)
            found = [every] * len(signals)
        else:  # each signal leads the search to other sequences
            beam = self.runner.mistakes.beam
            found = [self._search(n_values, beam, signal) for signal in signals]
            every = [series for each in found for series in each]
        self._prove(REPROOF_STEPS)
        for series in every:
            if self.repeat_every_n or series.n == self._repeated_n:
                self._repeat_some(series)
        self.overhead += sum(trial.steps for trial in self._unperturbed)
        measured = [
            [self._measurement(series, signal) for series in of_signal]
            for signal, of_signal in enumerate(found)
        ]
        first = measured[0][0]
        measured[0][0] = replace(first, steps=first.steps + self.overhead)
        self.overhead = 0
        return measured

    def _series(self, n: int, signals: Iterable[int]) -> _Series:
        plan = self.planner.plan(n)
        return _Series(n, plan, {signal: copy.deepcopy(plan.rule) for signal in signals})

    def _run(self, every: Sequence[_Series]) -> None:
        """Run trials in lock-step, those certain to be needed first, and judge them in order."""
        batch = self._batch(self.point)
        # The largest n first: its trials are the longest, and all others start like them.
        unfinished = [series for series in reversed(every) if not series.stopped]
        while unfinished:
            while batch.free and (trial := self._next_trial(unfinished)) is not None:
                batch.start(trial)
            batch.advance()
            for series in unfinished:
                self._judge(series)
                if series.stopped:
                    batch.abandon(series.trials[series.judged :])
            unfinished = [series for series in unfinished if not series.stopped]

    def _search(self, n_values: Sequence[int], beam: int, signal: int) -> list[_Series]:
        """Find sequences of actions that lose much, by a beam search over their length.

        Each of the `beam` worst sequences of a length is extended by every action; how bad one is
        says its own trial, in which the policy goes on after it. Of sequences with equal returns,
        which often lead to the same state, one is kept as long as there are others. As long as all
        sequences of a length were tried, the worst of them is exact.
        """
        actions = int(self.runner.random_actions.space.n)  # type: ignore[attr-defined]
        kept: list[tuple[int, ...]] = [()]
        found = []
        for length in range(1, max(n_values) + 1):
            sequences = [(*before, action) for before in kept for action in range(actions)]
            rule = WorstRule(self.settings, len(sequences))
            every = len(sequences) == actions**length
            plan = Plan(listed(sequences, actions), rule, exact=every)
            series = _Series(length, plan, {signal: rule})
            self._run([series])
            returns = np.array([self._returns(trial)[signal] for trial in series.trials])
            order = np.argsort(returns, kind="stable")
            copies = np.diff(returns[order], prepend=-np.inf) == 0
            order = np.concatenate([order[~copies], order[copies]])
            kept = [sequences[number] for number in order[:beam]]
            if length in n_values:
                found.append(series)
            else:
                self.overhead += sum(trial.steps for trial in series.trials)
        return found

    def _batch(self, point: Point) -> TrialBatch:
        return TrialBatch(self.runner, point, self.state_index, reference=self.reference)

    def _next_trial(self, unfinished: Sequence[_Series]) -> Trial | None:
        """Return the next trial to start, or None to wait for those that are running."""
        for sure in (True, False):
            for series in unfinished:
                if series.pending < series.wanted(sure=sure):
                    number = len(series.trials)
                    if not self.randomness.none and number >= len(self._unperturbed):
                        self._unperturbed.append(self._trial(self.runner.no_uniforms, number))
                        return self._unperturbed[-1]
                    series.trials.append(self._trial(series.plan.uniforms(number), number))
                    return series.trials[-1]
        return None

    def _judge(self, series: _Series) -> None:
        """Give the rules the losses of all trials before the first incomplete one."""
        while not series.stopped and series.judged < len(series.trials):
            number = series.judged
            if not series.trials[number].rollout.complete:
                return
            if not self.randomness.none and not self._unperturbed[number].rollout.complete:
                return
            own, perturbed = self._own_returns(number), self._returns(series.trials[number])
            for signal, rule in series.rules.items():
                if not rule.stopped:
                    rule.add(own[signal] - perturbed[signal])

    def _measurement(self, series: _Series, signal: int) -> Measurement:
        plan, rule = series.plan, series.rules[signal]
        count = rule.trials
        used = [self._own_returns(trial)[signal] for trial in range(count)]
        if self.randomness.none:
            used = used[:1]
        counted = series.trials if signal == min(series.rules) else []
        return Measurement(
            estimate=rule.estimate(series.n, used, exact=plan.exact),
            perturbed=np.array([self._returns(trial)[signal] for trial in series.trials[:count]]),
            unperturbed=np.array(used),
            steps=sum(trial.steps for trial in counted),
            wasted=sum(trial.steps for trial in counted[series.judged :]),
            remembered=0 if self.state_index is None else self.state_index.remembered,
        )

    def _go_to(self) -> Point:
        self.overhead += sum(map(len, self.earlier_lives)) + self.step
        return self.runner.go_to(self.episode, self.step, self.earlier_lives)

    def _leave(self) -> None:
        """Take a detour, so that state missing from the snapshot is lost before the proof."""
        generator = stream(self.settings.seed, Purpose.DOCTOR, *self.keys)
        uniforms = generator.random((DETOUR_STEPS, self.runner.random_actions.width))
        self.overhead += self.runner.leave(self.point, uniforms)

    def _prove(self, steps: int, state_index: StateIndex | None = None) -> None:
        """Raise EnvironmentFault unless the restored state repeats the recorded episode."""
        self.overhead += min(self.episode.steps - self.step, steps)
        rollout = self.runner.repeats(
            self.point, self.episode, self.step, steps=steps, state_index=state_index
        )
        # The episode records rewards; another signal is compared with that of the first proof.
        signal = [] if rollout is None else rollout.rewards
        self._own = self._own or signal
        if rollout is None or signal[: len(self._own)] != self._own[: len(signal)]:
            raise self._hidden_state(
                f"a rollout from the restored state at step {self.step} of episode "
                f"{self.episode.key} did not repeat the recorded episode: the environment hides "
                "state from its snapshot",
                "run the doctor on it",
            )
        self._refuse_draws(rollout, "under the policy")

    def _hidden_state(self, cause: str, advice: str) -> EnvironmentFault:
        """Make the error for a rollout that does not repeat itself; replay may put it right."""
        if self.runner.simulator.way == "snapshot":
            return DiagnosisWrong(cause, advice, way="replay")
        return EnvironmentFault(f"{cause}; {advice}")

    def _refuse_draws(self, rollout: Rollout, when: str) -> None:
        """Raise DiagnosisWrong if random numbers were drawn in a deterministic environment."""
        if rollout.last.drew and not self.randomness.environment:
            raise DiagnosisWrong(
                f"after step {self.step} of episode {self.episode.key} the environment drew random "
                f"numbers {when}, although it was found to be deterministic",
                "it has to be measured as random",
                environment_deterministic=False,
            )

    @property
    def _repeated_n(self) -> int | None:
        """The n whose trials are repeated, in the first episodes and then in every eighth.

        Over a study each n takes its turn.
        """
        index, n_values = self.episode.key.index, self.settings.n_values
        if index < ALWAYS_REPEATED or index % REPEATED_EVERY == 0:
            return n_values[(index + self.step) % len(n_values)]
        return None

    def _repeat_some(self, series: _Series) -> None:
        """Run a few trials again in an environment that no trial has touched.

        The recorded episode does not visit state that only mistakes reach, and what one trial
        leaves behind may change the next. The trial that lost most is repeated from the start of
        the game, the one that lost least and two others after a reset.
        """
        returns = [self._returns(trial) for trial in series.trials[: series.judged]]
        of_first = [first for first, *_ in returns]
        generator = stream(self.settings.seed, Purpose.DOCTOR, *self.keys)
        others = generator.integers(len(returns), size=2)
        worst = int(np.argmin(of_first))
        simulator = self.runner.simulator
        batch = TrialBatch(
            self.runner, self._go_to(), simulators=[simulator], reference=self.reference
        )
        for number in (worst, int(np.argmax(of_first)), *map(int, others)):
            trial = self._trial(series.plan.uniforms(number), number)
            batch.run([trial])
            self.overhead += trial.steps
            if self._returns(trial) != returns[number]:
                raise self._hidden_state(
                    f"a trial at step {self.step} of episode {self.episode.key} has a different "
                    "return in an environment that other trials have not touched: the environment "
                    "hides state that only mistakes reach",
                    "run the doctor on it, and see register_state",
                )
            simulator.reset(self.episode.seed)

    def _trial(self, uniforms: Floats, number: int) -> Trial:
        streams = trial_streams(self.settings.seed, self.randomness, self.keys, number)
        return Trial(uniforms, streams)

    def _returns(self, trial: Trial) -> tuple[float, ...]:
        """Return the return of a complete trial in each signal, computed once."""
        if trial.returns is None:
            self._refuse_draws(trial.rollout, f"in a trial with {len(trial.uniforms)} mistakes")
            trial.returns = self.runner.returns(trial.rollout.all_rewards())
        return trial.returns

    def _own_returns(self, number: int) -> tuple[float, ...]:
        if self.randomness.none:
            return self._sole_returns
        return self._returns(self._unperturbed[number])


def trial_randomness(runner: Runner, randomness: Randomness) -> Randomness:
    """Return what is random in trials: no policy if the agent is never asked."""
    if runner.successor is not None and not runner.mistakes.watches:
        return replace(randomness, policy=False)
    return randomness


def trial_streams(seed: int, randomness: Randomness, keys: tuple[int, ...], number: int) -> Streams:
    """Make the random streams of trial `number` of a moment, besides its random actions."""
    environment = policy = None
    if randomness.environment:
        environment = stream(seed, Purpose.TRIAL_ENVIRONMENT, *keys, number)
    if randomness.policy:
        policy = stream(seed, Purpose.TRIAL_POLICY, *keys, number)
    return Streams(environment, policy)
