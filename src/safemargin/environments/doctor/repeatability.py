"""The doctor's checks of what repeats itself and what is random: resets, policy, steps, starts."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from safemargin.core.seeding import Purpose, environment_seed, stream
from safemargin.core.text import counted
from safemargin.environments import graph
from safemargin.environments.ale import is_atari_game
from safemargin.environments.doctor import experiments
from safemargin.environments.doctor.clock import (
    OFFSETS,
    fixed_clocks,
    readings_of_real_clocks,
)
from safemargin.environments.doctor.diagnosis import DETERMINISTIC
from safemargin.environments.doctor.examination import Examination
from safemargin.environments.doctor.experiments import Continuation, Divergence, Run
from safemargin.environments.doctor.exploration import Explorer
from safemargin.environments.doctor.returns import play_returns
from safemargin.environments.simulator import Simulator
from safemargin.errors import EnvironmentFault
from safemargin.policies.actions import PolicyActions
from safemargin.policies.base import Policy, batch_of

_PLAIN_RUNS = 4
_PLAIN_STEPS = 200
_RANDOM_POINTS = 8
_OPENING = 30
_OPENING_ATARI = 400  # after 30 steps of a game such as Pong, the first ball is not yet in play
_LATER = 1.0
"""An odd number of seconds, for clocks that flip every second."""
_CLOCK = (
    "; observations, rewards or ends depend on the clock (time.time and its like), which no "
    "snapshot holds: count steps instead"
)


def check_resets(examination: Examination, simulator: Simulator, choose: Explorer) -> bool:
    """Whether reset(seed) followed by the same actions always gives the same run."""
    before = _global_generators()
    runs = [
        experiments.plain_run(simulator, seed, choose, _PLAIN_STEPS)
        for seed in itertools.islice(examination.seeds(), _PLAIN_RUNS)
    ]
    used = " and ".join(
        name for name, state in _global_generators().items() if state != before[name]
    )
    if used:
        examination.add(
            "note",
            f"the environment (or the policy) draws from the global generator {used}, which no "
            "snapshot holds and no trial can reseed; let it use self.np_random",
        )
        examination.hiding_places.append(f"the global generator {used}")
    for fresh in (False, True):
        again = examination.simulator() if fresh else simulator
        where = "in a newly made environment" if fresh else "in the same environment"
        for run in runs:
            difference = experiments.repeats(again, run)
            if difference is not None:
                examination.add(
                    "problem",
                    f"reset(seed={run.seed}) and the same actions do not give the same episode "
                    f"again {where}: it differs at step {difference.step}"
                    + (f" (it draws from {used})" if used else "")
                    + (_CLOCK if _follows_the_clock(examination, run.seed) else "")
                    + _learning_layers(again),
                )
                return False
    if not _same_at_other_times(examination, runs):
        return False
    examination.add("ok", "reset(seed) and the same actions give the same episode again")
    return True


def _same_at_other_times(examination: Examination, runs: Sequence[Run]) -> bool:
    """Whether the runs repeat themselves when clocks show other times."""
    real: set[str] = set()
    for number, before in enumerate(OFFSETS):
        # The first two are for one run: it cannot be like both where a clock flips between them.
        run = runs[max(number - 1, 0) % len(runs)]
        with fixed_clocks(before), readings_of_real_clocks() as read:
            difference = experiments.repeats(examination.simulator(), run)
        real |= read
        if difference is not None:
            return _another_episode(
                examination, run, "when the clock shows another time", difference
            )
    if not real:
        return True
    # These cannot be set, so that only waiting is left.
    simulator = examination.simulator()
    until = time.monotonic() + _LATER
    run = experiments.plain_run(
        simulator, runs[0].seed, examination.explorer(simulator), _PLAIN_STEPS
    )
    time.sleep(max(0.0, until - time.monotonic()))
    difference = experiments.repeats(simulator, run)
    if difference is not None:
        return _another_episode(examination, run, f"{_LATER:g} s later", difference)
    examination.add(
        "note",
        f"the environment (or the policy) reads {' and '.join(sorted(real))} through a default "
        "argument, or an attribute of a class, where the doctor cannot set the clock: a run "
        f"{_LATER:g} s later was the same, but one at another time may not be",
    )
    return True


def _another_episode(
    examination: Examination, run: Run, when: str, difference: Divergence
) -> Literal[False]:
    examination.add(
        "problem",
        f"reset(seed={run.seed}) and the same actions give another episode {when}: it differs at "
        f"step {difference.step}{_CLOCK}",
    )
    return False


def _follows_the_clock(examination: Examination, seed: int) -> bool:
    """Whether an episode that does not repeat itself does so when only the clock is the same."""
    try:
        with fixed_clocks():
            first = examination.simulator()
            run = experiments.plain_run(first, seed, examination.explorer(first), _PLAIN_STEPS)
        with fixed_clocks():
            return experiments.repeats(examination.simulator(), run) is None
    except EnvironmentFault:
        return False


def check_policy(
    examination: Examination, policy: Policy, simulator: Simulator, choose: Explorer
) -> None:
    """Find out whether the policy's scores are a function of the observation."""
    simulator.reset(next(examination.seeds()))
    observations: list[Any] = []
    while not simulator.ended and len(observations) < 20:
        observations.append(batch_of([simulator.observation]))
        simulator.step(choose(simulator))
    first = [policy.scores(one, policy.initial_memory(1))[0] for one in observations]
    again = [policy.scores(one, policy.initial_memory(1))[0] for one in observations[::-1]]
    equal = all(np.array_equal(one, other) for one, other in zip(first, again[::-1], strict=True))
    actions = PolicyActions(simulator.env.action_space, policy.kind, examination.settings)
    examination.policy_deterministic = equal and actions.deterministic
    if not equal:
        examination.add(
            "problem",
            "the policy's scores differ for the same observation, so no number of the study "
            "could be repeated; switch dropout and sampling off inside the policy",
        )
    elif actions.deterministic:
        examination.add("ok", "the policy is deterministic")
    else:
        examination.add(
            "note",
            f"the policy's scores are deterministic, its action choice "
            f"({examination.settings.action_choice}) is random: returns are averaged",
        )


