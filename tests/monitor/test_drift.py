"""The test for drift: its law by hand, its false alarms and its delay in simulation."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from safemargin.errors import InvalidInput, MarginsFileError
from safemargin.margins.fitting import fit_margins
from safemargin.margins.lookup import Margins
from safemargin.margins.natural_proxies import NaturalProxies, draw_one_per_episode, summarise
from safemargin.monitor.drift import DriftTest


def test_wealth_is_one_on_average_whatever_the_bets() -> None:
    """All ways of the urn, weighed by their chance: a martingale, to the last bit."""
    natural = summarise(np.arange(9.0))  # two bins of five gaps: edge at the fifth value
    total, chance_of_all = 0.0, 0.0
    for bins in itertools.product((0, 1), repeat=5):
        test = DriftTest(natural, false_alarms=1e-9)
        urn, chance = [5, 5], 1.0
        for hit in bins:
            chance *= urn[hit] / sum(urn)
            urn[hit] += 1
            test.add(-1.0 if hit == 0 else 99.0)
        total += chance * test.state.evidence
        chance_of_all += chance
    assert chance_of_all == pytest.approx(1)
    assert total == pytest.approx(1)


def test_steps_that_hang_together_make_no_false_alarm() -> None:
    """Each episode sits at one level: all its steps are alike, and drawing one is still fair."""
    rng = np.random.default_rng(5)
    fired = 0
    for _ in range(30):
        episodes = [np.full(50, level) for level in rng.normal(size=200)]
        test = DriftTest(summarise(draw_one_per_episode(episodes, rng)), false_alarms=0.05)
        fired += any(test.add(level) for level in rng.normal(size=100))
    assert fired <= 5


def test_the_alarm_stays_on() -> None:
    test = DriftTest(summarise(np.arange(100.0)), false_alarms=0.01)
    evidence = [test.state.evidence]
    high = itertools.cycle([95.0, 75.0, 55.0])
    while not test.add(next(high)):
        evidence.append(test.state.evidence)
    assert max(evidence) < 100 <= test.state.evidence  # it goes off at 1 / false_alarms, not later
    after = test.episodes
    assert 3 <= after <= 20
    assert test.add(50.0)
    assert test.episodes == after
    assert "so their guarantee is void" in test.state.why
    calm = DriftTest(summarise(np.arange(100.0)))
    calm.add(50.0)
    assert calm.state.why.startswith("no sign of drift in 1 episode (")


def test_ties_are_shared_out() -> None:
    """A proxy that is always the same never looks like drift."""
    test = DriftTest(summarise(np.zeros(200)), seed=1)
    assert not any(test.add(0.0) for _ in range(300))


def test_too_few_episodes_and_bad_rates() -> None:
    with pytest.raises(InvalidInput, match="takes 9 episodes behind the margins, there are 8"):
        DriftTest(summarise(np.arange(8.0)))
    with pytest.raises(InvalidInput, match="false_alarms must lie between 0 and 1, got 0"):
        DriftTest(summarise(np.arange(20.0)), false_alarms=0)


def test_a_summary_is_small_and_in_order() -> None:
    found = summarise(np.random.default_rng(0).permutation(5000).astype(float))
    assert len(found.ranks) == 101
    assert found.values.tolist() == (found.ranks - 1).tolist()
    assert (found.ranks[0], found.ranks[-1], found.count) == (1, 5000, 5000)
    assert summarise([3.0, 1.0]).values.tolist() == [1, 3]
    again = NaturalProxies.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    with pytest.raises(InvalidInput, match="must be finite numbers, one for each episode"):
        summarise([1.0, math.nan])


def test_one_decision_of_each_episode() -> None:
    rng = np.random.default_rng(0)
    drawn = draw_one_per_episode([np.array([1.0, 2.0]), np.array([]), np.array([7.0])], rng)
    assert len(drawn) == 2
    assert drawn[0] in (1, 2)
    assert drawn[1] == 7


def fitted(**options: Any) -> Margins:
    rng = np.random.default_rng(0)
    return fit_margins(rng.random(60), rng.random((60, 2)), (1, 2), 0.9, **options)


def test_margins_carry_the_summary() -> None:
    assert fitted().natural_proxies.count == 60  # type: ignore[union-attr]
    own = fitted(natural=np.arange(60) < 40, groups=np.arange(60) // 2).natural_proxies
    assert own is not None
    assert own.count == 20
    given = fitted(natural_proxies=np.arange(30.0))
    again = Margins.from_dict(given.to_dict())
    assert again.natural_proxies is not None
    assert again.natural_proxies.values.tolist() == list(range(30))
    older = {**given.to_dict(), "version": 2}
    assert Margins.from_dict(older).natural_proxies is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"count": 5}, "must increase from 1 to at most 5"),
        ({"count": "many"}, "the count of natural_proxies is 'many'"),
        ({"ranks": [1, 2]}, "as many ranks as values and ties"),
        ({"ranks": "all"}, "the ranks of natural_proxies must be a list of numbers"),
        ({"values": [3.0, 1.0, 2.0]}, "must be finite and in order"),
        ({"ties": [0.0, 1.0, 0.5]}, r"must lie in \[0, 1\)"),
        ({"more": 1}, "must hold count, ranks, values and ties"),
    ],
)
def test_a_damaged_summary_is_refused(changes: Any, text: str) -> None:
    whole = {"count": 10, "ranks": [1, 5, 10], "values": [0.0, 1.0, 2.0], "ties": [0.5] * 3}
    document = {**fitted().to_dict(), "natural_proxies": {**whole, **changes}}
    with pytest.raises(MarginsFileError, match=text):
        Margins.from_dict(document)
