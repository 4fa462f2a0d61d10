"""What pages and commands start with where nobody chose."""

from __future__ import annotations

import pytest

from safemargin.validation.defaults import default_confidence


@pytest.mark.parametrize(
    ("natural", "confidence"),
    [(0, 0.5), (2, 0.5), (8, 0.8), (17, 0.8), (18, 0.9), (37, 0.9), (38, 0.95), (10_000, 0.95)],
)
def test_the_number_of_natural_moments_alone_chooses_the_confidence(
    natural: int, confidence: float
) -> None:
    assert default_confidence(natural) == confidence
