"""Highlights: the right moments, apart from one another, as clips that can be read again."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.studies import damaged
from helpers.worlds import always_first, make_branching
from PIL import Image

import safemargin as sm
from safemargin.cli import main
from safemargin.errors import InvalidInput, NoPictures
from safemargin.replay import highlights, situations
from safemargin.replay.captions import ClipPainter, contact_sheet
from safemargin.replay.highlights import HELD, choose_highlights, write_highlights
from safemargin.replay.recordings import Recordings
from safemargin.replay.situations import Situation, Situations
from safemargin.replay.video import find_ffmpeg, write_video

pytest.importorskip("imageio_ffmpeg")


def read_video(path: str) -> tuple[str, int]:
    """What ffmpeg says about a clip, and how many pictures it decodes."""
    command = [find_ffmpeg(), "-i", path, "-f", "null", "-"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return said, int(re.findall(r"frame=\s*(\d+)", said)[-1])


def test_clips_and_a_contact_sheet(
    drawn_study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "clips"
    arguments = ["highlights", str(drawn_study), "--top", "3", "-o", str(folder), "--apart", "8"]
    assert main([*arguments, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert len(written["clips"]) == 3
    for clip, moment in zip(written["clips"], written["moments"], strict=True):
        assert Path(clip).name.endswith(f"{moment['episode']}-step-{moment['step']}.mp4")
        about, frames = read_video(clip)
        assert "Video: h264" in about
        assert "yuv420p" in about
        assert "20 fps" in about
        assert frames > HELD * 20
    with Image.open(written["contact_sheet"]) as sheet:
        assert sheet.width > sheet.height > 200
    margins = [moment["margin"] for moment in written["moments"]]
    assert margins == sorted(margins)


def test_moments_lose_most_or_have_the_lowest_margins_and_lie_apart(
    drawn_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(situations, "ALIKE_STEPS", -1)  # only equal scores are alike
    with sm.Study.open(drawn_study) as study:
        margins = study.fit(0.9)
        found = choose_highlights(study, Recordings(study), margins, 1.0, top=99, apart=5)
        losses = [each.loss for each in found if each.loss is not None]
        assert losses == sorted(losses, reverse=True)
        assert found[0].loss == max(study.tuples().criticalities.mean(axis=1))
        others = found[len(losses) :]
        assert all(each.loss is None for each in others)
        assert others == sorted(others, key=lambda each: (each.margin or 0, -each.proxy))
        assert not any(each.outside for each in found)
        assert all(each.margin == margins(each.proxy, 1.0) for each in found)
        distances = [
            abs(one.step - other.step)
            for one, other in itertools.combinations(found, 2)
            if one.episode == other.episode
        ]
        assert min(distances) >= 5


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ({}, False),
        ({"time": 110}, True),
        ({"proxy": 3.0}, True),
        ({"proxy": 1.5, "time": 103}, False),
        ({"loss": 0.5}, True),
        ({"loss": 0.9}, False),
        ({"loss": None}, False),
        ({"scores": b"first", "time": 500, "proxy": 9.0}, False),
    ],
)
def test_moments_of_one_situation_are_alike(change: dict[str, Any], new: bool) -> None:
    known = Situations()
    known.note(np.array([0.0, 4.0, 9.0]))
    first = Situation(time=99, proxy=1.0, loss=1.0, scores=b"first")
    assert known.is_new(first)
    assert known.is_new(replace(first, **{"scores": b"other", **change})) == new


def test_above_every_measured_proxy_comes_last(
    narrow_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sm.Study.open(narrow_study) as study:
        margins = study.fit(0.9)
        recordings = Recordings(study)
        highest = margins.highest_proxy
        found = choose_highlights(study, recordings, margins, 0.0, top=12, apart=5)
        outside = [each.outside for each in found]
        assert outside == sorted(outside)
        assert not outside[0]
        assert outside[-1]
        assert outside == [each.proxy > highest for each in found]
        above = [each.proxy for each in found if each.outside]
        assert above == sorted(above, reverse=True)
        captions: list[str] = []
        painted: list[str] = []

        def sheet(stills: list[tuple[Any, str]]) -> Image.Image:
            captions.extend(text for _, text in stills)
            return contact_sheet(stills)

        class Painter(ClipPainter):
            def __init__(self, **given: Any) -> None:
                super().__init__(**given)
                assert self.margins is not None
                painted.append(self.margins[self.moment - self.first_step])

        monkeypatch.setattr(highlights, "contact_sheet", sheet)
        monkeypatch.setattr(highlights, "ClipPainter", Painter)
        written = write_highlights(study, tmp_path, top=8, confidence=0.9, tolerance=0.0, apart=5)
        steps = sum(
            int(
                (recordings.open(each.name).episode.proxies["log_prob_range"][span] > highest).sum()
            )
            for each in recordings.summaries()
            for span in [slice(each.opening, each.steps - study.settings.excluded_steps)]
        )
        total = sum(
            each.steps - study.settings.excluded_steps - each.opening
            for each in recordings.summaries()
        )
    assert written.notes[0] == (
        f"{steps:,} of {total:,} steps lie above every measured proxy, so nothing is promised "
        "there; they come after all others"
    )
    for moment, caption, margin in zip(written.moments, captions, painted, strict=True):
        assert ("margin ?\nabove every measured proxy" in caption) == moment.outside
        assert margin == ("?" if moment.outside else str(moment.margin))
    assert "margin 0" in captions[0]
    assert "margin ?" in captions[-1]


def test_a_contact_sheet_wastes_no_room() -> None:
    wide = np.full((40, 60, 3), 250, np.uint8)
    sheet = np.asarray(contact_sheet([(wide, "natural 1\nstep 3")] * 5))
    bright = (sheet == 250).all(axis=2).mean()
    assert bright > 0.6  # pictures of 240 × 160, and two lines of text below


def test_clips_of_an_earlier_run_are_reported(drawn_study: Path, tmp_path: Path) -> None:
    old = tmp_path / "09-natural-3-0-step-12.mp4"
    old.write_bytes(b"a clip")
    with sm.Study.open(drawn_study) as study:
        written = write_highlights(study, tmp_path, top=1)
    assert f"1 clips of an earlier run are still in {tmp_path}" in written.notes
    assert old.read_bytes() == b"a clip"


def test_too_few_moments_for_margins(drawn_study: Path, tmp_path: Path) -> None:
    with sm.Study.open(drawn_study) as study:
        written = write_highlights(study, tmp_path, top=1, confidence=0.99)
    assert written.moments[0].margin is None
    assert written.notes[0] == (
        "no margins, so the proxy alone decides: a confidence of 0.99 takes 198 natural moments, "
        "and there are 40"
    )


def test_few_moments_lower_the_default_confidence(drawn_study: Path, tmp_path: Path) -> None:
    few = damaged(
        drawn_study,
        tmp_path / "few",
        "DELETE FROM estimates WHERE phase = 'natural' AND episode >= 30",
    )
    with sm.Study.open(few) as study:
        for confidence, known in ((None, True), (0.9, True), (0.95, False)):
            clips = tmp_path / f"clips-{confidence}"
            written = write_highlights(study, clips, top=1, confidence=confidence)
            assert (written.moments[0].margin is not None) == known


def test_invalid_options_are_refused(
    drawn_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sm.Study.open(drawn_study) as study:
        with pytest.raises(InvalidInput, match="top must be at least 1, got 0"):
            write_highlights(study, tmp_path, top=0)
        with pytest.raises(InvalidInput, match="apart must be at least 1, got 0"):
            write_highlights(study, tmp_path, apart=0)
        with pytest.raises(InvalidInput, match="the tolerance must be at least 0"):
            write_highlights(study, tmp_path, tolerance=-1)
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
        with pytest.raises(InvalidInput, match=r"pip install 'safemargin\[video\]'"):
            write_highlights(study, tmp_path)


def test_a_world_that_does_not_draw(tmp_path: Path) -> None:
    settings = {"n_values": (1,), "trials": 2}
    study = sm.Study.create(
        tmp_path / "study", make_branching, always_first, settings, scores="logits"
    )
    with study:
        study.collect(2, 0, workers=1)
        with pytest.raises(NoPictures, match="does not take render_mode"):
            write_highlights(study, tmp_path / "clips", top=1)


def test_a_clip_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a video needs even sides, got 3 × 2"):
        write_video(tmp_path / "odd.mp4", [np.zeros((2, 3, 3), np.uint8)], fps=10)
    with pytest.raises(InvalidInput, match=r"gone.clip\.mp4 cannot be written: ffmpeg says"):
        write_video(tmp_path / "gone" / "clip.mp4", [np.zeros((64, 64, 3), np.uint8)], fps=10)
