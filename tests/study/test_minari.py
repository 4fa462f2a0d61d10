"""Minari datasets: a study's episodes written, and margins looked up along recorded ones."""

from __future__ import annotations

import csv
import json
import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.margins import own_margins
from helpers.studies import POLICY, create

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import InvalidInput, StudyMismatch
from safemargin.monitor.recorded import margins_along
from safemargin.study.minari import Dataset

pytest.importorskip("h5py", reason="pip install 'safemargin[minari]'")
minari: Any = pytest.importorskip("minari", reason="pip install 'safemargin[minari]'")


@pytest.fixture(scope="module", autouse=True)
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder of datasets of our own, and no one's else."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("datasets")
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        yield folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with create(tmp_path_factory.mktemp("studies") / "study") as made:
        made.collect(natural=24, spread=4, workers=1)
        yield made


@pytest.fixture(scope="module")
def written(study: sm.Study) -> str:
    study.export("minari:safe/branching-v0")
    return "minari:safe/branching-v0"


def test_minari_reads_what_was_written(study: sm.Study, written: str) -> None:
    dataset = minari.load_dataset("safe/branching-v0")
    keys = [key for key in study.store.episode_outlines() if key.phase == "natural"]
    assert dataset.total_episodes == len(keys)
    assert dataset.spec.env_spec is None  # the environment is a function of the tests
    for found, key in zip(dataset, keys, strict=True):
        episode = study.store.episode(key)
        np.testing.assert_array_equal(found.rewards, episode.rewards)
        np.testing.assert_array_equal(found.actions, episode.actions)
        assert len(found.observations) == episode.steps + 1
        scores, _ = POLICY.scores(np.asarray(found.observations[:-1]))
        np.testing.assert_array_equal(scores, episode.scores)
        assert (found.terminations[-1], found.truncations[-1]) == (
            episode.terminated,
            not episode.terminated,
        )
        assert found.infos["opening"].sum() == episode.opening
        for name, values in episode.proxies.items():
            np.testing.assert_array_equal(found.infos[f"proxy_{name}"][:-1], values)
            assert np.isnan(found.infos[f"proxy_{name}"][-1])
    assert not list(Path(dataset.storage.data_path).parents[1].glob(".*"))  # no draft is left


def test_margins_along_a_study_of_ones_own(study: sm.Study, written: str, tmp_path: Path) -> None:
    margins = study.fit(0.8)
    found = margins_along(written, margins, POLICY, tolerance=1.0, call_at=2)
    assert found.agreement == 1.0
    assert found.notes == ()
    assert found.drift.watching
    assert not found.drift.fired
    keys = [key for key in study.store.episode_outlines() if key.phase == "natural"]
    episodes = [study.store.episode(key) for key in keys]
    proxies = [each.proxies[margins.proxy][each.opening :] for each in episodes]
    np.testing.assert_array_equal(found.columns[margins.proxy], np.concatenate(proxies))
    np.testing.assert_array_equal(
        found.columns["margin"], margins.lookup(np.concatenate(proxies), 1.0).margin
    )
    lines = found.save(tmp_path / "steps.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))
    assert [int(row["step"]) for row in rows] == found.columns["step"].tolist()
    assert found.calls == np.mean([row["call"] == "True" for row in rows])


def test_the_commands(study: sm.Study, tmp_path: Path, capsys: Any) -> None:
    assert main(["export", str(study.path), "-o", "minari:two-v3", "--episodes", "2"]) == 2
    assert "give it again" in capsys.readouterr().err  # a study made of functions
    with sm.Study.create(
        tmp_path / "cart", "CartPole-v1", "zoo:cartpole", {"gamma": 0.2, "n_values": [1]}
    ) as cart:
        cart.collect(natural=2, spread=0, workers=1)
    assert main(["export", str(tmp_path / "cart"), "-o", "minari:cart-v1", "--episodes", "1"]) == 0
    assert capsys.readouterr().out.strip().endswith("cart-v1")
    assert minari.load_dataset("cart-v1").recover_environment().spec.id == "CartPole-v1"
    assert main(["export", str(tmp_path / "cart"), "-o", "minari:cart-v1"]) == 2
    assert "there is a Minari dataset 'cart-v1' already" in capsys.readouterr().err
    margins = str(Path("tests/data/cartpole-margins.json").resolve())
    asked = ["margin", margins, "minari:cart-v1", "--policy", "zoo:cartpole", "--tolerance", "5"]
    assert main([*asked, "--json", "-o", str(tmp_path / "steps.csv")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["episodes"] == 1
    assert answer["agreement"] == 1.0
    assert answer["steps"] == len((tmp_path / "steps.csv").read_text().splitlines()) - 1
    assert main(asked) == 0
    assert "1 episode, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["minari:cart-v1", "--proxy", "1"], "--proxy and --above are for one margin"),
        (["minari:cart-v1"], "recorded episodes need --policy"),
        (["runs/study", "--policy", "zoo:cartpole"], "are named minari:DATASET, got 'runs/study'"),
        ([], "name the proxy's value .* or recorded episodes"),
        (["--proxy", "1", "--call-at", "2"], "--call-at and -o belong to the latter"),
    ],
)
def test_words_that_do_not_go_together(words: list[str], said: str, capsys: Any) -> None:
    margins = str(Path("tests/data/cartpole-margins.json").resolve())
    assert main(["margin", margins, *words, "--tolerance", "1"]) == 2
    assert re.search(said, capsys.readouterr().err)


def record(name: str, actions: Any, *, steps: int = 30, spaces: Any = None) -> str:
    """A dataset of three episodes as somebody else would write it, without a word about us."""
    seen, acts = spaces or (gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2))
    buffers = [
        minari.data_collector.episode_buffer.EpisodeBuffer(
            observations=np.stack([seen.sample() for _ in range(steps + 1)]),
            actions=actions(steps),
            rewards=[0.0] * steps,
            terminations=[False] * steps,
            truncations=[*[False] * (steps - 1), True],
        )
        for _ in range(3)
    ]
    with warnings.catch_warnings(action="ignore"):  # Minari asks for an author and the like
        minari.create_dataset_from_buffers(
            name, buffers, observation_space=seen, action_space=acts, data_format="hdf5"
        )
    return name


