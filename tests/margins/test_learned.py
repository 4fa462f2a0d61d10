"""Learned proxies: the models, what they never see, and the probe that travels."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.learned import crossfit, models
from safemargin.margins.learned.choosing import (
    Judge,
    choose,
    farthest_of,
    mean_margin,
    telling_tolerances,
    values_for_fold,
    worth_of,
)
from safemargin.margins.learned.crossfit import Lessons, cross_fit, fold_of_groups, train
from safemargin.margins.learned.models import (
    Recipe,
    broken_share,
    fit_networks,
    fit_view,
    largest_loss,
    log_size,
    main_directions,
    mean_log_size,
)
from safemargin.margins.learned.probe import Layer, Probe, predict
from safemargin.margins.methods import Promise

RIDGE = Recipe("ridge", "largest loss")
N_VALUES = (1, 2)
NO_KIN = np.zeros((0, 2), np.int64)


def lessons(count: int = 200, *, seed: int = 0, groups: Any = None, kin: Any = NO_KIN) -> Lessons:
    """Losses that follow one direction of 30 inputs, with noise."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(count, 30)).astype(np.float32)
    size = np.exp(inputs[:, 0])[:, None] * np.abs(1 + 0.2 * rng.normal(size=(count, 1)))
    given = np.arange(count) if groups is None else np.asarray(groups)
    return Lessons(inputs, size * [0.5, 1.0], given, np.asarray(kin))


def test_targets_by_hand() -> None:
    losses = np.array([[0.0, 0.0], [-3.0, 1.0], [0.5, 1.0]])
    assert largest_loss(losses).tolist() == [0.0, 1.0, 1.0]
    np.testing.assert_allclose(log_size(losses), np.log(np.array([0, 3, 1]) + 0.2))
    sizes = np.array([[0, 0], [3, 3], [0.5, 1]])  # the largest so far, to either side
    np.testing.assert_allclose(mean_log_size(losses), np.log(sizes + 0.2).mean(axis=1))
    few = np.array([[0.0, 1.0], [2.0, 1.0], [3.0, 3.0], [0.0, 0.0]])  # quartiles 1.5, 2, 2.5
    np.testing.assert_allclose(broken_share(few), [0, 1 / 3, 1, 0])
    assert broken_share(np.zeros((2, 2))).tolist() == [0, 0]


def test_main_directions_are_those_of_a_whole_decomposition() -> None:
    rng = np.random.default_rng(1)
    for shape in ((60, 300), (400, 300)):
        rows = rng.normal(size=(shape[0], 20)) * np.geomspace(9, 1, 20)
        ready = (rows @ rng.normal(size=(20, 300)) + 0.1 * rng.normal(size=shape)).astype(
            np.float32
        )
        found = main_directions(ready, 10)
        exact = np.linalg.svd(ready, full_matrices=False)[2][:10].T
        np.testing.assert_allclose(found.T @ found, np.eye(10), atol=1e-5)
        assert np.linalg.svd(found.T @ exact)[1].min() > 0.999
    assert main_directions(np.ones((8, 5), np.float32), 3).shape == (5, 1)


def test_the_leave_one_out_error_of_ridge_is_that_of_leaving_one_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The penalty with the least closed-form error has the least error by brute force, too."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(25, 8)).astype(np.float32)
    target = rows[:, 0] + rng.normal(size=25)
    penalties = np.array([0.01, 1.0, 10.0, 100.0])

    def fitted(kept: Any, penalty: float) -> Layer:
        monkeypatch.setattr(models, "PENALTIES", np.array([penalty]))
        return models._ridge(rows[kept], target[kept])

    errors = []
    for penalty in penalties:
        left = 0.0
        for out in range(25):
            layer = fitted(np.arange(25) != out, penalty)
            left += float((rows[out] @ layer.weights[:, 0] + layer.bias[0] - target[out]) ** 2)
        errors.append(left)
    monkeypatch.setattr(models, "PENALTIES", penalties)
    chosen = models._ridge(rows, target)
    best = fitted(np.arange(25) >= 0, penalties[int(np.argmin(errors))])
    np.testing.assert_allclose(chosen.weights, best.weights)


