"""A study of an agent without scores over actions: its critics say which moments matter."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.small_policies import HAVE_SB3, sb3_model
from helpers.studies import contents, select

import safemargin as sm
from safemargin.errors import InvalidInput, StudyMismatch
from safemargin.monitor.live_proxy import LiveProxy
from safemargin.policies import Proxy
from safemargin.study.store import DATABASE

pytestmark = pytest.mark.skipif(not HAVE_SB3, reason="stable-baselines3 is an extra")

SETTINGS = {"n_values": [1, 2], "trials": 3, "gamma": 0.5, "max_episode_steps": 30}
NAMES = ["critic_advantage", "critic_disagreement"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "model.zip"
    sb3_model("sac").save(path)
    return path


def test_it_collects_in_processes_resumes_and_fits(model: Path, tmp_path: Path) -> None:
    with sm.Study.create(tmp_path / "whole", "Pendulum-v1", model, SETTINGS) as study:
        study.collect(7, 3, workers=1)
        assert study.proxies == NAMES
        assert study.default_proxy == "critic_advantage"
    with sm.Study.create(tmp_path / "parts", "Pendulum-v1", model, SETTINGS) as study:
        study.collect(2, 1, workers=1)
    # The rest from the policy that the study stored, in worker processes.
    with sm.Study.open(tmp_path / "parts") as study:
        study.collect(7, 3, workers=2)
        tables = [study.fit(proxy=proxy, confidence=0.7, method="paper") for proxy in NAMES]
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert [margins.proxy for margins in tables] == NAMES
    assert all(margins.highest_proxy > margins.lowest_proxy for margins in tables)
    with pytest.raises(InvalidInput, match="'critic_advantage' needs observations; a monitor"):
        LiveProxy(tables[0])


def test_a_study_made_before_goes_on_without_them(model: Path, tmp_path: Path) -> None:
    mine = Proxy("mine", lambda scores, history, n: float(scores[0]), ("actions",))
    path = tmp_path / "study"
    with sm.Study.create(path, "Pendulum-v1", model, SETTINGS, proxies=[mine]) as study:
        assert study.proxies == [*NAMES, "mine"]
        study.store.set_meta("proxies", ["mine"])
        study.store.set_meta("selection_proxy", "mine")
    for reopened in (
        sm.Study.open(path, proxies=[mine]),
        sm.Study.create(path, "Pendulum-v1", model, SETTINGS, proxies=[mine]),
    ):
        with reopened as study:
            study.collect(1 + study.status().moments["natural"], 1, workers=1)
    assert select(path, "SELECT DISTINCT proxy FROM episode_proxies") == [("mine",)]
    other = Proxy("other", lambda scores, history, n: 0.0, ("actions",))
    with pytest.raises(StudyMismatch, match=r"records the proxies \['mine'\]"):
        sm.Study.create(path, "Pendulum-v1", model, SETTINGS, proxies=[mine, other])


def test_a_plain_controller_still_needs_a_proxy_of_its_own(tmp_path: Path) -> None:
    policy = sm.load_policy(lambda observations: observations[:, :1], kind="actions")
    with pytest.raises(InvalidInput, match="no built-in proxy applies to scores of kind 'actions'"):
        sm.Study.create(tmp_path / "study", "Pendulum-v1", policy, SETTINGS)
    with pytest.raises(InvalidInput, match="'critic_advantage' needs critics"):
        sm.Study.create(
            tmp_path / "study", "Pendulum-v1", policy, SETTINGS, proxies=["critic_advantage"]
        )
    assert not (tmp_path / "study" / DATABASE).exists()
