"""Learning a proxy from a study: from the measured moments to a monitor that runs the model."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.small_policies import write_careful_driver
from helpers.worlds import make_dark_road, make_risky_road

import safemargin as sm
from safemargin.errors import InvalidInput, StudyIncomplete, StudyMismatch
from safemargin.margins.learned.models import Recipe
from safemargin.margins.learned.probe import Layer
from safemargin.policies.features import with_value
from safemargin.study.lessons import LABELS, open_labels
from safemargin.study.store import DATABASE

SETTINGS = sm.Settings(gamma=0.5, n_values=(1, 2, 4))
ON_ONE_CORE = {"workers": 1}


@pytest.fixture(scope="module", autouse=True)
def small_ensembles() -> Iterator[None]:
    """One network instead of several, to save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("safemargin.margins.learned.models.MEMBERS", 1)
        yield


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_careful_driver(tmp_path_factory.mktemp("driver") / "driver.onnx")


@pytest.fixture(scope="module")
def learned(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of 100 natural and 20 spread moments, with a learned proxy."""
    folder = tmp_path_factory.mktemp("learned") / "study"
    with sm.Study.create(folder, make_risky_road, str(driver), SETTINGS) as study:
        study.collect(natural=100, spread=20, **ON_ONE_CORE)
        found = study.learn(tolerance=0.2, **ON_ONE_CORE)
    assert found.recipe is not None
    return folder


@pytest.fixture
def copy(learned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(learned, tmp_path / "study"))


def reopened(folder: Path) -> sm.Study:
    return sm.Study.open(folder, env=make_risky_road)


def test_the_learned_proxy_grants_what_the_agent_can_afford(learned: Path) -> None:
    with reopened(learned) as study:
        found = study.store.meta("learned")["found"]
        assert found["granted"] > 1.5 * found["granted_before"]
        assert found["granted"] > 0.8 * found["affordable"]
        assert study.proxies[-1] == "learned"
        assert study.default_proxy != "learned"


def test_drift_is_judged_by_whole_episodes(copy: Path) -> None:
    """Moments are never among an episode's last steps, but live decisions are."""
    with reopened(copy) as study:
        natural = study.fit(proxy="learned").natural_proxies
        assert natural is not None
        assert natural.count == 120  # every game, of either phase
        last = {
            float(value)
            for trace in study.store.proxy_traces("learned")
            for value in trace.values[-max(SETTINGS.n_values) :]
        }
        assert last & set(natural.values.tolist())
        study.learn(tolerance=0.1, traces=False, **ON_ONE_CORE)
        natural = study.fit(proxy="learned").natural_proxies
        assert natural is not None
        assert natural.count == 100  # all that is known are the natural moments


def test_it_orders_moments_by_the_true_loss(learned: Path) -> None:
    with reopened(learned) as study:
        tuples = study.tuples("learned")
        largest = tuples.criticalities[:, -1]
        order = np.argsort(tuples.proxies)
        low, high = order[: len(order) // 2], order[len(order) // 2 :]
        assert largest[low].max() < np.quantile(largest[high], 0.25)


def test_margins_carry_the_model_and_a_monitor_computes_what_was_recorded(
    learned: Path, driver: Path, tmp_path: Path
) -> None:
    with reopened(learned) as study:
        study.fit(proxy="learned").save(tmp_path / "margins.json")
        trace = next(iter(study.store.proxy_traces("learned")))
    margins = sm.Margins.load(tmp_path / "margins.json")
    assert margins.probe is not None
    policy = sm.load_policy(driver)
    monitor = sm.Monitor(margins, tolerance=0.2, policy=policy)
    env = make_risky_road()
    observation, _ = env.reset(seed=trace.seed)
    for recorded in trace.values:
        seen = policy.features(observation[None])
        decision = monitor.step(seen.scores[0], with_value(seen)[0])
        assert decision.proxy == pytest.approx(recorded, rel=1e-3, abs=1e-4) or decision.outside
        observation, *_ = env.step(0)


def test_an_overseen_agent_and_a_fleet_of_them_hand_over_their_features(
    learned: Path, driver: Path
) -> None:
    with reopened(learned) as study:
        margins = study.fit(proxy="learned")
    watched = sm.Overseen(make_risky_road(), str(driver), sm.Monitor(margins, tolerance=0.2))
    watched.reset(seed=5)
    *_, info = watched.step()
    assert np.isfinite(info["oversight"]["proxy"])
    policy = sm.load_policy(driver)
    observations = np.array([[0.01, 0.1], [0.9, 0.1]], np.float32)
    seen = policy.features(observations)
    both = sm.Monitor(margins, tolerance=0.2).step(seen.scores, with_value(seen))
    assert both.margin[0] > both.margin[1] == 0


def test_features_unlike_any_measured_get_no_margin(learned: Path, driver: Path) -> None:
    with reopened(learned) as study:
        margins = study.fit(proxy="learned")
    policy = sm.load_policy(driver)
    strange = policy.features(np.array([[-4.0, 4.5]], np.float32))
    decision = sm.Monitor(margins, tolerance=0.2).step(strange.scores[0], strange.hidden[0])
    assert decision.outside
    assert decision.margin == 0


def test_a_monitor_says_what_it_lacks(learned: Path) -> None:
    with reopened(learned) as study:
        margins = study.fit(proxy="learned")
    monitor = sm.Monitor(margins, tolerance=0.2)
    assert monitor.needs_features
    with pytest.raises(InvalidInput, match="needs features: the policy's last hidden layer"):
        monitor.step(np.zeros(2, np.float32))
    assert margins.probe is not None
    hidden = np.ones(margins.probe.hidden_width, np.float32)
    with pytest.raises(InvalidInput, match=r"takes \d+ numbers at each moment, and these scores"):
        sm.Monitor(margins, tolerance=0.2).step(np.zeros(3, np.float32), hidden)
    with pytest.raises(StudyMismatch, match="made for another policy"):
        sm.Monitor(margins, tolerance=0.2, policy="sha256:another")


def test_a_learned_proxy_without_end_calls(learned: Path) -> None:
    """−∞ lies below all that was measured, where the largest margin would be granted."""
    with reopened(learned) as study:
        margins = study.fit(proxy="learned")
    probe = margins.probe
    assert probe is not None
    huge = np.full((len(probe.view.spreads), 1), -3e38, np.float32)
    endless = replace(probe, networks=[[Layer(huge, -huge[0])]], farthest=1e300)
    monitor = sm.Monitor(replace(margins, probe=endless), tolerance=0.2)
    decision = monitor.step(np.zeros(2), np.full(probe.hidden_width, 1e6))
    assert np.isnan(decision.proxy)
    assert decision.call


def test_validation_learns_anew_without_each_fold(learned: Path) -> None:
    with reopened(learned) as study:
        validation = study.validate(proxy="learned", tolerances=[0.2])
        chain = next(row for row in validation.chain if row.phase == "natural")
        assert chain.failed.low <= 0.05
        found = study.store.meta("learned")["found"]
        assert chain.mean_margin > 1.3 * found["granted_before"]


def test_the_promise_about_the_margin_grants_more(learned: Path) -> None:
    with reopened(learned) as study:
        bound = study.fit(proxy="learned")
        granted = study.fit(proxy="learned", promise="margin", tolerances=[0.2])
        proxies = study.tuples("learned").proxies
        at = [one.lookup(proxies, 0.2).margin.mean() for one in (bound, granted)]
        assert at[1] >= at[0] > 0
        assert (granted.lookup(proxies, 0.19).margin == 0).all()
        validation = study.validate(proxy="learned", promise="margin", tolerances=[0.2])
        assert validation.gaps is None
        with pytest.raises(InvalidInput, match="tolerances that you name"):
            study.fit(promise="margin")
        with pytest.raises(InvalidInput, match="'paper' fits a bound"):
            study.fit(promise="margin", method="paper", tolerances=[0.2])


def test_a_study_made_before_replays_its_moments(copy: Path) -> None:
    with reopened(copy) as study:
        before = study.tuples("learned").proxies
    with sqlite3.connect(copy / DATABASE) as database:
        database.execute("DROP TABLE moment_features")
    database.close()
    with reopened(copy) as study:
        study.learn(tolerance=0.2, traces=False, **ON_ONE_CORE)
        assert np.array_equal(study.tuples("learned").proxies, before)
        with pytest.raises(StudyIncomplete, match="not recorded along 120 episodes"):
            list(study.store.proxy_traces("learned"))


def test_labels_train_but_are_never_part_of_the_study(copy: Path) -> None:
    with reopened(copy) as study:
        moments = len(study.tuples())
        found = study.learn(labels=30, tolerance=0.2, traces=False, **ON_ONE_CORE)
        assert (found.moments, found.labels) == (120, 30)
        assert len(study.tuples()) == len(study.tuples("learned")) == moments
        again = study.learn(labels=30, tolerance=0.2, traces=False, **ON_ONE_CORE)
        assert again == found
        labels = open_labels(study.store)
        assert labels is not None
        assert labels.settings().seed != study.settings.seed
        assert labels.settings().trials == 3
        labels.close()
    with reopened(copy / LABELS) as cheap, pytest.raises(InvalidInput, match="no margins can be"):
        cheap.fit()
    with reopened(copy) as study:
        labels = open_labels(study.store)
        assert labels is not None
        with labels.writing():
            labels.set_meta("settings", {**labels.meta("settings"), "trials": 5})
        with pytest.raises(
            StudyMismatch, match="collected with trials 5 instead of 3; delete that"
        ):
            study.learn(tolerance=0.2, traces=False, **ON_ONE_CORE)
        with labels.writing():
            labels.set_meta("policy", {**labels.meta("policy"), "identity": "sha256:other"})
        with pytest.raises(StudyMismatch, match="instead of 3, another policy; delete"):
            study.learn(tolerance=0.2, traces=False, **ON_ONE_CORE)
        labels.close()


def test_moments_added_later_need_another_lesson(copy: Path) -> None:
    with reopened(copy) as study:
        study.collect(natural=103, spread=20, **ON_ONE_CORE)
        assert len(study.tuples("learned")) == 120
        study.fit(proxy="learned")
        with pytest.raises(StudyIncomplete, match="run `safemargin learn` on it again"):
            study.validate(proxy="learned")
        study.learn(tolerance=0.2, traces=False, **ON_ONE_CORE)
        assert len(study.tuples("learned")) == 123


def test_nothing_is_stored_where_nothing_can_be_learned(driver: Path, tmp_path: Path) -> None:
    with sm.Study.create(tmp_path, make_dark_road, str(driver), SETTINGS) as study:
        study.collect(natural=60, spread=0, **ON_ONE_CORE)
        found = study.learn(tolerance=0.05, **ON_ONE_CORE)
        if found.recipe is None:
            assert "learned" not in study.proxies
            assert "nothing was stored" in str(found)
        else:  # by luck, at most a little
            assert found.granted <= found.granted_before + 0.5
        with pytest.raises(InvalidInput, match="labels must be at least 0"):
            study.learn(labels=-1)
        with pytest.raises(InvalidInput, match="tolerance must be above 0"):
            study.learn(tolerance=0)
        with pytest.raises(InvalidInput, match="the promise 'mean'"):
            study.learn(promise="mean")  # type: ignore[arg-type]


def test_too_few_moments_say_how_many_it_takes(driver: Path, tmp_path: Path) -> None:
    with sm.Study.create(tmp_path, make_risky_road, str(driver), SETTINGS) as study:
        study.collect(natural=10, spread=2, **ON_ONE_CORE)
        with pytest.raises(StudyIncomplete, match="holds 12 finished moments.*collect 50 or more"):
            study.learn(**ON_ONE_CORE)
        study.collect(natural=30, spread=30, **ON_ONE_CORE)
        with pytest.raises(StudyIncomplete, match="holds 30 finished natural moments"):
            study.learn(**ON_ONE_CORE)


def test_a_recipe_has_a_name() -> None:
    assert str(Recipe("ridge", "log size")) == "ridge on log size"
