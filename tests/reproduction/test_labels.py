"""Cheap labels of the Atari agents: what they say is true, and kin is told from their plays."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT

pytest.importorskip("pyarrow", reason="pip install 'safemargin[parquet]'")
pytest.importorskip("ale_py", reason="pip install 'safemargin[atari]'")

sys.path.insert(0, str(ROOT / "reproduction"))

from labelled import Labels, to_judge
from labels import Labeller, keep
from learned import pack, unpack

from safemargin.margins.learned.models import fit_view


def test_the_agents_own_action_returns_what_the_game_did(tmp_path: Path) -> None:
    game = Labeller("pong-a3c", stride=700, full=1.0).game(1, until=np.inf)
    labels = game["labels"]
    own = labels["recent"][:, -1].argmax(axis=1)
    assert len(own) >= 2
    assert game["disturbed"]
    np.testing.assert_array_equal(labels["single"][range(len(own)), own], labels["own"])
    assert np.isfinite(labels["several"]).all()
    hashes = list(game["hashes"])
    assert keep(tmp_path / "pong-a3c-1.npz", [game]) == len(own)
    read = Labels.read([tmp_path / "pong-a3c-1.npz"])
    assert read.steps == labels["step"].tolist()
    np.testing.assert_array_equal(read.hashes[0], hashes[0])


def labels_of(plays: list[np.ndarray], games: list[int], steps: list[int]) -> Labels:
    columns = {
        "game": np.array(games),
        "step": np.array(steps),
        "disturbed": np.array(games) % 2 == 1,
    }
    return Labels(columns, plays)


def test_of_games_on_one_play_the_first_is_judged_and_the_others_are_kin() -> None:
    first, other = (np.arange(start, start + 300, dtype=np.uint32) for start in (1, 1001))
    joined = np.concatenate([other[:10], first[20:]])  # comes into the first play
    found = labels_of(
        [first, joined, other, first, first], games=[0, 2, 4, 1, 0], steps=[100, 120, 50, 100, 150]
    )
    groups, kin = to_judge(found, horizon=40)
    assert groups.tolist() == [0, -1, 1, -1, 0]
    # The copy and the disturbed game must not teach a model that judges game 0.
    assert {(1, 0), (3, 0)} <= set(map(tuple, kin.tolist()))
    assert not any(group == 1 for row, group in kin.tolist())


def test_packed_inputs_keep_what_models_see_of_them() -> None:
    """Coordinates along the main directions, and distances; the rest comes back as noise."""
    rng = np.random.default_rng(0)
    along = rng.normal(size=(400, 10)) * np.geomspace(8, 1, 10)
    inputs = along @ rng.normal(size=(10, 600)) + 4 * rng.normal(size=(400, 600)) + 3
    inputs = np.maximum(inputs, 0).astype(np.float32)
    again = unpack(pack(inputs))
    assert sum(part.nbytes for part in pack(inputs).values()) < inputs.nbytes / 2
    assert again.dtype == np.float32
    before, after = fit_view(inputs), fit_view(again)
    shared = np.linalg.svd(before.directions[:, :10].T @ after.directions[:, :10])[1]
    assert shared.min() > 0.99
    for moments in (inputs, again):
        assert after(moments)[1].mean() == pytest.approx(before(inputs)[1].mean(), rel=0.1)
