"""The sample of a fit: built from a study's moments, with one row per moment or per run."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.margins import measured_tuples

from safemargin.core.records import Floats, Tuples
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.bounds.table import Estimand

PROXIES = np.arange(12.0)


def twelve(proxies: Floats = PROXIES, **changes: object) -> Tuples:
    """Twelve moments, natural and spread in turn, two to a group; n = 1, 2, 4."""
    losses = np.arange(36.0).reshape(12, 3)
    return measured_tuples(
        np.array(["natural", "spread"] * 6),
        proxies,
        losses,
        **{"groups": np.arange(12) // 2, "runs": np.stack([losses, -losses], axis=1), **changes},
    )


def test_one_row_for_each_moment() -> None:
    sample = Sample.from_tuples(twelve())
    assert (len(sample), sample.moment_count, sample.n_values) == (12, 12, (1, 2, 4))
    assert sample.losses[3].tolist() == [9, 10, 11]
    assert sample.proxies[3].tolist() == [3, 3, 3]
    assert sample.natural.tolist() == [True, False] * 6
    assert sample.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert (sample.estimand, sample.looks_at_n) == ("mean", False)
    assert sample.first_runs.all()


def test_one_row_for_each_single_run() -> None:
    sample = Sample.from_tuples(twelve(), "single-run")
    assert (len(sample), sample.moment_count, sample.estimand) == (24, 12, "single-run")
    assert sample.losses[6:8].tolist() == [[9, 10, 11], [-9, -10, -11]]
    assert sample.moments[:4].tolist() == [0, 0, 1, 1]
    assert sample.first_runs.tolist() == [True, False] * 12
    with pytest.raises(InvalidInput, match="these tuples hold no single runs"):
        Sample.from_tuples(twelve(runs=None), "single-run")


@pytest.mark.parametrize("estimand", ["mean", "single-run"])
def test_some_moments_and_columns(estimand: Estimand) -> None:
    order = np.array([11, *range(10)])
    sample = Sample.from_tuples(twelve(), estimand, moments=order).take_columns([0, 2])
    assert (sample.moment_count, sample.n_values) == (11, (1, 4))
    assert sample.losses[0].tolist() == [33, 35]
    assert sample.proxies[0].tolist() == [11, 11]
    assert not sample.natural[0]
    kept = Sample.from_tuples(twelve(groups=None), moments=np.arange(12) > 1)
    assert kept.proxies[:, 0].tolist() == list(range(2, 12))
    assert kept.groups.tolist() == list(range(10))


def test_a_proxy_that_looks_at_n_loses_the_same_columns() -> None:
    proxies = np.arange(36.0).reshape(12, 3) / 10
    sample = Sample.from_tuples(twelve(proxies)).take_columns([2])
    assert sample.looks_at_n
    assert sample.proxies[:, 0].tolist() == proxies[:, 2].tolist()


def test_too_few_moments_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 10 moments, got 6: collect more"):
        Sample.from_tuples(twelve(), moments=np.arange(12) % 2 == 0)
