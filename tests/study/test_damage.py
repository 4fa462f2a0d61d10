"""Studies that somebody edited, or that a disk damaged: nothing in them is believed."""

from __future__ import annotations

import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.studies import create, damaged, select
from helpers.worlds import make_branching, make_slippery_chain

import safemargin as sm
from safemargin.core.records import Estimate, Measurement
from safemargin.errors import StudyCorrupt
from safemargin.study import disk_faults
from safemargin.study.blobs import MOST_BYTES, pack, unpack
from safemargin.study.evidence import contradiction
from safemargin.study.store import DATABASE

PLANS = {
    "fixed": {"trials": 5},
    "paper": {"sampling_error": 2.0, "max_trials": 20},
    "rule-of-three": {"sampling_error": 20.0, "largest_loss": 60.0},
    "anytime": {"sampling_error": 30.0, "largest_loss": 60.0, "smallest_loss": -60.0},
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Finished studies of a noisy world, one for each plan, and one of a world without noise."""
    made: dict[str, Path] = {}

    def study(plan: str) -> Path:
        if plan not in made:
            made[plan] = tmp_path_factory.mktemp(plan) / "study"
            make = make_branching if plan == "exact" else make_slippery_chain
            more = PLANS.get(plan, {"trials": 5})
            name = "fixed" if plan == "exact" else plan
            settings = sm.Settings(trial_plan=name, n_values=(1, 2), opening=4, **more)
            with create(made[plan], make, settings=settings) as new:
                new.collect(natural=6, spread=5, workers=1)
        return made[plan]

    return study


def edited(study: Path, target: Path, change: str, values: dict[str, Any] | None = None) -> Path:
    """A copy of a study in which an estimate was changed: of its last natural moment, for n = 2."""
    target.mkdir()
    shutil.copy(study / DATABASE, target)
    with sqlite3.connect(target / DATABASE) as database:
        last = "(SELECT MAX(episode) FROM estimates WHERE phase = 'natural')"
        where = f"phase = 'natural' AND episode = {last} AND n = 2"
        assert database.execute(
            f"UPDATE estimates SET {change} WHERE {where}", values or {}
        ).rowcount
    database.close()
    return target


def read(study: Path, how: str) -> None:
    with sm.Study.open(study) as opened:
        if how == "fit":
            opened.fit(0.5)
        elif how == "validate":
            opened.validate(0.5)
        elif how == "export":
            opened.export(study / "tuples.csv")
        elif how == "moment":
            for moment in opened.store.moments():
                opened.store.measurements(moment.episode)
        else:
            opened.tuples(estimand="single-run")


@pytest.mark.parametrize("how", ["fit", "validate", "export", "moment", "single-run"])
def test_an_edited_criticality_is_found_wherever_it_is_read(
    studies: Callable[[str], Path], tmp_path: Path, how: str
) -> None:
    study = edited(studies("fixed"), tmp_path / "study", "criticality = criticality + 0.5")
    message = (
        r"the database of the study in .* is damaged \(the estimate of natural \d+, n = 2: its "
        r"criticality is .*, and its returns give .*\); restore it from a copy"
    )
    with pytest.raises(StudyCorrupt, match=message):
        read(study, how)


@pytest.mark.parametrize(
    ("plan", "change", "what"),
    [
        *[(plan, "criticality = 99", "its criticality is 99, and its returns") for plan in PLANS],
        ("exact", "criticality = 99", "its criticality is 99, and its returns"),
        ("fixed", "half_width = half_width / 2", "its half_width is .*, and its returns give"),
        ("paper", "half_width = half_width + 0.01", "its half_width is .*, and its returns give"),
        ("exact", "half_width = 0.1", "its half_width is 0.1, and its returns give 0"),
        ("fixed", "unperturbed = 7", "its unperturbed is 7, and its returns give"),
        ("paper", "capped = NOT capped", r"its capped is \d, and its returns give"),
        ("anytime", "capped = NOT capped", "its capped is 1, and its returns give 0"),
        ("anytime", "half_width = 0", "trials, after which plan 'anytime' does not stop"),
        ("anytime", "half_width = 31, capped = 1", "trials, after which plan 'anytime' does not"),
        ("fixed", "exact = 1, half_width = 0", "it is called exact, which 5 trials cannot be"),
        ("exact", "exact = 0", "trials, after which plan 'fixed' does not stop"),
        ("fixed", "trials = 6", r"an array .* \(natural \d+, n = 2: it has the shape \[5\]"),
        ("fixed", "trials = 0", r"a row of estimates is none that safemargin wrote, e.g. for"),
        ("fixed", "n = 3", r"rows of costs are missing, e.g. for \('natural', \d+, 0\)"),
    ],
)
def test_edited_measurements_are_found(
    studies: Callable[[str], Path], tmp_path: Path, plan: str, change: str, what: str
) -> None:
    study = edited(studies(plan), tmp_path / "study", change)
    with pytest.raises(StudyCorrupt, match=what):
        read(study, "fit")


@pytest.mark.parametrize(
    ("returns", "what"),
    [
        (
            np.zeros(3),
            r"\(natural \d+, n = 2: it has the shape \[3\], which cannot be its length\)",
        ),
        (np.zeros((5, 2)), "its returns are not plain lists of numbers"),
        (np.array([1.0, 2.0, np.nan, 3.0, 4.0]), "its criticality is .*, and its returns give nan"),
    ],
)
def test_edited_returns_are_found(
    studies: Callable[[str], Path], tmp_path: Path, returns: np.ndarray, what: str
) -> None:
    change = "perturbed_returns = :returns"
    study = edited(studies("fixed"), tmp_path / "study", change, {"returns": pack(returns)})
    with pytest.raises(StudyCorrupt, match=what):
        read(study, "fit")


def test_fewer_trials_than_the_plan_takes_are_found(
    studies: Callable[[str], Path], tmp_path: Path
) -> None:
    """Even where everything that is computed from them has been computed again."""
    new = {"returns": pack(np.array([1.0, 2.0])), "unperturbed": pack(np.array([3.0, 3.0]))}
    change = (
        "perturbed_returns = :returns, unperturbed_returns = :unperturbed, trials = 2, "
        "criticality = 1.5, half_width = 6.353, unperturbed = 3"
    )
    study = edited(studies("fixed"), tmp_path / "study", change, new)
    with pytest.raises(StudyCorrupt, match="it has 2 trials, after which plan 'fixed' does not"):
        read(study, "fit")


def test_an_n_that_was_not_measured_is_found() -> None:
    measurement = Measurement(
        Estimate(3, 0.0, 0.0, 2, False, 0.0), np.zeros(2), np.zeros(1), steps=1
    )
    found = contradiction(measurement, sm.Settings(n_values=(1, 2), trials=2))
    assert found == "the study measures n = 1, 2 only"


@pytest.mark.parametrize("plan", [*PLANS, "exact"])
def test_honest_estimates_are_read_as_they_were_written(
    studies: Callable[[str], Path], plan: str
) -> None:
    columns = "criticality, half_width, trials, exact, unperturbed"
    written = select(
        studies(plan), f"SELECT {columns} FROM estimates ORDER BY phase, episode, life, n"
    )
    with sm.Study.open(studies(plan)) as study:
        found = [measurement.estimate for _, measurement in study.store.all_measurements()]
        tuples = study.tuples()
    assert len(written) == 2 * 11
    assert written == [
        (each.mean, each.half_width, each.trials, each.exact, each.unperturbed) for each in found
    ]
    assert tuples.criticalities.ravel().tolist() == [row[0] for row in written]
    assert tuples.half_widths.ravel().tolist() == [row[1] for row in written]
    assert any(row[3] for row in written) == (plan == "exact")


def test_an_edited_proxy_of_a_moment_is_found(
    studies: Callable[[str], Path], tmp_path: Path
) -> None:
    change = "UPDATE moment_proxies SET value = value + 1 WHERE phase = 'spread' AND episode = 2"
    study = damaged(studies("fixed"), tmp_path / "study", change)
    with pytest.raises(StudyCorrupt, match="of spread 2 is not the one recorded at step"):
        read(study, "fit")
    with pytest.raises(StudyCorrupt, match="of spread 2 is not the one recorded at step"):
        read(study, "export")


# -- what rows and entries may hold --------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE episodes SET steps = 'x'", "a row of episodes is none that safemargin wrote"),
        ("UPDATE episodes SET ended = 'won'", "a row of episodes is none that safemargin wrote"),
        ("UPDATE episodes SET rewards = 1", "a row of episodes is none that safemargin wrote"),
        (
            "UPDATE costs SET phase = 'x' WHERE episode = 1 AND phase = 'natural'",
            "a row of costs is none that",
        ),
        ("UPDATE moments SET step = 99999", "a moment lies outside its episode"),
        ("UPDATE moments SET step = -1", "a moment lies outside its episode"),
        ("DELETE FROM costs WHERE n = 2", "rows of costs are missing"),
        ("DELETE FROM episode_proxies WHERE proxy = 'certainty'", "rows of episode_proxies are"),
        ("UPDATE moment_proxies SET n = 7", "rows of tuples are missing"),
        ("UPDATE episodes SET steps = steps + 1", r"array .* \(natural 0: it has the shape"),
        ("DROP TABLE costs", "no such table: costs"),
        ("DROP VIEW tuples", "no such table: tuples"),
        ("UPDATE meta SET value = '{}' WHERE name = 'policy'", "the entry 'policy' .* is {}"),
        ("UPDATE meta SET value = x'ff' WHERE name = 'policy'", "the entry 'policy' .* not JSON"),
        ("UPDATE meta SET value = 'null' WHERE name = 'policy'", "the entry 'policy' .* missing"),
        (
            "UPDATE meta SET value = replace(value, 'true', '3') WHERE name = 'diagnosis'",
            "the entry 'diagnosis' of its table meta is {",
        ),
        (
            "UPDATE meta SET value = '[]' WHERE name = 'proxies'",
            "'selection_proxy' is not one of its",
        ),
        ("UPDATE meta SET value = '[1]' WHERE name = 'target'", r"the entry 'target' .* is \[1\]"),
        (
            "UPDATE meta SET value = replace(value, '0.99', '\"x\"') WHERE name = 'settings'",
            "the entry 'settings' of its table meta: gamma is 'x'",
        ),
        (
            "UPDATE meta SET value = json_remove(value, '$.n_values') WHERE name = 'settings'",
            "the entry 'settings' of its table meta: n_values is missing",
        ),
        (
            "UPDATE meta SET value = replace(value, '[1, 2]', '3') WHERE name = 'settings'",
            "the entry 'settings' of its table meta: ",
        ),
    ],
)
def test_other_damage_is_one_sentence(
    studies: Callable[[str], Path], tmp_path: Path, change: str, what: str
) -> None:
    study = damaged(studies("fixed"), tmp_path / "study", change)
    with pytest.raises(StudyCorrupt, match=what) as caught:
        read(study, "fit")
    assert "\n" not in str(caught.value)
    assert re.search("restore (it|study.db) from a copy", str(caught.value))


def test_what_sqlite_says_in_several_lines_is_one() -> None:
    error = disk_faults.damaged(Path("study"), "*** in main ***\nOn page 5\x1b[31m:\n  x")
    assert "is damaged (*** in main *** On page 5\\x1b[31m: x); restore it" in str(error)


# -- arrays that would fill the memory -----------------------------------------------------------


def test_a_small_blob_that_unpacks_to_gigabytes_is_refused() -> None:
    bomb = b"<f8 400000000\n"
    packed = zlib.compressobj(9)
    blob = packed.compress(bomb) + packed.compress(bytes(10**7)) + packed.flush()
    with pytest.raises(StudyCorrupt, match=r"it would take 3,200,000,000 bytes, more than any"):
        unpack(blob)
    with pytest.raises(StudyCorrupt, match=r"shape \[400000000\], which cannot be its length"):
        unpack(blob, rows=(48,))


def test_data_beyond_what_the_header_says_are_not_unpacked() -> None:
    blob = zlib.compress(b"<f8 48\n" + bytes(10**7))
    with pytest.raises(StudyCorrupt, match="its data do not take the 384 bytes of its shape"):
        unpack(blob, rows=(48,))
    assert MOST_BYTES == 2**30
