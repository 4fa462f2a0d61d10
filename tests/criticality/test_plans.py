"""Trial plans: what is drawn, when it stops, and what may be said of the result."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.worlds import TableWorld, always_first, branching, chain, exact_criticality

import safemargin as sm
from safemargin.core.settings import Settings
from safemargin.criticality.plans import Planner
from safemargin.criticality.stopping import BettingRule, rule_of_three_minimum
from safemargin.errors import InvalidInput
from safemargin.policies import load_policy
from safemargin.policies.actions import RandomActions

POLICY = load_policy(always_first, kind="logits")


def planner(
    space: gym.Space[Any] | None = None, *, enumerable: bool = True, **given: Any
) -> Planner:
    random_actions = RandomActions(space or gym.spaces.Discrete(3))
    return Planner(Settings(**given), random_actions, (0, 5, 17), enumerable=enumerable)


def actions_of(made: Planner, n: int) -> list[tuple[int, ...]]:
    """The action sequences that the trials of a plan take."""
    plan = made.plan(n)
    random_actions = RandomActions(gym.spaces.Discrete(3))
    taken = []
    while not plan.rule.stopped:
        rows = plan.uniforms(plan.rule.trials)
        taken.append(tuple(random_actions(row) for row in rows))
        plan.rule.add(0.0)
    return taken


def test_few_sequences_are_all_taken_once() -> None:
    made = planner()
    for n in (1, 2, 3, 4):  # 3, 9, 27 and 81 sequences, at most 100
        assert made.plan(n).exact
        assert actions_of(made, n) == list(product(range(3), repeat=n))
    assert not made.plan(5).exact  # 243
    assert len(actions_of(made, 5)) == 48


def test_nothing_is_enumerated_where_something_else_is_random() -> None:
    assert not planner(enumerable=False).plan(1).exact
    assert not planner(gym.spaces.Box(-1, 1, (2,))).plan(1).exact


def test_under_a_mask_only_the_first_action_is_enumerated() -> None:
    mask = np.array([True, False, True])
    random_actions = RandomActions(gym.spaces.Discrete(3))
    made = Planner(Settings(), random_actions, (0, 5, 17), enumerable=True, mask=mask)
    plan = made.plan(1)
    assert plan.exact
    assert [random_actions(plan.uniforms(trial)[0], mask) for trial in (0, 1)] == [0, 2]
    plan.rule.add(0.0)
    assert not plan.rule.stopped
    plan.rule.add(0.0)
    assert plan.rule.stopped
    assert not made.plan(2).exact
    drawn = Planner(Settings(), random_actions, (0, 5, 17), enumerable=False, mask=mask)
    assert not drawn.plan(1).exact
    # Where it is drawn, the numbers are those of studies made before, and of larger n.
    for trial in range(4):
        np.testing.assert_array_equal(
            drawn.plan(1).uniforms(trial), made.plan(2).uniforms(trial)[:1]
        )


def test_stratified_draws_take_each_action_equally_often_at_each_position() -> None:
    taken = np.array(actions_of(planner(), 8))  # [48, 8]
    for position in range(8):
        assert np.bincount(taken[:, position]).tolist() == [16, 16, 16]
    # … and are not the same trials shuffled together: positions are independent.
    pairs = np.bincount(taken[:, 0] * 3 + taken[:, 1], minlength=9)
    assert (pairs > 0).all()


def test_a_shorter_perturbation_is_the_beginning_of_a_longer_one() -> None:
    for settings in ({}, {"trial_plan": "paper"}):
        made = planner(enumerable=False, **settings)
        short, long = made.plan(4), made.plan(16)
        for trial in range(12):
            np.testing.assert_array_equal(short.uniforms(trial), long.uniforms(trial)[:4])
        assert len({long.uniforms(trial).tobytes() for trial in range(12)}) == 12


def test_stratified_estimates_are_unbiased_and_sharper() -> None:
    """Against independent draws of the same number, in a world with known truth."""
    table = branching(40)
    exact = exact_criticality(table, state=0, n=8, gamma=0.99, horizon=459)

    def errors(**given: Any) -> np.ndarray:
        found = [
            sm.true_criticality(
                TableWorld(table), POLICY, step=0, n=8, settings=Settings(seed=seed, **given)
            )[0].mean
            for seed in range(40)
        ]
        return np.array(found) - exact

    stratified = errors(trials=24)
    independent = errors(trial_plan="paper", min_trials=24, max_trials=24)
    for sample in (stratified, independent):
        assert abs(sample.mean()) < 4 * sample.std(ddof=1) / np.sqrt(40)
    assert stratified.var() < independent.var()


def test_the_exact_plan_is_exact() -> None:
    settings = Settings(n_values=(1, 2, 4))
    table = branching(40)
    found = sm.true_criticality(
        TableWorld(table), POLICY, step=3, n=[1, 2, 4, 8], settings=settings
    )
    assert [estimate.exact for estimate in found] == [True, True, True, False]
    assert [estimate.trials for estimate in found] == [2, 4, 16, 48]
    for estimate in found[:3]:
        exact = exact_criticality(table, state=6, n=estimate.n, gamma=0.99, horizon=459)
        assert estimate.mean == pytest.approx(exact, abs=1e-12)
        assert estimate.half_width == 0


def test_the_rule_of_three_waits_for_rare_losses() -> None:
    # ln 20 · 10 / 0.2 = 149.8
    settings = Settings(trial_plan="rule-of-three", largest_loss=10.0)
    assert rule_of_three_minimum(settings) == 150
    plan = planner(trial_plan="rule-of-three", largest_loss=10.0).plan(4)
    while not plan.rule.stopped:
        plan.rule.add(0.0)
    assert plan.rule.trials == 150
    # No loss was seen, and one of 10 may still have a chance of ln 20 / 150.
    assert plan.rule.half_width == pytest.approx(10 * math.log(20) / 150)
    # Small losses need no more than the paper's minimum.
    assert rule_of_three_minimum(Settings(trial_plan="rule-of-three", largest_loss=0.1)) == 10


def bet(losses: np.ndarray, **given: Any) -> BettingRule:
    settings = {"trial_plan": "anytime", "largest_loss": 1.0, "max_trials": 10_000, **given}
    rule = BettingRule(Settings(**settings))
    for loss in losses:
        rule.add(float(loss))
    return rule


def test_betting_intervals_hold_at_every_time() -> None:
    """The share of runs in which the interval *ever* misses the truth stays below 1 − α."""
    generator = np.random.default_rng(0)
    for draw, mean in (
        (lambda size: (generator.random(size) < 0.05).astype(float), 0.05),
        (lambda size: generator.beta(2, 3, size), 0.4),
    ):
        missed = 0
        for _ in range(150):
            rule = BettingRule(
                Settings(trial_plan="anytime", largest_loss=1.0, sampling_confidence=0.8)
            )
            for loss in draw(120):
                rule.add(float(loss))
                if abs(rule.mean - mean) > rule.half_width:
                    missed += 1
                    break
        assert missed / 150 <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / 150)


def test_betting_intervals_shrink() -> None:
    generator = np.random.default_rng(1)
    losses = generator.beta(2, 3, 2000)
    widths = [bet(losses[:count]).half_width for count in (10, 100, 1000, 2000)]
    assert widths == sorted(widths, reverse=True)
    # Student's half-width for 2,000 such losses is 0.0088; the price of "at any time" is below 3.
    assert widths[-1] < 3 * 0.0088
    assert bet(np.zeros(400)).half_width < 0.02


def test_a_loss_outside_the_stated_range_voids_the_guarantee() -> None:
    with pytest.raises(InvalidInput, match="a trial lost 1.5, outside the stated range"):
        bet(np.array([0.2, 1.5]))
    with pytest.raises(InvalidInput, match="a trial lost -0.1, outside the stated range"):
        bet(np.array([0.2, -0.1]))
    assert bet(np.array([0.2, -0.1]), smallest_loss=-1.0).trials == 2


def test_the_anytime_plan_measures_a_world() -> None:
    settings = Settings(
        trial_plan="anytime", largest_loss=46.0, sampling_error=8.0, max_trials=3000
    )
    found = sm.true_criticality(TableWorld(chain(60)), POLICY, step=0, n=2, settings=settings)
    exact = exact_criticality(chain(60), state=0, n=2, gamma=0.99, horizon=459)
    assert abs(found[0].mean - exact) <= found[0].half_width <= 8.0
    assert not found[0].capped
