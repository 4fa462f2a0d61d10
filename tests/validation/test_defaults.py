"""What pages and commands start with where nobody chose."""

from __future__ import annotations

import math

import numpy as np
import pytest

from safemargin.margins.bounds.table import Bound
from safemargin.margins.lookup import Margins
from safemargin.margins.natural_proxies import summarise
from safemargin.validation.defaults import default_confidence, default_tolerance, median_proxy


@pytest.mark.parametrize(
    ("natural", "confidence"),
    [(0, 0.5), (2, 0.5), (8, 0.8), (17, 0.8), (18, 0.9), (37, 0.9), (38, 0.95), (10_000, 0.95)],
)
def test_the_number_of_natural_moments_alone_chooses_the_confidence(
    natural: int, confidence: float
) -> None:
    assert default_confidence(natural) == confidence


def at_one_proxy(upper: list[float]) -> Margins:
    """Margins with these bounds for n = 1, 2, 4, … at every proxy."""
    n_values = tuple(2**power for power in range(len(upper)))
    bound = Bound(
        n_values=n_values,
        grid=np.array([[0.0, 1.0]] * len(upper)),
        upper=np.array([[each, each] for each in upper]),
        confidence=0.9,
        method="paper",
    )
    return Margins(bound)


@pytest.mark.parametrize(
    ("upper", "tolerance"),
    [
        ([1.0, 8.8, 9.0], 5.0),  # margin 1 from 1 to 8.8: nowhere near an edge
        ([0.0, 0.16, 1.21, 1.47], 0.7),
        ([-1.0, 4.0, 4.5], 2.0),
        ([2.0, 1.0, 6.0], 4.0),  # no n counts before the smaller ones
        ([12.6, 17.9], 15.0),
        ([1.0, math.inf], 1.5),
        ([3.0, 3.0, 3.0], 4.0),  # no plateau in between: all is affordable from 3
        ([0.0, 0.0], 1.0),
        ([math.inf, math.inf], 1.0),
    ],
)
def test_the_default_tolerance_lies_in_the_middle_of_a_plateau(
    upper: list[float], tolerance: float
) -> None:
    margins = at_one_proxy(upper)
    assert default_tolerance(margins) == tolerance
    for nearby in (0.93, 1.07):
        assert margins(0.5, nearby * tolerance) == margins(0.5, tolerance)


def test_the_plateau_is_that_of_the_median_natural_proxy() -> None:
    upper = np.array([[0.0, 0.0, 4.0], [1.0, 10.0, 20.0]])
    bound = Bound(
        n_values=(1, 2),
        grid=np.array([[0.0, 1.0, 2.0]] * 2),
        upper=upper,
        confidence=0.9,
        method="paper",
    )
    for proxy, tolerance in ((0.0, 0.5), (1.0, 5.0), (2.0, 10.0)):
        margins = Margins(bound, natural_proxies=summarise([proxy] * 9))
        assert median_proxy(margins) == proxy
        assert default_tolerance(margins) == tolerance
    assert median_proxy(Margins(bound)) is None
    assert default_tolerance(None) == 1.0
