"""The worst sequence of actions: exact by trying all, or as a beam search finds it."""

from __future__ import annotations

from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.worlds import (
    Masked,
    TableWorld,
    Transitions,
    always_first,
    branching,
    chain,
    swerve,
    swerving,
)

import safemargin as sm
from safemargin.core.settings import Settings
from safemargin.errors import InvalidInput
from safemargin.policies import load_policy

POLICY = load_policy(always_first, kind="logits")
GAMMA = 0.99


def worst_by_hand(table: Transitions, state: int, n: int) -> float:
    """The return of `always_first`, less the least return after any n actions."""

    def returned(actions: tuple[int, ...]) -> float:
        here, total, factor = state, 0.0, 1.0
        for step in range(459):
            (outcome,) = table[here][actions[step] if step < n else 0]
            total, factor = total + factor * outcome.reward, factor * GAMMA
            if outcome.ends:
                break
            here = outcome.state
        return total

    return returned((0,) * n) - min(map(returned, product((0, 1), repeat=n)))


def measure(table: Transitions, perturb: str, *, step: int = 3, **given: Any) -> list[sm.Estimate]:
    return sm.true_criticality(
        TableWorld(table),
        POLICY,
        step=step,
        n=[1, 2, 4, 6],
        perturb=perturb,
        settings=Settings(**given),
    )


def test_the_worst_of_all_sequences() -> None:
    table = branching(40)
    for found in measure(table, "worst"):
        assert (found.trials, found.exact, found.half_width) == (2**found.n, True, 0.0)
        assert found.mean == pytest.approx(worst_by_hand(table, 6, found.n), abs=1e-9)


def test_closed_forms() -> None:
    # Action 1 ends the chain: everything is lost from the first mistake on.
    for found in measure(chain(60), "worst", step=20):
        assert found.mean == pytest.approx(sum(GAMMA**k for k in range(40)), abs=1e-9)
    # Each of n actions can be wrong.
    for perturb in ("worst", "worst:1"):
        for found in sm.true_criticality(
            TableWorld(swerving(60)),
            load_policy(swerve, kind="logits"),
            step=7,
            n=[1, 3, 6],
            perturb=perturb,
        ):
            expected = sum(GAMMA**k for k in range(found.n))
            assert found.mean == pytest.approx(expected, abs=1e-9)


def test_it_is_at_least_as_bad_as_random_and_a_mistake_that_gains_is_no_loss() -> None:
    table = branching(40)
    worst, random = measure(table, "worst", step=0), measure(table, "random", step=0)
    assert all(bad.mean >= mean.mean for bad, mean in zip(worst, random, strict=True))
    # Where every action is better than the agent's own, even the worst loses nothing.
    better: Transitions = [[row[1], row[0]] for row in swerving(60)]
    first = sm.true_criticality(
        TableWorld(better), load_policy(swerve, kind="logits"), step=7, n=1, perturb="worst"
    )
    assert first[0].mean == 0.0


def test_a_beam_search_finds_no_more_than_there_is() -> None:
    table = branching(40)
    exact = [found.mean for found in measure(table, "worst", step=0)]
    for beam in (1, 2, 64):
        found = measure(table, f"worst:{beam}", step=0)
        # A length is exact as long as the beam has dropped nothing before it.
        assert [each.exact for each in found] == [2**n <= 2 * beam for n in (1, 2, 4, 6)]
        assert all(each.trials <= 2 * beam for each in found)
        assert all(each.mean <= most for each, most in zip(found, exact, strict=True))
    # A beam that keeps every sequence has tried them all.
    assert [each.mean for each in found] == exact


def test_a_beam_reaches_where_not_all_can_be_tried() -> None:
    (found,) = sm.true_criticality(
        TableWorld(swerving(60)),
        load_policy(swerve, kind="logits"),
        step=7,
        n=32,
        perturb="worst:2",
    )
    assert found.mean == pytest.approx(sum(GAMMA**k for k in range(32)), abs=1e-9)
    assert found.trials == 4


def test_under_a_mask() -> None:
    def first(rows: np.ndarray) -> np.ndarray:
        return np.tile(np.array([1, 0, 0, 0], np.float32), (len(rows), 1))

    (found,) = sm.true_criticality(
        Masked(), load_policy(first, kind="logits"), step=4, n=2, perturb="worst"
    )
    # The agent takes action 0 for 3, at even and odd steps. The worst legal ones pay 0 and 2.
    assert found.mean == pytest.approx(3 + GAMMA * 1, abs=1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"perturb": "worst", "n": 8},
            r"at n = 8 these are 2\^8 = 256 rollouts of up to 459 steps for each moment, and "
            "max_enumerated allows 100; use smaller n, raise --max-enumerated, or take worst:BEAM",
        ),
        ({"perturb": "worst", "n": 60}, r"2\^60 = 1.2e\+18 rollouts"),
        ({"perturb": "worst:0", "n": 1}, "perturb 'worst:0': BEAM is a whole number"),
        (
            {"perturb": "worst", "n": 1, "settings": Settings(trial_plan="paper")},
            "perturb 'worst' lists sequences of actions, so trial_plan must be 'fixed'",
        ),
        (
            {"perturb": "worst", "n": 1, "env": TableWorld(chain(60, slip=0.1))},
            "perturb 'worst' compares single rollouts",
        ),
    ],
)
def test_bad_input(given: dict[str, Any], message: str) -> None:
    env = given.pop("env", TableWorld(chain(60)))
    with pytest.raises(InvalidInput, match=message):
        sm.true_criticality(env, POLICY, step=0, **given)


def test_boxes_have_no_list_of_sequences() -> None:
    def still(rows: np.ndarray) -> np.ndarray:
        return np.zeros((len(rows), 1), np.float32)

    policy = load_policy(still, kind="actions")
    with pytest.raises(InvalidInput, match="'worst' tries sequences of discrete actions, and the"):
        sm.true_criticality(gym.make("Pendulum-v1"), policy, step=0, n=1, perturb="worst")
