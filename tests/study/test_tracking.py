"""A study in DataFrames, in notebooks, in TensorBoard and in other trackers."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.studies import create

import safemargin as sm
from safemargin.cli import main
from safemargin.core.notebook import table_html
from safemargin.errors import InvalidInput, MissingExtra
from safemargin.study.plays import FewPlays
from safemargin.study.tracking import key_numbers, log_study, tensorboard


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tracking") / "study"
    settings = sm.Settings(gamma=0.9, n_values=(1, 2), trials=6, opening=6)
    with warnings.catch_warnings(), create(folder, settings=settings) as made:
        warnings.simplefilter("ignore", FewPlays)
        made.collect(natural=20, spread=2, workers=1)
        yield made


def test_tuples_become_a_data_frame_with_a_row_for_each_moment_and_n(study: Any) -> None:
    pytest.importorskip("pandas")
    tuples = study.tuples()
    frame = tuples.to_pandas()
    assert len(frame) == 22 * 2
    assert list(frame.columns[:6]) == ["phase", "episode", "life", "step", "n", tuples.proxy]
    third = frame[(frame.phase == "natural") & (frame.episode == 2) & (frame.n == 2)]
    at = tuples.keys.index(next(key for key in tuples.keys if key.index == 2))
    assert third.criticality.item() == tuples.criticalities[at, 1]
    assert third[tuples.proxy].item() == tuples.proxies[at]


def test_a_missing_library_is_named(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtra, match=r"a DataFrame needs .*safemargin\[pandas\]"):
        study.tuples().to_pandas()
    with pytest.raises(MissingExtra, match=r"TensorBoard needs .*safemargin\[tensorboard\]"):
        tensorboard("logs")


def test_a_notebook_shows_tables(study: Any) -> None:
    margins = study.fit(0.9)
    shown = margins._repr_html_()
    assert f"tolerance \\ {margins.proxy}" in shown
    assert shown.count("<tr>") > 2
    assert "20 of 20 natural" in study._repr_html_()
    assert "at most 0.1 was promised" in study.validate(confidence=0.9)._repr_html_()
    assert f"calibrated, {margins.proxy}" in study.compare(confidence=0.9)._repr_html_()


def test_a_table_in_html_by_hand() -> None:
    made = table_html("a < b", ["", "x"], [["one", None], ["two", 0.25]], shades=[[0], [1]])
    assert "a &lt; b" in made
    assert made.index("–") < made.index("0.25")
    assert "rgba(64,145,108,0.63)" in made


class Diary:
    """A tracker that only remembers."""

    def __init__(self) -> None:
        self.numbers: dict[str, tuple[float, int]] = {}
        self.pictures: dict[str, Any] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.numbers[tag] = scalar_value, global_step

    def add_image(self, tag: str, img_tensor: Any, global_step: int, *, dataformats: str) -> None:
        assert dataformats == "HWC"
        self.pictures[tag] = img_tensor


def test_any_tracker_gets_the_numbers_and_the_pictures(study: Any) -> None:
    diary = Diary()
    sent = log_study(study, diary, step=7, tolerances=[0.5])
    tuples = study.tuples()
    natural = tuples.criticalities[tuples.phases == "natural"]
    assert sent["criticality/mean_n_2"] == natural[:, 1].mean()
    assert sent["moments/natural"] == 20
    assert 0 <= sent["margin/mean_at_0.5"] <= 2
    assert diary.numbers["safemargin/trials"] == (study.status().trials, 7)
    assert len(diary.numbers) == len(sent) == len(key_numbers(study)) + 1
    assert diary.pictures
    for picture in diary.pictures.values():
        assert picture.dtype == np.uint8
        assert picture.shape[2] == 3


def test_a_study_is_logged_to_tensorboard(
    study: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX")
    asked = ["log", str(study.path), "--tensorboard", str(tmp_path / "logs"), "--step", "9"]
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["moments/natural"] == 20
    (written,) = (tmp_path / "logs").iterdir()
    assert b"safemargin/criticality/mean_n_1" in written.read_bytes()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="is a file; name a folder"):
        tensorboard(tmp_path / "file")
    capsys.readouterr()
    assert main([*asked[:2], "--tensorboard", str(tmp_path / "file" / "logs")]) == 2
    assert f"cannot use {tmp_path}/file/logs: Not a directory" in capsys.readouterr().err
