"""A study as tables, and the paper's studies: what is kept of them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.studies import select
from helpers.worlds import always_first, make_branching

import safemargin as sm
from safemargin.cli import main, paper_studies
from safemargin.cli.paper_studies import PAPER_STUDIES, paper_study
from safemargin.errors import InvalidInput

parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'safemargin[parquet]'")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = sm.Settings(n_values=(1, 2), opening=6, trials=4)
    policy = sm.load_policy(always_first, kind="logits")
    made = sm.Study.create(tmp_path_factory.mktemp("study"), make_branching, policy, settings)
    made.collect(6, 3, workers=1)
    yield made
    made.close()


class TestExport:
    def test_the_tuples_name_what_belongs_together(self, study: sm.Study, tmp_path: Path) -> None:
        table = parquet.read_table(study.export(tmp_path / "tuples.parquet")).to_pydict()
        tuples = study.tuples()
        assert tuples.groups is not None
        first = [
            (phase, episode, group)
            for phase, episode, group, proxy, n in zip(
                *(table[name] for name in ("phase", "episode", "group", "proxy", "n")), strict=True
            )
            if proxy == tuples.proxy and n == 1
        ]
        expected = zip(
            tuples.phases.tolist(), tuples.indices.tolist(), tuples.groups.tolist(), strict=True
        )
        assert first == list(expected)

    def test_the_steps_are_those_of_the_episodes(self, study: sm.Study, tmp_path: Path) -> None:
        path = study.export(tmp_path / "steps.csv", steps=True, episodes=2)
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        recorded = select(
            study.path,
            "SELECT episode, steps, total_reward, opening FROM episodes "
            "WHERE phase = 'natural' ORDER BY episode, life LIMIT 2",
        )
        assert len(recorded) == 2
        for episode, steps, total, opening in recorded:
            of_it = [row for row in rows if int(row["episode"]) == episode]
            assert [int(row["step"]) for row in of_it] == list(range(steps))
            assert sum(float(row["reward"]) for row in of_it) == pytest.approx(total)
            assert sum(row["opening"] == "True" for row in of_it) == opening
            assert {row["ended"] for row in of_it} == {"terminated"}
        assert set(study.proxies) <= set(rows[0])

    def test_both_formats_say_the_same(self, study: sm.Study, tmp_path: Path) -> None:
        table = parquet.read_table(study.export(tmp_path / "s.parquet", steps=True)).to_pydict()
        with open(study.export(tmp_path / "s.csv", steps=True), encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == list(table)
        proxy = study.default_proxy
        np.testing.assert_allclose([float(row[proxy]) for row in rows], table[proxy], rtol=1e-6)


class TestReproduce:
    def test_an_unknown_name_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(InvalidInput, match="no study 'pong-a3d'.*pong-a3c"):
            paper_study("pong-a3d")

    def test_a_missing_library_is_named_before_anything_is_collected(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert main(["reproduce", "pong-a3c", "-o", str(tmp_path / "studies")]) == 2
        assert "pip install 'safemargin[parquet]'" in capsys.readouterr().err
        assert not (tmp_path / "studies").exists()

    def test_the_papers_settings(self) -> None:
        assert len(PAPER_STUDIES) == 7
        for paper in PAPER_STUDIES.values():
            settings = paper.settings
            assert (settings.gamma, settings.horizon, settings.sampling_confidence) == (
                0.99, 459, 0.95
            )  # fmt: skip
            assert settings.n_values[0] == 1
            assert settings.n_values[-1] == 32

    def test_without_a_name_it_lists_them(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["reproduce", "-o", str(tmp_path), "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)["studies"]
        assert [entry["name"] for entry in listed] == list(PAPER_STUDIES)
        assert listed[0]["moments"] == {"natural": 0, "spread": 0}

    def test_a_study_leaves_its_tables(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("ale_py", reason="pip install 'safemargin[atari]'")
        paper = PAPER_STUDIES["pong-a3c"]
        settings = replace(paper.settings, gamma=0.9, max_episode_steps=300)
        shorter = replace(paper, settings=settings)
        monkeypatch.setattr(paper_studies, "PAPER_STUDIES", {paper.name: shorter})
        command = ["reproduce", "pong-a3c", "--natural", "1", "--spread", "0", "--workers", "1"]
        assert main([*command, "-o", str(tmp_path), "--machine", "a test", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        tables = Path(shown["tables"])
        about = json.loads((tables / "study.json").read_text(encoding="utf-8"))
        assert about["status"]["moments"] == {"natural": 1, "spread": 0}
        assert about["machine"] == "a test"
        assert about["policy"]["description"] == "zoo:pong-a3c"
        kept = parquet.read_table(tables / "tuples.parquet").to_pydict()
        assert sorted(set(kept["n"])) == [1, 2, 4, 8, 16, 32]
        assert not (tables / "steps.parquet").exists()  # kept where deaths are looked at