def check_randomness(
    examination: Examination, simulator: Simulator, recorded: list[Continuation]
) -> None:
    """Find out whether the environment draws random numbers, or differs after reseeding.

    Whether numbers are drawn is asked first: an event of one step in a thousand would hardly
    ever show in what comes out here, but it would in a study.
    """
    draws = any(experiments.draws_randomness(simulator, point) for point in recorded)
    examination.environment_deterministic = not draws
    for index, point in enumerate(recorded[:_RANDOM_POINTS] if simulator.random_sources() else ()):

        def outputs(key: int, point: Continuation = point, index: int = index) -> list[bytes]:
            generator = stream(examination.seed, Purpose.DOCTOR, 2, index, key)
            return experiments.outputs_after_reseeding(simulator, point, generator)

        first = outputs(0)
        if first == outputs(1):
            continue
        examination.environment_deterministic = False
        if first != outputs(0):
            examination.way = None
            examination.add(
                "problem",
                "the environment is random and one of its random generators cannot be reached: "
                "the same seed gives different runs; pass register_state a reseed function for it",
            )
            return
    if not examination.environment_deterministic:
        examination.add(
            "note",
            "the environment draws random numbers while it runs: it is taken as random, and "
            "returns without mistakes are averaged too",
        )
    _note_hiding_places(examination, simulator)


def _note_hiding_places(examination: Examination, simulator: Simulator) -> None:
    """Say where a random generator would have stayed unnoticed."""
    deterministic, places = examination.environment_deterministic, examination.hiding_places
    if simulator.way == "replay":  # or a snapshot would have done
        named = f" ({', '.join(examination.opaque[:4])})" if examination.opaque else ""
        reach = "reaches" if examination.asked_way is None else "was asked to reach"
        places.append(f"state that no snapshot {reach}{named}")
    places += [f"{name}, whose register_state has no reseed" for name in simulator.without_reseed()]
    if places:
        examination.add(
            "note",
            f"{'no' if deterministic else 'no other'} randomness was found, but it may hide in "
            f"{'; in '.join(places)}: all trials then share what is drawn there",
        )
    elif deterministic:
        examination.add("ok", DETERMINISTIC)


def count_starts(examination: Examination, simulator: Simulator, starts: int, steps: int) -> None:
    """Count the different episodes that the starts give, after the opening of the settings."""
    explorer = examination.explorer(simulator, random_share=0.0)
    settings = examination.settings

    def begin(index: int) -> None:
        simulator.reset(environment_seed(settings.seed, 0, index))
        if settings.opening:
            generator = stream(settings.seed, Purpose.OPENING, 0, index)
            length = int(generator.integers(settings.opening + 1))
            for uniforms in generator.random((length, explorer.random_actions.width)):
                if not simulator.ended:
                    simulator.step(explorer.random_actions(uniforms, simulator.mask))
        explorer.begin()

    examination.tried = starts
    distinct = experiments.count_distinct(simulator, begin, explorer, starts, steps)
    examination.distinct = distinct
    text = f"{counted(starts, 'start')} gave {counted(distinct, 'different episode')}"
    if distinct == starts or not examination.environment_deterministic:
        examination.add("ok", text)
        return
    enough = _OPENING_ATARI if is_atari_game(simulator.env) else _OPENING
    given = settings.opening
    longer = f"longer random opening than {given}" if given else "random opening"
    example = f", e.g. --opening {enough} (Settings(opening={enough}))"
    advice = f"ask for a {longer}" + (example if enough > given else " (--opening)")
    examination.add("note", f"{text}: a study of many more would repeat itself; {advice}")


def _learning_layers(simulator: Simulator) -> str:
    """Return a hint if a wrapper keeps learning from episode to episode."""
    learning = [name for name in simulator.layer_names() if name.startswith("Normalize")]
    if not learning:
        return ""
    return f"; {learning[0]} keeps learning: freeze it (env.update_running_mean = False)"


def _global_generators() -> dict[str, Any]:
    """Return the state of the generators that all code of a process shares."""
    numpy_state = np.random.get_state(legacy=False)
    return {
        "numpy.random": graph.encoded_bytes([numpy_state]),
        "random": random.getstate(),
    }


def check_returns(examination: Examination, policy: Policy) -> None:
    """Play a few whole episodes and compare the mean return with that of training."""
    played = play_returns(examination.simulator(), policy, examination.settings)
    if played.returns:
        examination.mean_return = played.mean
    if played.unlike_training:
        examination.unlike_training = str(played)
    examination.add("note" if played.unlike_training or not played.returns else "ok", str(played))
