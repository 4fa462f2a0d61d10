"""The doctor: can this environment be measured, in which way, and if not, why?

A snapshot is proven, not trusted. The doctor compares restored runs with uninterrupted ones, finds
out by experiment what is random, tries the ways back to a moment in order (snapshot, replay),
names the layer that leaks, and counts how many different episodes the starts give.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.seeding import Purpose, environment_seed, stream
from safemargin.core.settings import Settings
from safemargin.environments import experiments, graph
from safemargin.environments.ale import native_stickiness
from safemargin.environments.diagnosis import Diagnosis, Finding, Level, verdict_on
from safemargin.environments.experiments import Chooser, Continuation
from safemargin.environments.exploration import Walker
from safemargin.environments.simulator import Simulator, Way
from safemargin.environments.ways import make_simulator
from safemargin.errors import EnvironmentFault, InvalidInput
from safemargin.policies.actions import PolicyActions
from safemargin.policies.base import Policy, batch_of

__all__ = ["Diagnosis", "Finding", "examine"]

_PLAIN_RUNS = 4
_PLAIN_STEPS = 200
_REPLAY_POINTS = 6
_RANDOM_POINTS = 8


def examine(
    make_env: Callable[[], gym.Env[Any, Any]],
    policy: Policy | None = None,
    settings: Settings | None = None,
    *,
    points: int = 20,
    steps: int = 100,
    starts: int = 40,
    start_steps: int = 200,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Examine an environment by experiment; a few thousand steps.

    `points` moments are saved, each is restored twice and compared over up to `steps` steps;
    `starts` episodes of `start_steps` steps are compared with one another. Bad input raises;
    whatever the environment does wrong is a finding.
    """
    if seed < 0:
        raise InvalidInput(f"the doctor needs a seed of at least 0, got {seed}")
    for name, value in {"points": points, "steps": steps, "starts": starts}.items():
        if value < 1:
            raise InvalidInput(f"the doctor needs {name} of at least 1, got {value}")
    doctor = _Doctor(make_env, policy, settings or Settings(), seed, progress)
    try:
        doctor.examine(points, steps, starts, start_steps)
    except EnvironmentFault as fault:
        doctor.add("problem", str(fault))
    finally:
        doctor.close()
    return doctor.diagnosis()


