"""The reproduction's tables and figures, from studies that were kept."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import shutil
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.worlds import Outcome, TableWorld, always_first

import safemargin as sm
from safemargin.cli.paper_studies import PaperStudy, keep_tables
from safemargin.criticality.rollouts import Runner
from safemargin.environments.ways import SnapshotSimulator
from safemargin.policies import load_policy

pytest.importorskip("pyarrow", reason="pip install 'safemargin[parquet]'")

REPRODUCTION = ROOT / "reproduction"
sys.path.insert(0, str(REPRODUCTION))

import build  # noqa: E402
import last_chances  # noqa: E402
import supervise  # noqa: E402
import supervision  # noqa: E402
import tables  # noqa: E402
from capture import BUDGETS, capture, margin_rank  # noqa: E402
from live import OwnWay, in_a_sentence, in_processes  # noqa: E402
from stored import Life, Refused, StoredStudy, stored_studies, stored_study  # noqa: E402

SETTINGS = sm.Settings(n_values=(1, 2, 4), gamma=0.9, trials=8, opening=20, max_episode_steps=300)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, StoredStudy]:
    """A small study of CartPole, kept as if it were one of the paper's."""
    folder = tmp_path_factory.mktemp("reproduction")
    paper = PaperStudy(
        "pong-apex", "cartpole", "CartPole-v1", SETTINGS, 24, 24, "a stand-in for a test", 100
    )
    with sm.Study.create(folder / "study", paper.environment, paper.policy, SETTINGS) as study:
        study.collect(paper.natural, paper.spread, workers=1)
        keep_tables(study, paper, folder / "studies" / paper.name, machine="a test")
        return study.tuples(), StoredStudy(folder / "studies" / paper.name)


def test_a_kept_study_holds_the_same_tuples(kept: tuple[Any, StoredStudy]) -> None:
    tuples, stored = kept
    read = stored.tuples()
    for name in (
        "phases", "indices", "steps", "proxies", "criticalities", "half_widths", "trials", "groups"
    ):  # fmt: skip
        np.testing.assert_array_equal(getattr(read, name), getattr(tuples, name), err_msg=name)
    assert read.n_values == tuples.n_values
    assert read.proxy == tuples.proxy


def test_a_study_that_is_not_stored_is_asked_for(kept: tuple[Any, StoredStudy]) -> None:
    folder = kept[1].folder.parent
    assert stored_study(folder, "pong-apex") == kept[1]
    with pytest.raises(Refused, match=r"no finished study 'pong' in .*, which has pong-apex; `"):
        stored_study(folder, "pong")


@pytest.mark.parametrize("name", ["study.json", "tuples.parquet", "steps.parquet"])
@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_damaged_file_is_named(
    kept: tuple[Any, StoredStudy], tmp_path: Path, name: str, harm: str
) -> None:
    shutil.copytree(kept[1].folder, tmp_path / "broken")
    path = tmp_path / "broken" / name
    path.write_bytes(path.read_bytes()[:100])
    if harm == "gone":
        path.unlink()
    broken = StoredStudy(tmp_path / "broken")
    with pytest.raises(Refused, match=f"{name} is missing or damaged"):
        _ = broken.lives if name == "steps.parquet" else broken.fit("calibrated")


@pytest.mark.parametrize("below", ["", "tables"])
def test_a_study_is_found_where_reproduce_puts_it(
    kept: tuple[Any, StoredStudy], tmp_path: Path, below: str
) -> None:
    shutil.copytree(kept[1].folder, tmp_path / "pong-apex" / below)
    assert list(stored_studies(tmp_path)) == ["pong-apex"]


