"""Losses against a reference that takes over after the mistakes, where they are known exactly."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.runners import Counting
from helpers.worlds import (
    Masked,
    TableWorld,
    Transitions,
    always_first,
    branching,
    chain,
    exact_criticality,
    swerve,
    swerving,
    wrong_way,
)

import safemargin as sm
from safemargin.core.measured import Measured
from safemargin.core.settings import Settings
from safemargin.errors import InvalidInput
from safemargin.policies import load_policy
from safemargin.policies.base import Policy

GAMMA, HORIZON, STEP, N = 0.9, 44, 7, [1, 2, 4]
FIRST, SWERVE, WRONG = (
    load_policy(function, kind="logits") for function in (always_first, swerve, wrong_way)
)


def always_second(rows: np.ndarray) -> np.ndarray:
    return -always_first(rows)


SECOND = load_policy(always_second, kind="logits")


def its_own(generator: Any, action: Any, history: Any) -> Any:
    """What the agent means to do: the mistakes are those of the agent itself."""
    return action


its_own.draws = False  # type: ignore[attr-defined]


def measure(
    table: Transitions, agent: Policy, reference: Any, *, seed: int = 0, perturb: Any = None,
    **settings: Any,
) -> list[sm.Estimate]:  # fmt: skip
    return sm.true_criticality(
        TableWorld(table),
        agent,
        step=STEP,
        n=N,
        seed=seed,
        perturb=perturb,
        reference=reference,
        settings=Settings(gamma=GAMMA, **settings),
    )


def state_at(table: Transitions, action: int, seed: int) -> int:
    """Where always taking this action has led by the step that is measured."""
    world = TableWorld(table)
    world.reset(seed=seed)
    for _ in range(STEP):
        world.step(action)
    return world.state


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_only_the_reference_counts_after_the_mistakes(noise: float) -> None:
    # Another agent comes to the moment; from there, all is as if the reference were the agent.
    table = branching(40, noise=noise)
    state = state_at(table, 1, seed=3)
    for found in measure(table, SECOND, FIRST, seed=3, trials=200):
        expected = exact_criticality(table, state=state, n=found.n, gamma=GAMMA, horizon=HORIZON)
        assert found.exact == (noise == 0)
        assert abs(found.mean - expected) <= 2.5 * found.half_width + 1e-9
    if noise == 0:  # which differs from what the agent itself loses
        own = measure(table, SECOND, None, seed=3)
        assert own[0].mean != pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("slip", [0.0, 0.05])
@pytest.mark.parametrize("reference", ["a policy", "lookahead:1"])
def test_a_perfect_one_loses_what_random_actions_lose(slip: float, reference: str) -> None:
    if slip and reference != "a policy":
        pytest.skip("a lookahead takes a world without chance")
    table = swerving(60, slip=slip)
    seed = next(seed for seed in range(99) if survives(table, seed))
    given = SWERVE if reference == "a policy" else reference
    for found in measure(table, WRONG, given, seed=seed, trials=200):
        # The agent would have earned nothing: against itself, random actions are a gain.
        expected = sum((GAMMA * (1 - slip)) ** k / 2 for k in range(found.n))
        assert found.exact == (slip == 0)
        assert abs(found.mean - expected) <= 2.5 * found.half_width + 1e-9
    if slip == 0:
        assert found.unperturbed == pytest.approx(sum(GAMMA**k for k in range(HORIZON)))
        against_itself = measure(table, WRONG, None)
        assert [each.mean for each in against_itself] == pytest.approx(
            [-sum(GAMMA**k / 2 for k in range(n)) for n in N]
        )


def survives(table: Transitions, seed: int) -> bool:
    world = TableWorld(table)
    world.reset(seed=seed)
    return not any(world.step(0)[2] for _ in range(STEP + 1))


def test_how_long_the_agent_itself_may_act() -> None:
    for found in measure(swerving(60), WRONG, SWERVE, perturb=its_own):
        assert (found.trials, found.exact) == (1, True)
        assert found.mean == pytest.approx(sum(GAMMA**k for k in range(found.n)))


def test_an_agent_that_draws_its_actions_is_not_asked() -> None:
    # So every sequence of actions is taken once, which needs an agent without chance elsewhere.
    for found in measure(swerving(60), WRONG, SWERVE, action_choice="sampled"):
        assert found.exact
        assert found.mean == pytest.approx(sum(GAMMA**k / 2 for k in range(found.n)))
    # Mistakes that look at what it meant to do are drawn, as ever.
    noisy = measure(swerving(60), WRONG, SWERVE, perturb="noisy:0.5", action_choice="sampled")
    assert not any(found.exact for found in noisy)


def test_a_memory_of_the_agent_does_not_matter() -> None:
    for found in measure(swerving(60), Counting(), SWERVE):
        assert found.exact
        assert found.mean == pytest.approx(sum(GAMMA**k / 2 for k in range(found.n)))


def looked_ahead(table: Transitions, state: int, steps: int, n: int) -> float:
    """What n random actions of `always_first` cost if a lookahead of that many steps follows."""

    def go(at: int, action: int) -> tuple[int, float, bool]:
        (outcome,) = table[at][action]
        return outcome.state, outcome.reward, outcome.ends

    def followed(at: int, action: int) -> float:
        total = 0.0
        for step in range(steps):
            at, reward, ends = go(at, action if step == 0 else 0)
            total += GAMMA**step * reward
            if ends:
                break
        return total

    def earned(at: int, mistakes: int, left: int) -> float:
        if left == 0:
            return 0.0
        chosen = [0, 1] if mistakes else [int(followed(at, 1) > followed(at, 0))]
        found = []
        for action in chosen:
            there, reward, ends = go(at, action)
            rest = 0.0 if ends else earned(there, max(mistakes - 1, 0), left - 1)
            found.append(reward + GAMMA * rest)
        return float(np.mean(found))

    return earned(state, 0, HORIZON) - earned(state, n, HORIZON)


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_a_lookahead_against_one_by_hand(steps: int) -> None:
    table = branching(16)
    for found in measure(table, FIRST, f"lookahead:{steps}"):
        assert found.exact
        expected = looked_ahead(table, state_at(table, 0, 0), steps, found.n)
        assert found.mean == pytest.approx(expected, abs=1e-9)


def test_a_lookahead_takes_the_best_of_what_the_mask_allows() -> None:
    def careful(rows: np.ndarray) -> np.ndarray:
        odd = rows % 2 == 1
        return np.where(odd, [[0.0, 1, 0, 0]], [[0.0, 0, 0, 1]]).astype(np.float32)

    # Actions 0, 2 and 3 are legal at even steps and pay 3, 1 and 0; at odd ones, 0 and 1 pay 3, 2.
    (found,) = sm.true_criticality(
        Masked(), load_policy(careful, kind="logits"), step=4, n=1, reference="lookahead:1"
    )
    assert found.unperturbed == pytest.approx(sum(3 * 0.99**k for k in range(16)))
    assert found.mean == pytest.approx(3 - 4 / 3)
    (ahead,) = sm.true_criticality(
        Masked(), load_policy(careful, kind="logits"), step=5, n=1, reference="lookahead:1"
    )
    assert ahead.mean == pytest.approx(3 - 5 / 2)


def test_what_it_is_called() -> None:
    about = Measured("stuck", reference="expert.onnx")
    assert str(about) == (
        "n counts steps with the action stuck, and the tolerance is a loss of discounted reward "
        "with expert.onnx acting afterwards"
    )
    assert Measured(reference="lookahead:50").brief == (
        "loss of discounted reward with a lookahead of 50 steps acting afterwards"
    )
    assert Measured.from_dict(about.to_dict()) == about
    assert not about.usual
    with pytest.raises(InvalidInput, match="'measured' must name a reference, not 3"):
        Measured.from_dict({"perturb": "random", "reference": 3})


def three(rows: np.ndarray) -> np.ndarray:
    return np.zeros((len(rows), 3), np.float32)


def still(rows: np.ndarray) -> np.ndarray:
    return np.zeros((len(rows), 1), np.float32)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("lookahead", "reference 'lookahead': write it as lookahead:STEPS, with a whole number"),
        ("lookahead:0", "with a whole number of steps from 1"),
        ("lookahead:45", "looks further ahead than the horizon of 44 steps"),
        ("", "reference '': name a policy, or lookahead:STEPS"),
        ("nothing.onnx", "nothing.onnx"),
        (load_policy(three, kind="logits"), "cannot take over from the agent: .*3"),
        (load_policy(still, kind="actions"), "cannot take over from the agent"),
        (Counting(), "this policy has a memory"),
    ],
)
def test_references_that_make_no_sense(reference: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        measure(chain(60), FIRST, reference)


def test_a_lookahead_takes_what_can_be_tried() -> None:
    with pytest.raises(InvalidInput, match="reference 'lookahead:2' tries actions in one future"):
        measure(chain(60, slip=0.01), FIRST, "lookahead:2")
    with pytest.raises(InvalidInput, match="reference 'lookahead:2' tries actions in one future"):
        measure(swerving(60), WRONG, "lookahead:2", action_choice="sampled")
    with pytest.raises(InvalidInput, match="whose memory of the episode it does not know"):
        measure(swerving(60), Counting(), "lookahead:2")
    with pytest.raises(InvalidInput, match="tries every action, which takes discrete ones"):
        sm.true_criticality(
            gym.make("Pendulum-v1"), load_policy(still, kind="actions"), step=0, n=1,
            reference="lookahead:2",
        )  # fmt: skip
