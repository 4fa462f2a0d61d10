"""Losses of other signals than discounted reward, against worlds where they are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.worlds import Costly, TableWorld, always_first, branching, chain, swerve, swerving

import safemargin as sm
from safemargin.core.measured import Measured, loss_in_words
from safemargin.core.settings import Settings
from safemargin.criticality.one_moment import DiagnosisCorrected
from safemargin.errors import EnvironmentFault, InvalidInput
from safemargin.policies import load_policy

POLICY = load_policy(always_first, kind="logits")
GAMMA, STEP = 0.99, 7


def measure(env: Any, signal: str, *, policy: Any = POLICY, **given: Any) -> list[sm.Estimate]:
    settings = Settings(signal=signal, **given)
    return sm.true_criticality(env, policy, step=STEP, n=[1, 2, 4], settings=settings)


def costly(*, slip: float = 0.0) -> Costly:
    """Walks on whatever is done, except that it ends by chance."""
    return Costly(TableWorld(swerving(60, slip=slip), starts=5))


def always_zero(rows: np.ndarray) -> np.ndarray:
    sure = 1 + rows @ np.arange(rows.shape[1], dtype=np.float32)
    return np.stack([sure, 0 * sure], axis=1).astype(np.float32)


ZERO = load_policy(always_zero, kind="logits")


@pytest.mark.parametrize(
    ("signal", "each"), [("cost", 2.0), ("cost:cost", 2.0), ("info:budget", 3.0)]
)
@pytest.mark.parametrize("slip", [0.0, 0.05])
def test_what_the_info_says(signal: str, each: float, slip: float) -> None:
    # The agent never takes action 1; half of random actions are that, and cost `each`.
    world = costly(slip=slip)
    seed = next(s for s in range(99) if survives(world, s))
    for found in sm.true_criticality(
        world,
        ZERO,
        step=STEP,
        n=[1, 2, 4],
        seed=seed,
        settings=Settings(signal=signal, trials=400),
    ):
        expected = sum((GAMMA * (1 - slip)) ** k * each / 2 for k in range(found.n))
        assert found.exact == (slip == 0)
        assert abs(found.mean - expected) <= 2.5 * found.half_width + 1e-9
        assert found.unperturbed == pytest.approx(0.0, abs=1e-12)


def survives(world: Any, seed: int) -> bool:
    world.reset(seed=seed)
    return not any(world.step(0)[2] for _ in range(STEP + 1))


def test_a_cost_that_falls_is_a_gain() -> None:
    def always_one(rows: np.ndarray) -> np.ndarray:
        return -always_zero(rows)

    for found in measure(costly(), "cost", policy=load_policy(always_one, kind="logits")):
        assert found.mean == pytest.approx(-sum(GAMMA**k for k in range(found.n)), abs=1e-9)


def test_undiscounted() -> None:
    policy = load_policy(swerve, kind="logits")
    for found in measure(TableWorld(swerving(60)), "undiscounted", policy=policy):
        # Half of the actions are wrong and cost 1, whenever they are taken.
        assert found.mean == pytest.approx(found.n / 2, abs=1e-12)
        assert found.unperturbed == 60 - STEP


def test_steps_before_the_end() -> None:
    # The walk survives each random action with 1/2. A fatal step counts, too.
    for found in measure(TableWorld(chain(60)), "termination"):
        left = 60 - STEP
        steps = sum(0.5 ** min(k, found.n) for k in range(left))
        assert found.unperturbed == left
        assert found.exact
        assert found.mean == pytest.approx(left - steps, abs=1e-9)


def test_steps_before_the_end_in_a_stochastic_world() -> None:
    slip = 0.02
    for found in measure(TableWorld(chain(60, slip=slip)), "termination", trials=600):
        own = [(1 - slip) ** k for k in range(60 - STEP)]
        alive = [((1 - slip) / 2) ** min(k, found.n) * (1 - slip) ** max(k - found.n, 0)
                 for k in range(60 - STEP)]  # fmt: skip
        assert found.trials == 600
        assert abs(found.mean - (sum(own) - sum(alive))) <= 2.5 * found.half_width


@pytest.mark.parametrize("slip", [0.0, 0.02])
def test_the_probability_of_an_end_within_the_horizon(slip: float) -> None:
    # With a horizon of 44 steps, the agent itself does not come to the end of the world.
    found = measure(TableWorld(chain(60, slip=slip)), "failure", gamma=0.9, trials=600)
    for estimate in found:
        own = (1 - slip) ** 44
        alive = ((1 - slip) / 2) ** estimate.n * (1 - slip) ** (44 - estimate.n)
        assert abs(estimate.mean - (own - alive)) <= 2.5 * estimate.half_width + 1e-9
        assert estimate.exact == (slip == 0)
    if slip == 0:
        assert [each.unperturbed for each in found] == [0.0] * 3


def test_reward_is_what_it_was() -> None:
    table = TableWorld(branching(40))
    assert measure(table, "reward") == sm.true_criticality(table, POLICY, step=STEP, n=[1, 2, 4])


def test_signals_and_perturbations_go_together() -> None:
    settings = Settings(signal="cost")
    found = sm.true_criticality(
        costly(), ZERO, step=STEP, n=[1, 3], perturb="stuck:1", settings=settings
    )
    assert [each.mean for each in found] == pytest.approx(
        [2.0, 2 * (1 + GAMMA + GAMMA**2)], abs=1e-12
    )


@pytest.mark.parametrize(
    ("signal", "message"),
    [
        ("costs", "signal 'costs' is unknown; did you mean 'cost'"),
        ("info", "signal 'info': write it as info:KEY"),
        ("reward:2", "signal 'reward:2': write it as reward"),
        ("failure:", "signal 'failure:': write it as failure"),
    ],
)
def test_unknown_signals(signal: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Settings(signal=signal)


def test_a_cost_that_the_environment_does_not_give() -> None:
    with pytest.raises(
        InvalidInput, match="the info of step 8 has no 'cost'; it holds nothing; name one"
    ):
        measure(TableWorld(branching(40)), "cost")
    with pytest.raises(InvalidInput, match="has no 'budgte'; did you mean 'budget'"):
        measure(costly(), "info:budgte")
    with pytest.raises(EnvironmentFault, match="holds 'costly' as 'name', not a finite number"):
        measure(costly(), "cost:name")


def test_in_words() -> None:
    assert loss_in_words("cost:energy") == "rise of discounted energy"
    assert str(Measured("stuck", "termination")) == (
        "n counts steps with the action stuck, and the tolerance is a loss of steps before the end"
    )
    assert Measured().brief == ""
    assert Measured(signal="cost").brief == "rise of discounted cost"


def test_a_cost_that_depends_on_hidden_state_is_found() -> None:
    hidden = {"steps": 0}

    class Sly(Costly):
        def step(self, action: int) -> Any:
            *before, info = super().step(action)
            hidden["steps"] += 1  # out of reach of any snapshot, and of a reset
            return *before, {**info, "cost": float(hidden["steps"])}

    with (
        pytest.warns(DiagnosisCorrected, match="the environment hides state"),
        pytest.raises(EnvironmentFault, match="the environment hides state"),
    ):
        measure(Sly(TableWorld(swerving(60))), "cost", policy=load_policy(swerve, kind="logits"))


def test_a_horizon_shorter_than_the_second_proof() -> None:
    (found,) = sm.true_criticality(
        costly(), ZERO, step=3, n=1, settings=Settings(signal="cost", gamma=0.5, n_values=(1,))
    )
    assert found.mean == 1.0