def test_last_chances_are_those_of_the_agent_and_of_every_death(
    kept: tuple[Any, StoredStudy], tmp_path: Path
) -> None:
    shutil.copytree(kept[1].folder, tmp_path / "study")
    policy = kept[1].about["policy"]["identity"]
    deaths = [
        {"game": life.game, "life": life.number, "decisions_before_end": 3 + place}
        for place, life in enumerate(kept[1].lives)
        if life.died
    ]
    assert len(deaths) > 1

    def read(policy: str, deaths: list[dict[str, int]]) -> dict[tuple[int, int], int]:
        text = json.dumps({"policy": policy, "deaths": deaths})
        (tmp_path / "study" / "last_chances.json").write_text(text, encoding="utf-8")
        return StoredStudy(tmp_path / "study").last_chances

    assert list(read(policy, deaths).values()) == [one["decisions_before_end"] for one in deaths]
    assert read(policy, deaths[:-1]) == {}  # stopped on the way
    with pytest.raises(Refused, match="another agent than the study beside it; move it away"):
        read("sha256:another", deaths)


def test_a_study_without_episodes_names_those_that_have_them() -> None:
    with pytest.raises(Refused, match="kept of beamrider-apex and beamrider-a3c alone"):
        _ = stored_study(REPRODUCTION / "studies", "pong-apex").lives


def test_a_page_from_what_there_is(kept: tuple[Any, StoredStudy]) -> None:
    studies = stored_studies(kept[1].folder.parent)
    assert list(studies) == ["pong-apex"]
    page = build.build_page("{{measured}}\n\n{{cost}}\n\n{{table_two}}\n\n{{supervised}}", studies)
    assert "| pong-apex | 24 + 24 |" in page
    assert "| a test |" in page
    assert tables.MISSING in page  # there is no study of Beamrider
    with pytest.raises(ValueError, match="unpack"):
        build.build_page("{{table_four}}", studies)


class TestCapture:
    def test_it_counts_deaths_among_the_highest(self) -> None:
        rng = np.random.default_rng(0)
        ranks = [rng.normal(size=rng.integers(5, 50)) for _ in range(40)]
        died = [bool(rng.random() < 0.7) for _ in ranks]
        found = capture(ranks, died)
        every = np.sort(np.concatenate(ranks))[::-1]
        for place in (10, 60, 140):
            looked_at = BUDGETS[place] * len(every)
            level = every[int(looked_at)]
            brute = [rank[-1] > level for rank, dead in zip(ranks, died, strict=True) if dead]
            assert found.share[place] == pytest.approx(np.mean(brute), abs=1 / sum(died))
        assert found.share[0] == 0
        assert found.share[-1] == 1
        assert (found.low <= found.share + 1e-9).all()
        assert (found.high >= found.share - 1e-9).all()

    def test_the_lowest_margin_comes_first_and_then_the_highest_proxy(self) -> None:
        margins, proxies = np.array([2, 0, 0, 1, 0]), np.array([9.0, 1.0, 3.0, 5.0, 9.0])
        ranks = margin_rank(margins, proxies, np.sort(proxies))
        assert np.argsort(-ranks).tolist() == [4, 2, 1, 3, 0]

    def test_where_all_rank_alike_it_is_chance(self) -> None:
        found = capture([np.zeros(20) for _ in range(10)], [True] * 10)
        np.testing.assert_allclose(found.share, BUDGETS, atol=1e-9)


