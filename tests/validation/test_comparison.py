"""Comparing methods and proxies: who wins, who may not, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers.margins import measured_tuples

from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Options, Sample
from safemargin.margins.bounds.table import Bound
from safemargin.margins.methods import METHODS
from safemargin.validation.comparison import VARIANTS, compare_samples, compare_tuples
from safemargin.validation.paired import jackknife_p_value, sign_flip_p_value


def samples(moments: int = 400, **more: Any) -> dict[str, Sample]:
    """One proxy that shows how large losses get, and one that shows nothing."""
    rng = np.random.default_rng(0)
    good = rng.gamma(2, 1, moments)
    losses = good[:, None] * rng.random((moments, 1)) * [0.5, 1.0, 2.0]
    proxies = {"good": good, "idle": rng.random(moments)}
    return {
        name: Sample.from_arrays(values, losses, (1, 2, 4), **more)
        for name, values in proxies.items()
    }


def test_all_methods_with_all_proxies() -> None:
    calls: list[tuple[int, int]] = []
    found = compare_samples(
        samples(),
        confidence=0.9,
        tolerances=[1.0, 3.0],
        progress=lambda done, total: calls.append((done, total)),
    )
    assert set(METHODS) < set(VARIANTS)
    assert len(found.candidates) == 2 * len(VARIANTS)
    assert calls[-1] == (2 * len(VARIANTS) * 5, 2 * len(VARIANTS) * 5)
    assert (found.moments, found.natural_moments) == (400, 400)
    assert len(found.winners) == 2
    for winner in found.winners:
        assert winner is not None
        assert winner.holds
    assert found.winners[0] is not None
    assert found.winners[0].proxy == "good"
    calibrated = found.candidates[0]
    assert (calibrated.method, calibrated.proxy) == ("calibrated", "good")
    assert calibrated.coverage.share == pytest.approx(0.9, abs=0.04)
    assert calibrated.worst_part.share is not None
    assert calibrated.worst_part.share <= calibrated.coverage.share
    assert calibrated.mean_margins[0] < calibrated.mean_margins[1]
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["winners"][0]["proxy"] == "good"
    assert found.gaps is None


@pytest.mark.parametrize(
    ("differences", "p_value"),
    [
        ([], 1.0),
        ([0.0, 0.0], 1.0),
        ([2.0, -2.0], 1.0),
        ([1.0] * 4, 2 / 16),
        ([3.0, 0.0] * 4, 2 / 16),  # whatever the unit; zeros show nothing
        ([-1.0] * 9, 2 / 512),
        ([1.0, 1.0, 1.0, -1.0], 10 / 16),
        ([1.0] * 16, 6.33e-5),  # 4 standard deviations
        ([1.0] * 16 + [-1.0] * 9, 0.1615),  # 7 / 5
    ],
)
def test_the_paired_test(differences: list[float], p_value: float) -> None:
    assert sign_flip_p_value(np.array(differences)) == pytest.approx(p_value, abs=1e-4, rel=1e-3)


def test_few_moments_decide_nothing_and_many_do() -> None:
    options: dict[str, Any] = {
        "confidence": 0.8,
        "tolerances": [1.5],
        "methods": ["calibrated", "paper, no lift"],
    }
    many = compare_samples(samples(), **options)
    assert many.winners[0] is not None
    assert many.winners[0].names == {"method": "calibrated", "proxy": "good"}
    assert many.undecided == ((),)
    few = compare_samples(samples(20), **options)
    assert few.winners[0] is not None
    (others,) = few.undecided
    assert len(others) == len(few.rivals()) - 1 == 1
    assert few.to_dict()["undecided"] == [[others[0].names]]
    assert not any(each.can_win for each in few.candidates if each.method == "paper, no lift")


def test_moments_of_one_game_count_once() -> None:
    games = np.repeat(np.arange(4), 100)  # a hundred moments each
    options: dict[str, Any] = {"confidence": 0.8, "tolerances": [1.5], "methods": ["calibrated"]}
    assert compare_samples(samples(), **options).undecided == ((),)
    (others,) = compare_samples(samples(groups=games), **options).undecided
    assert len(others) == 1


def test_one_that_breaks_its_promise_cannot_win(monkeypatch: pytest.MonkeyPatch) -> None:
    def reckless(sample: Sample, options: Options) -> Bound:
        grid = np.linspace(sample.proxies.min(), sample.proxies.max(), 9)
        return Bound(
            sample.n_values, np.tile(grid, (3, 1)), np.zeros((3, 9)), options.confidence, "paper"
        )

    monkeypatch.setitem(METHODS, "paper", reckless)
    found = compare_samples(
        samples(), confidence=0.9, tolerances=[1.0], methods=["paper", "calibrated"]
    )
    assert [row.holds for row in found.candidates if row.method == "paper"] == [False, False]
    assert found.winners[0] is not None
    assert found.winners[0].method == "calibrated"
    alone = compare_samples(samples(), confidence=0.9, tolerances=[1.0], methods=["paper"])
    assert alone.winners == (None,)


def test_one_that_holds_nearly_everywhere_but_not_on_the_whole_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def low(sample: Sample, options: Options) -> Bound:
        grid = np.linspace(0, 1, 9)
        return Bound(sample.n_values, grid[None], np.ones((1, 9)), options.confidence, "paper")

    monkeypatch.setitem(METHODS, "paper", low)
    losses = np.where(np.arange(500) % 12 == 0, 2.0, 0.0)[:, None]  # 0.916 are below 1
    sample = {"p": Sample.from_arrays(np.arange(500) / 499, losses, (1,))}
    found = compare_samples(sample, confidence=0.95, tolerances=[0.5], methods=["paper"])
    (row,) = found.candidates
    assert row.coverage.high < 0.95 < row.worst_part.high
    assert not row.holds
    lenient = compare_samples(sample, confidence=0.9, tolerances=[0.5], methods=["paper"])
    assert lenient.candidates[0].holds


def test_a_proxy_that_does_not_vary_is_left_out() -> None:
    both = samples()
    losses = both["good"].losses
    both["stuck"] = Sample.from_arrays(np.ones(400), losses, (1, 2, 4))
    found = compare_samples(both, methods=["calibrated", "paper"])
    assert {row.proxy for row in found.candidates} == {"good", "idle"}
    assert any(
        "calibrated with stuck: all 320 proxies are equal" in text for text in found.left_out
    )
    with pytest.raises(InvalidInput, match="nothing could be compared: calibrated with stuck"):
        compare_samples({"stuck": both["stuck"]}, methods=["calibrated"])


def test_too_few_moments_are_noted() -> None:
    found = compare_samples(samples(), confidence=0.999, methods=["calibrated"])
    assert found.candidates[0].no_bound == 1.0
    assert "needs 999 natural moments" in found.candidates[0].notes[0]


def test_from_tuples() -> None:
    whole = samples()["good"]
    tuples = measured_tuples(
        np.array(["natural", "spread"] * 200),
        whole.proxies[:, 0],
        whole.losses,
        groups=np.arange(400) // 2,
        runs=np.repeat(whole.losses[:, None], 3, axis=1),
    )
    found = compare_tuples([tuples], methods=["calibrated"], tolerances=[1.0])
    assert (found.estimand, found.natural_moments) == ("mean", 200)
    assert found.candidates[0].proxy == "q_range"
    single = compare_tuples(
        [tuples], methods=["calibrated"], tolerances=[1.0], estimand="single-run"
    )
    assert single.estimand == "single-run"
    # Three runs of a moment are one test.
    assert single.candidates[0].coverage.tested == found.candidates[0].coverage.tested


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"methods": ["papers"]}, "method 'papers' is unknown; did you mean 'paper"),
        ({"tolerances": []}, "one or more tolerances of at least 0"),
        ({"tolerances": [-1.0]}, "one or more tolerances of at least 0"),
        ({"confidence": 1.0}, "confidence must lie between 0 and 1"),
    ],
)
def test_bad_input(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        compare_samples(samples(60), **changes)


def test_no_proxy_and_no_natural_moment() -> None:
    with pytest.raises(InvalidInput, match="nothing to compare: no proxy"):
        compare_samples({})
    with pytest.raises(InvalidInput, match="needs natural moments, and there are none"):
        compare_samples(samples(60, natural=np.zeros(60, dtype=bool)))


def test_copies_of_one_episode_are_refused() -> None:
    with pytest.raises(InvalidInput, match="all moments belong to one group"):
        compare_samples(samples(groups=["one"] * 400), confidence=0.9)


@pytest.mark.parametrize(
    ("difference", "refitted", "p_value"),
    [
        (1.0, [0.5, 1.5], 0.2952),  # a spread of ½, and one degree of freedom: 1 − 2 atan(2) / π
        (1.0, [1.0, 1.0, 1.0], 0.0),
        (0.0, [0.0, 0.0, 0.0], 1.0),
        (-2.0, [-1.5, -2.5, -2.0, -2.0, -2.0], 0.0341),  # 2 / √0.4 with four
    ],
)
def test_the_jackknife_over_fits(difference: float, refitted: list[float], p_value: float) -> None:
    assert jackknife_p_value(difference, np.array(refitted)) == pytest.approx(p_value, abs=1e-4)


def test_equally_good_proxies_are_not_told_apart() -> None:
    """Random signs alone would tell half of such pairs apart: all moments share the fits' luck."""
    told_apart = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        danger = rng.gamma(2, 1, 200)
        losses = danger[:, None] * rng.random((200, 1)) * [0.5, 1.0, 2.0]
        equals = {
            name: Sample.from_arrays(danger + rng.normal(0, 0.7, 200), losses, (1, 2, 4))
            for name in ("one", "other")
        }
        found = compare_samples(equals, confidence=0.9, tolerances=[2.0], methods=["calibrated"])
        assert len(found.rivals()) == 2
        told_apart += found.undecided == ((),)
    assert told_apart <= 1
