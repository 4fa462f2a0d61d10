"""The report: what it says of a finished study, and what it says is missing from others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.studies import damaged

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import MissingExtra
from safemargin.web import pages
from safemargin.web.report import report_info

pytest.importorskip("plotly")


def data_of(report: Path) -> Any:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', report.read_text(), re.DOTALL
    )
    assert found
    return json.loads(found[1])


def test_a_finished_study(
    drawn_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out" / "report.html"
    assert main(["report", str(drawn_study), "-o", str(target), "--top", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(target), "notes": []}
    assert target.stat().st_size < 8_000_000
    data = data_of(target)
    facts = dict(data["facts"])
    assert facts["environment"].endswith("worlds.py:make_drawn")
    assert facts["policy hash"]
    assert facts["moments"] == "40 natural, 12 spread"
    assert {level for level, _ in data["findings"]} >= {"ok"}
    texts = " ".join(text for _, text in data["findings"])
    assert "no estimate hit the cap" in texts
    assert "unseen natural moments broke their margin" in texts
    assert "distinct episodes" in texts
    assert [panel["n"] for panel in data["densities"]["panels"]] == [1, 2, 4]
    proxies = {each["proxy"] for each in data["comparison"]["candidates"]}
    assert proxies == {"log_prob_range", "prob_range", "certainty"}
    assert len(data["moments"]) == 4
    assert all(each["picture"].startswith("data:image/jpeg;base64,") for each in data["moments"])
    means = [np.mean(each["losses"]) for each in data["moments"]]
    assert means == sorted(means, reverse=True)


def test_an_unfinished_study_says_what_is_missing(drawn_study: Path, tmp_path: Path) -> None:
    begun = damaged(drawn_study, tmp_path / "begun", "DELETE FROM estimates WHERE phase='spread'")
    with sm.Study.open(begun) as study:
        info = report_info(study, top=2)
        assert "40 of 40 natural, 0 of 12 spread moments are measured" in info.notes[0]
        assert "36 estimates are left" in info.notes[0]
        assert len(info.moments) == 2
        assert report_info(study, top=0).moments == ()


def test_a_study_without_a_finished_moment(
    drawn_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = damaged(drawn_study, tmp_path / "begun", "DELETE FROM estimates")
    target = tmp_path / "report.html"
    assert main(["report", str(begun), "-o", str(target)]) == 0
    assert "note: the study is not finished" in capsys.readouterr().err
    data = data_of(target)
    assert data["moments"] == []
    assert "holds no finished moment yet" in data["tables"]["note"]


def test_a_tiny_study_says_it_once(drawn_study: Path, tmp_path: Path) -> None:
    tiny = damaged(
        drawn_study,
        tmp_path / "tiny",
        "DELETE FROM estimates WHERE phase = 'spread' OR episode > 3",
    )
    with sm.Study.open(tiny) as study:
        notes = report_info(study, top=0).notes
    assert sum("a fit needs at least 10 moments" in note for note in notes) == 1
    assert notes[1].startswith("no margins, densities, held-out check or comparison of proxies: ")


def test_a_card_opens_its_moment(drawn_study: Path, tmp_path: Path) -> None:
    with sm.Study.open(drawn_study) as study:
        moments = report_info(study, top=3).moments
        assert len(moments) == 3
        for moment in moments:
            phase, index, _ = moment.episode.split("-")
            assert moment.command == (
                f'safemargin explore {drawn_study} --episode "{phase} {index}" --step {moment.step}'
            )


def test_without_the_environment_all_but_the_frames(drawn_study: Path, tmp_path: Path) -> None:
    moved = damaged(
        drawn_study,
        tmp_path / "moved",
        "UPDATE meta SET value = replace(value, 'worlds.py', 'gone.py') WHERE name='environment'",
    )
    with sm.Study.open(moved, trust=True) as study:
        info = report_info(study, top=3)
    assert len(info.notes) == 1
    assert "no pictures: environment" in info.notes[0]
    assert [moment.picture for moment in info.moments] == [None] * 3
    assert info.densities is not None
    assert info.comparison is not None


def test_data_cannot_end_the_script(drawn_study: Path, tmp_path: Path) -> None:
    odd = damaged(
        drawn_study,
        tmp_path / "odd",
        "UPDATE meta SET value = replace(value, 'worlds.py', '</script><b>') "
        "WHERE name = 'environment'",
    )
    target = tmp_path / "report.html"
    assert main(["report", str(odd), "-o", str(target), "--trust"]) == 0
    assert "</script><b>" not in target.read_text()
    assert "</script><b>" in dict(data_of(target)["facts"])["environment"]


def test_a_report_needs_no_server() -> None:
    check = (
        "import sys, safemargin.web.fleet, safemargin.web.report;"
        "print(sorted({'fastapi', 'pydantic', 'starlette', 'uvicorn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_bad_input(drawn_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no study in" in capsys.readouterr().err
    assert main(["report", str(drawn_study), "-o", str(tmp_path)]) == 2
    assert "is a folder; name the report's file" in capsys.readouterr().err
    assert main(["report", str(drawn_study), "--top", "-1", "-o", str(tmp_path / "r.html")]) == 2
    assert "top must be at least 0" in capsys.readouterr().err


def test_without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages.resources, "files", lambda name: Path("/nowhere"))
    pages.plotly_script.cache_clear()
    with pytest.raises(MissingExtra, match=r"pip install 'safemargin\[web\]'"):
        pages.plotly_script()