class TestLastChances:
    def test_a_death_is_traced_back_to_where_it_could_be_avoided(self) -> None:
        """A world that reports the end ten steps after the last way out."""
        ways_out, doomed = 20, 10
        safe = ways_out + doomed
        world = [[[Outcome(1, state + 1, 0)], [Outcome(1, safe, 0)]] for state in range(ways_out)]
        world += [[[Outcome(1, state + 1, 0, ends=state + 1 == safe)]] * 2
                  for state in range(ways_out, safe)]  # fmt: skip
        world += [[[Outcome(1, safe, 0)]] * 2]
        runner = Runner(
            SnapshotSimulator(TableWorld(world)),
            load_policy(always_first, kind="logits"),
            sm.Settings(n_values=(1,), gamma=0.9),
        )
        (found,) = last_chances.last_chances(runner, 0, {0: safe})
        assert found.decisions_before_end == doomed + 1
        with pytest.raises(Refused, match="game 0 does not end as in the study"):
            last_chances.last_chances(runner, 0, {0: safe - 1})

    @pytest.mark.parametrize("truth", [1, 2, 3, 60, 61, 255, 256])
    def test_the_search_finds_the_least(self, truth: int) -> None:
        assert last_chances.least(lambda back: back >= truth, 256) == truth
        # From far back, the tried actions may fail for another reason.
        assert last_chances.least(lambda back: truth <= back < 2 * truth + 2, 256) == truth

    def test_where_nothing_helps_there_is_none(self) -> None:
        assert last_chances.least(lambda back: False, 256) is None

    def test_a_life_in_play_ends_with_its_last_chance(self) -> None:
        life = Life(0, 0, np.arange(10.0), {"q_range": np.arange(10.0)}, died=True)
        assert life.until(1).rewards.tolist() == list(range(10))
        assert life.until(4).proxies["q_range"].tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("kind", ["distinct", "ties"])
def test_a_threshold_picks_the_share(share: float, kind: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=4000) if kind == "distinct" else rng.integers(0, 3, 4000) / 1.0
    threshold = supervise.Threshold(values, share)
    picked = np.array([threshold.picks(value, rng) for value in values])
    assert picked.mean() == pytest.approx(share, abs=0.012)
    assert values[picked].min() >= threshold.level


@pytest.mark.parametrize("strategy", ["random", "proxy", "margin"])
def test_every_overseer_keeps_to_the_budget(kept: tuple[Any, StoredStudy], strategy: str) -> None:
    stored, plan = kept[1], supervise.Plan("cartpole", 0.2, 10, 40, warm_up=60)
    margins = stored.fit("calibrated")
    look = supervise.looker(strategy, stored, margins, plan, np.array([]))
    proxies = np.concatenate([life.proxies[stored.default_proxy] for life in stored.lives])
    rng = np.random.default_rng(0)
    values = rng.choice(proxies, 2000)
    picked = np.array([look(value, rng) for value in values])
    assert picked.mean() == pytest.approx(0.2, abs=0.04)
    if strategy == "margin":
        granted = np.asarray(margins.lookup(values, supervise.TOLERANCE).margin)
        assert granted[picked].max() <= granted[~picked].min()


def test_the_page_is_what_the_stored_studies_say() -> None:
    """What a reader rebuilds with `make reproduce` is what the repository shows."""
    page = (REPRODUCTION / "README.md").read_text(encoding="utf-8")
    template = (REPRODUCTION / "page.md").read_text(encoding="utf-8")
    rebuilt = build.build_page(template, stored_studies(REPRODUCTION / "studies"))
    number = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?")
    assert number.sub("#", rebuilt) == number.sub("#", page)
    shown, found = (
        [float(one.replace(",", "")) for one in number.findall(text)] for text in (page, rebuilt)
    )
    # Another processor may round the last digit otherwise.
    np.testing.assert_allclose(found, shown, rtol=0.01, atol=0.011)
    assert f"| {tables.MISSING} |" not in page  # every cell is filled