@pytest.mark.parametrize("recipe", models.RECIPES, ids=str)
def test_every_model_finds_what_the_losses_follow(recipe: Recipe) -> None:
    taught, asked = lessons(), lessons(seed=1)
    view = fit_view(taught.inputs)
    networks = fit_networks(recipe, view(taught.inputs)[0], taught.losses, 0)
    values = predict(networks, view(asked.inputs)[0])
    assert np.corrcoef(values, asked.inputs[:, 0])[0, 1] > 0.6


class TestNothingLeaks:
    def seen_in_training(self, monkeypatch: pytest.MonkeyPatch) -> list[Lessons]:
        seen: list[Lessons] = []

        def spy(given: Lessons, *arguments: Any, **options: Any) -> Any:
            seen.append(given)
            return train(given, *arguments, **options)

        monkeypatch.setattr(crossfit, "train", spy)
        return seen

    def test_no_model_sees_the_group_of_a_moment_that_it_judges(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = lessons(groups=np.arange(200) // 4)
        seen = self.seen_in_training(monkeypatch)
        found = cross_fit(given, recipes=[RIDGE])
        assert np.isfinite(found.values[RIDGE]).all()
        assert len(seen) == 5
        for fold, taught in enumerate(seen):
            judged = given.groups[found.folds == fold]
            assert len(judged)
            assert not set(judged) & set(taught.groups)
            assert len(judged) + len(taught) == len(given)

    def test_labels_near_a_judged_moment_are_left_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups = np.where(np.arange(200) < 150, np.arange(200), -1)
        kin = [(150 + number, number) for number in range(50)]  # label, group
        given = lessons(groups=groups, kin=kin)
        seen = self.seen_in_training(monkeypatch)
        found = cross_fit(given, recipes=[RIDGE])
        assert np.isnan(found.values[RIDGE][150:]).all()
        assert (found.folds[150:] == -1).all()
        for fold, taught in enumerate(seen):
            judged = set(np.flatnonzero(found.folds == fold))
            near = {150 + group for group in judged if group < 50}
            kept = {
                int(np.flatnonzero((given.inputs == row).all(axis=1))[0]) for row in taught.inputs
            }
            assert not kept & (judged | near)
            assert len(kept) == 200 - len(judged) - len(near)

    def test_noise_is_not_predicted(self) -> None:
        """A model that saw the moment itself would remember its loss."""
        given = lessons(120)
        noise = np.random.default_rng(5).exponential(size=(120, 2))
        values = cross_fit(
            Lessons(given.inputs, noise, given.groups, NO_KIN), recipes=[RIDGE]
        ).values[RIDGE]
        assert abs(np.corrcoef(values, noise.max(axis=1))[0, 1]) < 0.3

    def test_values_for_a_fold_do_not_depend_on_its_losses(self) -> None:
        given = lessons(150)
        natural = np.ones(150, bool)
        seen = np.arange(150) < 120
        changed = Lessons(given.inputs, given.losses.copy(), given.groups, NO_KIN)
        changed.losses[~seen] = 99.0
        judges = [Judge((1.0,)), Judge((1.0,), "margin")]
        before = values_for_fold(given, natural, N_VALUES, seen, judges, recipes=[RIDGE])
        after = values_for_fold(changed, natural, N_VALUES, seen, judges, recipes=[RIDGE])
        assert np.isfinite(before).all()
        assert np.array_equal(before, after)
        assert np.array_equal(before[0], before[1])  # there was but one recipe


def test_folds_keep_groups_whole_and_are_even() -> None:
    given = lessons(groups=np.arange(200) // 7)
    fold = fold_of_groups(given, 5, seed=0)
    assert all(len(set(fold[given.groups == group])) == 1 for group in range(29))
    assert np.ptp(np.bincount(fold)) <= 14
    with pytest.raises(InvalidInput, match="lie on 3 separate plays, and it takes 5"):
        fold_of_groups(lessons(groups=np.arange(200) % 3), 5, seed=0)
    with pytest.raises(InvalidInput, match="too few to learn from"):
        train(lessons(10), [RIDGE], seed=0)


def test_the_better_recipe_is_chosen() -> None:
    given = lessons()
    choice = choose(given, np.ones(200, bool), N_VALUES, Judge((1.0,)), recipes=[RIDGE])
    assert choice.recipe == RIDGE
    assert 0.3 < choice.worth[RIDGE] <= 1
    assert len(choice.values) == 200


def test_each_promise_is_judged_by_what_it_would_grant() -> None:
    given, natural = lessons(400), np.ones(400, bool)
    values = largest_loss(given.losses)
    worth = {
        promise: worth_of(values, given, natural, N_VALUES, Judge((1.0,), promise))
        for promise in get_args(Promise)
    }
    # Some of what is granted may fail, so more than perfect knowledge would grant is possible.
    assert 0.8 < worth["bound"] < worth["margin"] < 1.05
    with pytest.raises(InvalidInput, match="the promise 'nothing'"):
        worth_of(values, given, natural, N_VALUES, Judge((1.0,), "nothing"))  # type: ignore[arg-type]


def test_margins_and_tolerances_by_hand() -> None:
    losses = np.array([[0.0, 0.0], [0.1, 0.6], [0.7, 0.2]])
    assert mean_margin(losses, (1, 4), 0.5) == pytest.approx((4 + 1 + 0) / 3)
    assert telling_tolerances(np.array([[0.1], [0.2], [0.3], [0.4], [0.0]])) == (0.2, 0.3)
    assert telling_tolerances(np.zeros((3, 2))) == (1.0,)


class TestProbe:
    @pytest.fixture
    def probe(self) -> Probe:
        given = lessons()
        fold = train(given, [RIDGE], seed=0)
        return Probe(
            kind="q",
            policy="sha256:x",
            hidden_width=8,
            view=fold.view,
            networks=fold.networks[RIDGE],
            farthest=3.0,
            about={"model": "ridge"},
        )

    def test_it_comes_back_from_json_as_it_was(self, probe: Probe) -> None:
        again = Probe.from_dict(json.loads(json.dumps(probe.to_dict())))
        assert again.identity == probe.identity
        inputs = lessons(seed=2).inputs
        assert np.array_equal(again(inputs)[0], probe(inputs)[0])
        assert again.about == {"model": "ridge"}

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"kind": "scores"}, "does not say whose scores"),
            ({"hidden_width": -1}, "hidden_width"),
            ({"farthest": "far"}, "distances must be finite"),
            ({"rest": 1e-40}, "rest of the probe's view must be 0, or 1e-06 or more"),
            ({"networks": []}, "holds no network"),
            ({"mean": {"type": "float32", "shape": [3], "base64": "AAAA"}}, "is damaged"),
            ({"mean": {"type": "int8", "shape": [1], "base64": "AA=="}}, "no base64 of float16"),
            ({"spreads": {"type": "float16", "shape": [1], "base64": "AHw="}}, "not finite"),
            ({"spreads": {"type": "float16", "shape": [1], "base64": "ADw="}}, "do not fit"),
        ],
    )
    def test_a_damaged_one_is_refused(
        self, probe: Probe, change: dict[str, Any], match: str
    ) -> None:
        with pytest.raises(InvalidInput, match=match):
            Probe.from_dict({**probe.to_dict(), **change})

    def test_few_like_those_it_was_trained_on_are_outside(self) -> None:
        """At most one in a hundred, as stated; moments of another kind are."""
        given = lessons(400)
        found = cross_fit(given, recipes=[RIDGE])
        farthest, rate = farthest_of(found.distances)
        assert rate == pytest.approx(1 - 397 / 401)
        view = fit_view(given.inputs)
        fresh = lessons(20_000, seed=9).inputs
        assert (view(fresh)[1] > farthest).mean() < 0.02
        assert (view(fresh + 3)[1] > farthest).mean() > 0.9

    def test_the_rate_is_what_few_moments_allow(self) -> None:
        farthest, rate = farthest_of(np.array([1.0, 3.0, 2.0]))
        assert farthest == 3.0
        assert rate == pytest.approx(0.25)


def test_worth_is_0_where_values_do_not_vary() -> None:
    given = lessons(60)
    same: Floats = np.ones(60)
    assert worth_of(same, given, np.ones(60, bool), N_VALUES, Judge((1.0,))) == 0.0
