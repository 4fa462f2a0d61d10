"""The baseline file: small, read back as it was written, and refused where it is damaged."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.mutations import mutate_bytes, mutate_json
from helpers.roads import Walker, study

from safemargin.errors import BaselineFileError
from safemargin.validation.baseline import Baseline


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return study(Walker(), 0).save(tmp_path_factory.mktemp("baseline") / "baseline.json")


def test_what_was_written_is_read_back(written: Path) -> None:
    made, read = study(Walker(), 0), Baseline.load(written)
    assert read.source == str(written)
    for name in ("returns", "game_numbers", "game_seeds", "natural", "proxies", "losses"):
        assert np.array_equal(getattr(read, name), getattr(made, name)), name
    assert read.to_dict() == made.to_dict()
    assert (read.seed, read.n_values) == (0, (1, 2, 4, 8))


def test_the_file_explains_itself_line_by_line(written: Path) -> None:
    data = json.loads(written.read_text())
    # An entry a line, so that a difference shows what changed.
    assert len(written.read_text().splitlines()) == len(data) + 2
    assert data["readme"].startswith("What `safemargin gate` compares")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is not valid JSON .truncated, or no baseline"),
        ("[]", "is not a baseline; write it again"),
        ('{"format": "safemargin-margins"}', "is not a baseline"),
        ('{"format": "safemargin-baseline", "version": 9}', "a baseline of version 9, and this"),
        ('{"format": "safemargin-baseline", "version": NaN}', "is not valid JSON"),
        ('{"format": "safemargin-baseline", "version": 1}', "is damaged: the entry 'proxy' must"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(BaselineFileError, match=text):
        Baseline.load(tmp_path / "b.json")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaselineFileError, match="none.json cannot be read: No such file"):
        Baseline.load(tmp_path / "none.json")
    with pytest.raises(BaselineFileError, match="cannot be written"):
        study(Walker(), 0).save(tmp_path / "no folder" / "b.json")


@pytest.mark.parametrize(
    ("part", "name", "value", "text"),
    [
        ("games", "return", [1.0], "the columns of 'games' differ in length"),
        ("games", "seed", ["x"], "the column 'seed' must be a list of int"),
        ("games", "number", [-1], "the column 'number' holds -1, which is below 0"),
        ("moments", "losses", [[0.0]], "do not fit the n_values of the settings"),
        ("moments", "losses", [[0.0, "x", 0.0, 0.0]], "'losses' must hold finite numbers only"),
        ("moments", "step", [0], "the columns of 'moments' differ in length"),
        ("moments", "game", [10**6] * 150, "a natural moment belongs to no game"),
        ("policy", "identity", None, "the identity in 'policy' must be a string"),
        ("environment", "name", 3, "the name in 'environment' must be a string"),
        ("settings", "gama", 0.5, "settings: 'gama' is unknown; did you mean 'gamma'"),
        ("versions", "numpy", 2, "the 'versions' must be strings"),
    ],
)
def test_damage_is_named(
    written: Path, tmp_path: Path, part: str, name: str, value: Any, text: str
) -> None:
    data = json.loads(written.read_text())
    data[part][name] = value
    (tmp_path / "b.json").write_text(json.dumps(data))
    with pytest.raises(BaselineFileError, match=f"b.json is damaged: .*{text}"):
        Baseline.load(tmp_path / "b.json")


def test_random_damage_is_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    whole = study(Walker(), 0, natural=12, spread=3).to_dict()
    path, pick = tmp_path / "b.json", random.Random(0)
    refused = []
    for _ in range(300):
        damaged = json.dumps(mutate_json(copy.deepcopy(whole), pick)).encode()
        path.write_bytes(mutate_bytes(damaged, pick) if pick.random() < 0.3 else damaged)
        try:
            Baseline.load(path)
        except BaselineFileError as error:
            refused.append(str(error))
    assert 100 < len(refused) < 300
    assert not any("\n" in text for text in refused)