def first(observations: Any) -> Any:
    return np.tile(np.float32([2, 0]), (len(observations), 1))


def test_episodes_that_another_agent_played() -> None:
    known = own_margins()
    policy = sm.load_policy(first, kind="logits")
    name = record("others/wrong-v0", np.ones)
    found = margins_along(name, known, policy, tolerance=1.0)
    assert found.agreement == 0
    assert "best action was taken at 0.0% of 90 steps, and it would take it at 100.0%" in str(
        found.notes
    )
    chance = float(1 / (1 + np.exp(-2.0)))
    sampled = own_margins(settings={"action_choice": "sampled"})
    rng = np.random.default_rng(0)
    fitting = record("others/fits-v0", lambda steps: (rng.random(steps) > chance).astype(int))
    assert margins_along(fitting, sampled, policy, tolerance=1.0).notes == ()
    assert "another policy acted" in str(margins_along(name, sampled, policy, tolerance=1.0).notes)


def test_pictures_that_are_not_what_the_policy_saw() -> None:
    spaces = gym.spaces.Box(0, 255, (32, 32), np.uint8), gym.spaces.Discrete(2)
    name = record("others/pictures-v0", np.zeros, steps=3, spaces=spaces)
    policy = sm.load_policy(first, kind="logits")
    found = margins_along(name, own_margins(), policy, tolerance=1.0)
    assert "holds its pictures as JPEG" in str(found.notes)


def test_what_cannot_be_read_or_written(
    study: sm.Study, written: str, datasets: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=r"no Minari dataset 'safe/branchin-v0'.*did you mean"):
        Dataset("minari:safe/branchin-v0")
    with pytest.raises(InvalidInput, match="'no version' cannot be the id of a Minari dataset"):
        study.export("minari:no version")
    with pytest.raises(InvalidInput, match="always holds every step"):
        study.export("minari:new-v0", steps=True)
    with pytest.raises(InvalidInput, match="at least 1 episode can be exported, got 0"):
        study.export("minari:new-v0", episodes=0)
    another = sm.load_policy(first, kind="logits")
    with pytest.raises(StudyMismatch, match="the margins were made for another policy"):
        margins_along(written, study.fit(0.8), another, tolerance=1.0)
    with pytest.raises(StudyMismatch, match="the margins were made for another policy"):
        margins_along(record("others/own-v0", np.ones), study.fit(0.8), another, tolerance=1.0)
    data = datasets / "others" / "own-v0" / "data"
    found = json.loads((data / "metadata.json").read_text())
    del found["observation_space"]
    (data / "metadata.json").write_text(json.dumps(found))
    with pytest.raises(InvalidInput, match="does not say what its spaces are"):
        Dataset(str(data))
    (data / "metadata.json").write_text("{")
    with pytest.raises(InvalidInput, match="'others/own-v0' cannot be read: JSONDecodeError"):
        Dataset("others/own-v0")


def test_a_policy_that_stops_half_way_leaves_nothing(study: sm.Study, datasets: Path) -> None:
    class Stops:
        def stage(self, name: str, **_: Any) -> None: ...

        def advance(self, steps: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.export("minari:safe/half-v0", progress=Stops())
    assert {each.name for each in (datasets / "safe").iterdir()} <= {
        "branching-v0",
        "namespace_metadata.json",
    }