class _Doctor:
    """One examination: its findings so far."""

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        policy: Policy | None,
        settings: Settings,
        seed: int,
        progress: Callable[[str], None] | None,
    ) -> None:
        self._make_env = make_env
        self._policy = policy
        self._settings = settings
        self._seed = seed
        self._tell = progress or (lambda text: None)
        self._generator = stream(seed, Purpose.DOCTOR, 0)
        self._simulators: list[Simulator] = []
        self.findings: list[Finding] = []
        self.name = "the environment"
        self.way: Way | None = None
        self.environment_deterministic = True
        self.hiding_places: list[str] = []
        """Where a random generator would be out of reach."""
        self.policy_deterministic: bool | None = None
        self.opaque: tuple[str, ...] = ()
        self.continuations = self.wrong = 0
        self.distinct = self.tried = 0

    def add(self, level: Level, text: str) -> None:
        self.findings.append(Finding(level, text))

    def close(self) -> None:
        for simulator in self._simulators:
            simulator.close()

    def _simulator(self, way: Way = "snapshot", *, without: int = 0) -> Simulator:
        env = self._make_env()
        for _ in range(without):
            env = env.env  # type: ignore[attr-defined]
        simulator = make_simulator(env, way)
        self._simulators.append(simulator)
        return simulator

    def _seeds(self) -> Iterator[int]:
        return (environment_seed(self._seed, 1_000_000, index) for index in itertools.count())

    def _choose(self, simulator: Simulator, *, random_share: float = 0.3) -> Chooser:
        return Walker(simulator.env, self._policy, self._seed, random_share=random_share)

    def examine(self, points: int, steps: int, starts: int, start_steps: int) -> None:
        simulator = self._simulator()
        self.name = simulator.name
        if self._policy is not None:
            self._policy.check(simulator.env)
        try:
            choose = self._choose(simulator)
        except InvalidInput as error:  # actions of this kind cannot be drawn at random
            self.add("problem", str(error))
            return
        stickiness = native_stickiness(simulator.env)
        if stickiness > 0:
            self.add(
                "problem",
                f"ALE's native sticky actions are on (repeat_action_probability={stickiness:g}); "
                "its saved state does not hold the previous action, so restored runs go wrong; "
                "make the environment with repeat_action_probability=0 and wrap it in "
                "gymnasium.wrappers.StickyAction instead",
            )
            return
        self._tell("resets")
        if not self._check_resets(simulator, choose):
            return
        self.opaque = simulator.opaque()  # now that every attribute is there
        if self._policy is not None:
            self._check_policy(simulator, choose)
        self._tell("snapshots")
        recorded = None
        if unsafe := simulator.unsafe():
            self.add(
                "note",
                f"no snapshot was tried: the layer that leaks is {unsafe[0].partition('.')[0]}, "
                f"whose state lives in native objects ({', '.join(unsafe[:4])})",
            )
        else:
            recorded = self._try_way("snapshot", points, steps)
        if recorded is None:
            self._tell("replay")
            recorded = self._try_way("replay", min(points, _REPLAY_POINTS), steps)
        if recorded is None:
            return
        self._tell("randomness")
        self._check_randomness(*recorded)
        self._tell("starts")
        self._count_starts(recorded[0], starts, start_steps)

    def _check_resets(self, simulator: Simulator, choose: Chooser) -> bool:
        """Does reset(seed) followed by the same actions always give the same run?"""
        before = _global_generators()
        runs = [
            experiments.plain_run(simulator, seed, choose, _PLAIN_STEPS)
            for seed in itertools.islice(self._seeds(), _PLAIN_RUNS)
        ]
        used = [name for name, state in _global_generators().items() if state != before[name]]
        if used:
            self.add(
                "note",
                f"the environment (or the policy) draws from the global generator "
                f"{' and '.join(used)}, which no snapshot holds and no trial can reseed; let it "
                "use self.np_random",
            )
            self.hiding_places.append(f"the global generator {' and '.join(used)}")
        for fresh in (False, True):
            again = self._simulator() if fresh else simulator
            for run in runs:
                difference = experiments.repeats(again, run)
                if difference is None:
                    continue
                where = "in a newly made environment" if fresh else "in the same environment"
                self.add(
                    "problem",
                    f"reset(seed={run.seed}) and the same actions do not give the same episode "
                    f"again {where}: it differs at step {difference.step}"
                    + (f" (it draws from {' and '.join(used)})" if used else "")
                    + _learning_layers(again),
                )
                return False
        self.add("ok", "reset(seed) and the same actions give the same episode again")
        return True

    def _check_policy(self, simulator: Simulator, choose: Chooser) -> None:
        """Are the policy's scores a function of the observation?"""
        policy = self._policy
        if policy is None:
            return
        simulator.reset(next(self._seeds()))
        observations: list[Any] = []
        while not simulator.ended and len(observations) < 20:
            observations.append(batch_of([simulator.observation]))
            simulator.step(choose(simulator))
        first = [policy.scores(one, policy.initial_memory(1))[0] for one in observations]
        again = [policy.scores(one, policy.initial_memory(1))[0] for one in observations[::-1]]
        equal = all(
            np.array_equal(one, other) for one, other in zip(first, again[::-1], strict=True)
        )
        actions = PolicyActions(simulator.env.action_space, policy.kind, self._settings)
        self.policy_deterministic = equal and actions.deterministic
        if not equal:
            self.add(
                "problem",
                "the policy's scores differ for the same observation, so no number of the study "
                "could be repeated; switch dropout and sampling off inside the policy",
            )
        elif actions.deterministic:
            self.add("ok", "the policy is deterministic")
        else:
            self.add(
                "note",
                f"the policy's scores are deterministic, its action choice "
                f"({self._settings.action_choice}) is random: returns are averaged",
            )

    def _try_way(
        self, way: Way, points: int, steps: int
    ) -> tuple[Simulator, list[Continuation]] | None:
        """Compare restored with uninterrupted runs; None where any of them differs."""
        simulator = self._simulator(way)
        choose, seeds = self._choose(simulator), self._seeds()
        astray = self._choose(simulator, random_share=1.0)
        try:
            # Half of the points on the policy's way, half where only mistakes lead.
            recorded = [
                point
                for walker, share in ((choose, points - points // 2), (astray, points // 2))
                for point in experiments.record(
                    simulator, walker, seeds, self._generator, points=share, steps=steps
                )
            ]
            results = experiments.compare_all(simulator, recorded, astray, seeds, self._generator)
        except EnvironmentFault as fault:
            self.add(self._failure_level(way), str(fault))
            return None
        wrong = [result for result in results if result is not None and not result.silent]
        self.continuations, self.wrong = len(results), len(wrong)
        if wrong:
            first = min(wrong, key=lambda result: result.step)
            self.add(
                self._failure_level(way),
                f"by {way}, {len(wrong)} of {len(results)} restored runs differ from the "
                f"uninterrupted one, the first at step {first.step}"
                + (self._leak(first.layers, simulator) if way == "snapshot" else ""),
            )
            return None
        silent = [result for result in results if result is not None]
        if silent:
            self.add(
                "note",
                f"layer {silent[0].layers[-1]} holds something that differs from run to run "
                "(a clock or a counter) without changing what comes out: equal states cannot be "
                "recognised there",
            )
        self.way = way
        self.add("ok", f"by {way}, all {len(results)} restored runs equal the uninterrupted one")
        return simulator, recorded

    def _failure_level(self, way: Way) -> Level:
        return "note" if way == "snapshot" else "problem"

    def _leak(self, differing: tuple[str, ...], simulator: Simulator) -> str:
        """Which layer leaks, and through which attributes perhaps."""
        culprit = experiments.leaking_layer(
            lambda outside: self._simulator(without=outside),
            len(simulator.layers),
            lambda part: Walker(part.env, None, self._seed, random_share=1.0),
            self._seeds(),
            self._generator,
        )
        if culprit is not None:
            name = type(culprit.env).__name__
        elif differing:
            name = differing[-1]
        else:
            return "; no single layer could be named"
        suspects = [text for text in self.opaque if text.startswith(f"{name.split(' #')[0]}.")]
        text = f"; the layer that leaks is {name}"
        if suspects:
            return text + ", perhaps through " + ", ".join(suspects[:4])
        return text + ", which keeps state outside its attributes"

    def _check_randomness(self, simulator: Simulator, recorded: list[Continuation]) -> None:
        """Does it draw random numbers, or lead elsewhere when the generators have other state?

        Whether numbers are drawn is asked first: an event of one step in a thousand would hardly
        ever show in what comes out here, but it would in a study.
        """
        draws = any(experiments.draws_randomness(simulator, point) for point in recorded)
        self.environment_deterministic = not draws
        for index, point in enumerate(
            recorded[:_RANDOM_POINTS] if simulator.random_sources() else ()
        ):

            def outputs(key: int, point: Continuation = point, index: int = index) -> list[bytes]:
                generator = stream(self._seed, Purpose.DOCTOR, 2, index, key)
                return experiments.outputs_after_reseeding(simulator, point, generator)

            first = outputs(0)
            if first == outputs(1):
                continue
            self.environment_deterministic = False
            if first != outputs(0):
                self.way = None
                self.add(
                    "problem",
                    "the environment is random and one of its random generators cannot be reached: "
                    "the same seed gives different runs; tell register_state(reseed=…) about it",
                )
                return
        if not self.environment_deterministic:
            self.add(
                "note",
                "the environment draws random numbers while it runs: it is taken as random, and "
                "returns without mistakes are averaged too",
            )
        if simulator.way == "replay":  # or a snapshot would have done
            named = f" ({', '.join(self.opaque[:4])})" if self.opaque else ""
            self.hiding_places.append(f"state that no snapshot reaches{named}")
        for name in simulator.without_reseed():
            self.hiding_places.append(f"{name}, whose register_state has no reseed")
        if self.hiding_places:
            found = "no" if self.environment_deterministic else "no other"
            self.add(
                "note",
                f"{found} randomness was found, but it may hide in "
                f"{'; in '.join(self.hiding_places)}: all trials then share what is drawn there",
            )
        elif self.environment_deterministic:
            self.add("ok", "the environment is deterministic")

    def _count_starts(self, simulator: Simulator, starts: int, steps: int) -> None:
        """How many different episodes do the starts give, after the opening that was asked for?"""
        walker = Walker(simulator.env, self._policy, self._seed, random_share=0.0)
        settings = self._settings

        def begin(index: int) -> None:
            simulator.reset(environment_seed(settings.seed, 0, index))
            if settings.opening:
                generator = stream(settings.seed, Purpose.OPENING, 0, index)
                length = int(generator.integers(settings.opening + 1))
                for uniforms in generator.random((length, walker.random_actions.width)):
                    if not simulator.ended:
                        simulator.step(walker.random_actions(uniforms, simulator.mask))
            walker.begin()

        self.tried = starts
        self.distinct = experiments.count_distinct(simulator, begin, walker, starts, steps)
        if self.distinct == starts:
            self.add("ok", f"{starts} starts gave {starts} different episodes")
            return
        text = f"{starts} starts gave {self.distinct} different episode{'s' * (self.distinct != 1)}"
        if not self.environment_deterministic:
            self.add("ok", text)
            return
        advice = (
            f"ask for a longer random opening than {settings.opening} (--opening)"
            if settings.opening
            else "ask for a random opening, e.g. --opening 30 (Settings(opening=30))"
        )
        self.add("note", f"{text}: a study of many more would repeat itself; {advice}")

    def diagnosis(self) -> Diagnosis:
        kind = "deterministic" if self.environment_deterministic else "random"
        if self.environment_deterministic and self.hiding_places:
            kind = "taken as deterministic"
        measurable, verdict = verdict_on(
            self.name,
            self.way,
            self.findings,
            kind=kind,
            continuations=self.continuations,
        )
        return Diagnosis(
            measurable=measurable,
            way=self.way if measurable else None,
            environment_deterministic=self.environment_deterministic,
            policy_deterministic=self.policy_deterministic,
            distinct_starts=self.distinct,
            starts_tried=self.tried,
            continuations=self.continuations,
            wrong=self.wrong,
            opaque=self.opaque,
            findings=tuple(self.findings),
            verdict=verdict,
        )


def _learning_layers(simulator: Simulator) -> str:
    """A hint where a wrapper goes on learning from episode to episode."""
    learning = [name for name in simulator.layer_names() if name.startswith("Normalize")]
    if not learning:
        return ""
    return f"; {learning[0]} goes on learning: freeze it (env.update_running_mean = False)"


def _global_generators() -> dict[str, Any]:
    numpy_state = np.random.get_state(legacy=False)
    return {
        "numpy.random": graph.encoded_bytes([numpy_state]),
        "random": random.getstate(),
    }