def test_supervised_games_are_compared_with_those_of_nobody(
    kept: tuple[Any, StoredStudy], tmp_path: Path
) -> None:
    shutil.copytree(kept[1].folder, tmp_path / "beamrider-apex")
    study = StoredStudy(tmp_path / "beamrider-apex")

    def game(strategy: str, number: int, deaths: int, reward: float) -> dict[str, Any]:
        return {"strategy": strategy, "game": number, "decisions": 500, "deaths": deaths,
                "reward": reward, "looked_at": 25, "overruled": 5, "pilot": {}}  # fmt: skip

    played = [game("nobody", 0, 0, 90.0), game("nobody", 1, 3, 10.0)]
    for one in played:
        one["pilot"] = {"proxy": [1, 2, 3, 4], "criticality": [9, 1, 0, 5], "gain": [0, 0, 8, 4]}
    played += [game("margin", 1, 1, 12.0), game("random", 1, 0, 9.0), game("random", 0, 2, 9.0)]
    found = {"plan": {"budget": 0.25}, "alike": True, "played": played}
    study.put_beside("supervision.json", found)
    studies = {"beamrider-apex": study}
    nobody, _, margin, missing = supervision.supervised(studies).splitlines()[2:]
    assert "| nobody | 2 | 5.0% | 25 – 25 | 1.0% | 3.00 | 100.00 |" in nobody
    assert f"{supervision.ALIKE} | 1 |" in margin
    assert tables.MISSING in missing  # the other agent
    random, margin, missing = supervision.supervision_compared(studies).splitlines()[2:]
    low, high = -1 - 12.7062 * 5, -1 + 12.7062 * 5  # t with one degree of freedom
    assert f"| chance | 2 | -1.00 ({low:+.2f} … {high:+.2f}) | – | " in random
    assert f"| 1 | {tables.MISSING} | {tables.MISSING} |" in margin  # one game has no interval
    worth = supervision.worth_of_a_look(studies).splitlines()[2:6]
    assert [(row.split(" | ")[3][:4], row.split(" | ")[4][:4]) for row in worth] == [
        ("3.00", "3.75"),  # all decisions
        ("4.00", "5.00"),  # where the proxy is 4
        ("0.00", "9.00"),
        ("8.00", "0.00"),
    ]


def test_whoever_stops_leaves_no_process_behind(capsys: pytest.CaptureFixture[str]) -> None:
    another = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    another.start()
    before = set(multiprocessing.active_children())
    started: set[BaseProcess] = set()

    def stop_after_one() -> None:
        with in_a_sentence(argparse.ArgumentParser("games")):
            for _ in in_processes(time.sleep, [(0,), (600,), (600,)], 2):
                started.update(set(multiprocessing.active_children()) - before)
                raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stopped:
        stop_after_one()
    left = set(multiprocessing.active_children())
    another.kill()
    another.join()
    assert stopped.value.code == 130
    assert capsys.readouterr().err.startswith("games: stopped; what is finished is kept")
    assert started
    assert not started & left
    assert another in left  # it is none of the games


@pytest.fixture
def pong(tmp_path: Path) -> supervise.Supervisor:
    pytest.importorskip("ale_py", reason="pip install 'safemargin[atari]'")
    policy = load_policy("zoo:pong-a3c")
    about = {
        "policy": {"identity": policy.identity, "source": "zoo:pong-a3c"},
        "settings": {"gamma": 0.99, "opening": 30},
        "environment": {"name": "atari:pong"},
        "default_proxy": "log_prob_range",
        "proxies": ["log_prob_range"],
        "minimum_bandwidth": 0.0,
    }
    (tmp_path / "study.json").write_text(json.dumps(about), encoding="utf-8")
    plan = supervise.Plan("pong-a3c", 0.05, 10, 40, warm_up=60)
    return supervise.Supervisor(StoredStudy(tmp_path), plan)


