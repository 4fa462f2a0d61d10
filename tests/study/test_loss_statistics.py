"""Percentiles and deviations of the loss at a moment, against closed forms."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import WORLDS

import safemargin as sm
from safemargin.errors import InvalidInput, StudyIncomplete

GAMMA, LENGTH = 0.9, 60


def create(path: Path, environment: str, policy: str = "always_first", **settings: Any) -> sm.Study:
    given = {"n_values": (1, 2), "trials": 48, "gamma": GAMMA, **settings}
    return sm.Study.create(
        path, f"{WORLDS}:{environment}", f"{WORLDS}:{policy}", given, scores="logits"
    )


def test_every_sequence(tmp_path: Path) -> None:
    with create(tmp_path / "study", "make_chain") as study:
        study.collect(natural=12, spread=0, workers=1)
        found = {name: study.tuples(estimand=name) for name in ("p90", "sd", "mean")}
        steps, horizon = found["sd"].steps, study.settings.horizon
        starts = [LENGTH - study.store.episode(key).steps for key in found["sd"].keys]
        left = np.minimum(LENGTH - steps - np.array(starts), horizon)
        whole = (1 - GAMMA**left) / (1 - GAMMA)
        # n = 1: half of the actions end the walk and lose all. n = 2: of four sequences, two lose
        # all, one all but the first reward, one nothing.
        assert found["p90"].losses("p90")[:, 0] == pytest.approx(whole)
        assert found["sd"].losses("sd")[:, 0] == pytest.approx(whole / 2)
        two = np.stack([whole, whole, whole - 1, 0 * whole])
        assert found["sd"].losses("sd")[:, 1] == pytest.approx(two.std(axis=0))
        assert found["p90"].losses("mean") == pytest.approx(found["mean"].losses("mean"))
        fitted = study.fit(0.8, estimand="sd")
        assert fitted.estimand == "sd"
        document = fitted.to_dict()
        assert "sd for its standard deviation" in document["readme"]
        assert sm.Margins.from_dict(document).estimand == "sd"
        with pytest.raises(InvalidInput, match="hold no p95; use study.tuples.estimand='p95'"):
            found["sd"].losses("p95")
        with (study.export(tmp_path / "tuples.csv")).open() as file:
            first = next(csv.DictReader(file))
        assert float(first["loss_sd"]) == pytest.approx(found["sd"].losses("sd")[0, 0])
        assert float(first["loss_p95"]) == pytest.approx(whole[0])


def test_where_the_world_is_random(tmp_path: Path) -> None:
    slip = 0.02  # that of make_slippery_chain
    with create(tmp_path / "study", "make_slippery_chain", trials=400, n_values=(1,)) as study:
        study.collect(natural=2, spread=0, workers=1)
        tuples = study.tuples(estimand="p95")
        for row, (_, one) in enumerate(study.store.all_measurements()):
            # More than one in twenty trials earns nothing at all.
            assert tuples.losses("p95")[row, 0] == pytest.approx(one.estimate.unperturbed)
        scores = study.store.scores(tuples.keys[0])
        state = int(scores[tuples.steps[0], 0]) - 1  # the score of action 0 is 1 + the state
        left = min(LENGTH - state, study.settings.horizon)
        alive = (1 - slip) / 2 * (1 - slip) ** np.arange(left)  # after each step
        earned = (1 - GAMMA ** np.arange(1, left + 1)) / (1 - GAMMA)
        ends = np.append(alive[:-1] - alive[1:], alive[-1])  # after this many steps; else at once
        mean, square = (ends * earned).sum(), (ends * earned**2).sum()
        found = study.tuples(estimand="sd").losses("sd")[0, 0]
        assert found == pytest.approx(np.sqrt(square - mean**2), rel=0.15)


def test_too_few_trials_are_refused(tmp_path: Path) -> None:
    with create(tmp_path / "study", "make_slippery_chain", trials=12) as study:
        study.collect(natural=1, spread=0, workers=1)
        assert study.tuples(estimand="p90").statistics is not None
        with pytest.raises(StudyIncomplete, match="has 12 trials of .* too few for the p95 .* 20;"):
            study.tuples(estimand="p95")
        with pytest.raises(InvalidInput, match="estimand 'p94' is unknown; did you mean 'p9"):
            study.tuples(estimand="p94")  # type: ignore[arg-type]


def test_the_worst_sequence_has_none(tmp_path: Path) -> None:
    with create(tmp_path / "study", "make_swerving", "swerve", perturb="worst") as study:
        study.collect(natural=1, spread=0, workers=1)
        with pytest.raises(InvalidInput, match="and a sd over its trials has no meaning"):
            study.tuples(estimand="sd")
