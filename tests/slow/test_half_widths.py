"""Do estimates lie within their stated half-width as often as stated? Worlds with known truth.

The rule is Student's t with repeated looks, so it is exact only for normal losses; what is
checked is that in worlds with rather different losses it holds to within a few points.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.worlds import (
    TableWorld,
    Transitions,
    always_first,
    branching,
    chain,
    exact_criticality,
)

from safemargin.core.records import EpisodeKey
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.criticality.rollouts import Runner
from safemargin.environments import make_simulator
from safemargin.policies import load_policy

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("table", "stochastic", "n", "sampling_error"),
    [
        (branching(40), False, 8, 0.8),
        (branching(40), False, 32, 0.8),
        (branching(40, noise=0.1), True, 4, 1.0),
        (chain(60), False, 1, 6.0),
        (chain(60, slip=0.02), True, 2, 6.0),
    ],
)
def test_half_widths_hold(
    table: Transitions, stochastic: bool, n: int, sampling_error: float, whole: bool
) -> None:
    studies = 1500 if whole else 80
    exact = exact_criticality(table, state=0, n=n, gamma=0.99, horizon=459)
    errors, within, trials = [], 0, []
    for seed in range(studies):
        settings = Settings(trial_plan="paper", sampling_error=sampling_error, seed=seed)
        policy = load_policy(always_first, kind="logits")
        runner = Runner(make_simulator(TableWorld(table)), policy, settings)
        episode = runner.run_episode(EpisodeKey("natural", 0))
        randomness = Randomness(environment=stochastic, policy=False)
        estimate = MomentMeasurer(runner, episode, 0, randomness).measure(n)[0].estimate
        assert not estimate.capped
        errors.append(estimate.mean - exact)
        trials.append(estimate.trials)
        within += abs(estimate.mean - exact) <= estimate.half_width
    share = within / studies
    bias = np.mean(errors)
    print(
        f"\nexact {exact:.3f}, within the half-width {share:.3f} (stated 0.95), "
        f"mean error {bias:+.4f} ± {np.std(errors) / np.sqrt(studies):.4f}, "
        f"{np.mean(trials):.1f} trials"
    )
    # Three binomial deviations below, and three points for peeking and for losses that are not
    # normal; a rule with a wrong quantile or deviation misses this by far.
    assert share >= 0.95 - 0.03 - 3 * np.sqrt(0.95 * 0.05 / studies)
    # Nor may the intervals be idly wide.
    assert share <= 0.99 + 3 * np.sqrt(0.05 * 0.95 / studies)
    assert abs(bias) <= 5 * np.std(errors) / np.sqrt(studies) + 0.1 * sampling_error