def test_the_lookahead_tries_every_action(pong: supervise.Supervisor) -> None:
    """Against plain steps in a second emulator."""
    from safemargin.environments import EnvironmentSpec, make_simulator

    simulator = pong.runner.simulator
    simulator.reset(3)
    opening = [2, 3, 3, 0, 5, 2] * 6
    for action in opening:
        simulator.step(action)
    before = simulator.digest()
    found = pong.returns()
    assert simulator.digest() == before  # the game itself stands where it stood

    other = make_simulator(EnvironmentSpec.parse("atari:pong").make(), way="snapshot")
    runner = pong.runner
    for action in range(len(found)):
        observation = other.reset(3)
        for taken in opening:
            observation = other.step(taken).observation
        rewards = []
        for position in range(40):
            rows, _ = runner.scores([observation], [None])
            own = int(runner.choose(rows[0], None, None))
            step = other.step(action if position == 0 else own)
            rewards.append(step.reward)
            observation = step.observation
            if step.terminated:
                break
        assert found[action] == pytest.approx(np.dot(rewards, 0.99 ** np.arange(len(rewards))))
    nobody = pong.play("nobody", 4, lambda value, rng: False)
    begins = simulator.digest()
    again = pong.play("random", 4, lambda value, rng: False)
    assert simulator.digest() == begins  # all strategies play the same game from the same place
    assert (nobody.reward, nobody.looked_at, again.looked_at) == (again.reward, 0, 0)
    assert sorted(nobody.pilot) == ["criticality", "gain", "proxy"]
    assert all(len(values) == 1 for values in nobody.pilot.values())
    always = pong.play("random", 4, lambda value, rng: True)
    assert always.looked_at == 10


def test_the_way_of_an_agent_is_played_once(
    pong: supervise.Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials that join it again have the returns of trials that were played to their end."""
    simulator, way = pong.runner.simulator, OwnWay(pong.runner)
    plain, steps = type(simulator).step, 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal steps
        steps += 1
        return plain(*arguments, **options)

    monkeypatch.setattr(type(simulator), "step", counted)
    rng = np.random.default_rng(0)
    simulator.reset(3)
    for _ in range(30):
        simulator.step(int(rng.integers(6)))
    spent, differ = [0, 0], 0
    for _ in range(30):
        rows, _ = pong.runner.scores([simulator.observation], [None])
        own = int(pong.runner.choose(rows[0], None, None))
        before = steps
        found = pong.returns(way)
        between = steps
        np.testing.assert_array_equal(found, pong.returns())
        spent = [spent[0] + between - before, spent[1] + steps - between]
        differ += found.min() < found.max()
        taken = own if rng.random() < 0.9 else int(rng.integers(6))
        simulator.step(taken)
        if taken == own:
            way.follow()
        else:
            way.leave()
    assert differ
    assert spent[0] < 0.8 * spent[1]


def test_what_the_powers_of_two_miss_is_counted_one_by_one() -> None:
    study = stored_study(REPRODUCTION / "studies", "pong-apex-dense")
    tuples = study.tuples()
    assert tuples.n_values == tuple(range(1, 33))
    rows = [
        row.strip("| ").split(" | ")
        for row in tables.dense_gaps({study.folder.name: study}).splitlines()[2:]
    ]
    assert len(rows) == 4
    for method, row in zip(("paper", "paper", "calibrated", "calibrated"), rows, strict=True):
        tolerance = float(row[1])
        few = sm.fit_margins(
            tuples.proxies,
            tuples.criticalities[:, [n - 1 for n in tables.N_VALUES]],
            tables.N_VALUES,
            method=method,
            natural=tuples.phases == "natural",
            groups=tuples.groups,
            minimum_bandwidth=study.about["minimum_bandwidth"],
        )
        fits = [few, study.fit(method)]
        assert [fit.n_values for fit in fits] == [tables.N_VALUES, tuples.n_values]
        margins: list[list[int]] = [[], []]
        failures = [0, 0]
        for at in np.flatnonzero(tuples.phases == "natural"):
            for which, fit in enumerate(fits):
                margin = int(fit(tuples.proxies[at], tolerance))
                margins[which].append(margin)
                losses = tuples.criticalities[at][:margin]
                failures[which] += bool((losses > tolerance).any())
        count = len(margins[0])
        more = sum(left > right for left, right in zip(*margins, strict=True))
        assert row[2:] == [
            *(f"{sum(values) / count:.2f}" for values in margins),
            f"{more / count:.0%}",
            *(f"{number / count:.0%}" for number in failures),
        ]
