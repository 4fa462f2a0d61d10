"""The colours of the pages: what people must tell apart contrasts as WCAG AA asks."""

from __future__ import annotations

import re

import pytest
from helpers.contrast import contrast

from safemargin.web.pages import page

LIGHT, DARK = re.findall(r":root \{(.*?)\}", page("style.css"), re.DOTALL)
THEMES = {
    name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    for name, block in (("light", LIGHT), ("dark", DARK))
}


def test_the_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", ["card", "back"])
@pytest.mark.parametrize(
    ("colour", "least"),
    [("ink", 4.5), ("quiet", 4.5), ("edge", 3), ("high", 3), ("low", 3), ("accent", 3)],
)
def test_colours_contrast_with_their_ground(
    theme: str, ground: str, colour: str, least: float
) -> None:
    assert contrast(THEMES[theme][colour], THEMES[theme][ground]) >= least


@pytest.mark.parametrize("theme", THEMES)
def test_text_on_grey_can_be_read(theme: str) -> None:
    assert contrast(THEMES[theme]["ink"], THEMES[theme]["nothing"]) >= 4.5
