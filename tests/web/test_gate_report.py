"""The page of a gate and that of a training: self-contained, and with what was found in it."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.roads import Walker, study

from safemargin.study.gating import compared
from safemargin.study.tracing import Evolution, Known, Stage
from safemargin.web.evolution import evolution_page
from safemargin.web.gate_report import gate_page
from safemargin.web.pages import page as page_file


@pytest.fixture(scope="module")
def page() -> str:
    old = study(Walker(), 0, natural=40, spread=10)
    new = replace(
        study(Walker(exposure=2.0), 0, natural=40, spread=10),
        policy={"description": "<b>new</b>", "identity": "sha256:new", "kind": "logits"},
    )
    return gate_page(*compared(new, old, tolerances=[0.2], worst=0.25))


def self_contained(text: str) -> None:
    """It loads nothing, runs nothing, and its pictures are well-formed."""
    assert not re.search(r"<script|<link|<img|src=|url\(|@import|https?://", text)
    pictures = re.findall(r"<svg.*?</svg>", text, re.S)
    assert pictures
    for picture in pictures:
        ElementTree.fromstring(picture)
        assert "nan" not in picture
        assert "inf" not in picture


def test_the_page_needs_nothing_else(page: str) -> None:
    self_contained(page)


def test_it_shows_every_check_with_its_verdict(page: str) -> None:
    assert '<span class="outcome bad">worse</span>' in page
    for name in ("return", "affordable actions at tolerance 0.2", "drift of the proxy"):
        assert f"<tr><td>{name} " in page


def test_its_styles_are_its_own() -> None:
    """A class that another sheet of the page has styled would look like that, too."""
    ours, others = (
        {name for sheet in sheets for name in re.findall(r"\.([a-z]+)[^{}]*{", page_file(sheet))}
        for sheets in (["gate.css"], ["style.css", "report.css"])
    )
    assert "outcome" in ours
    assert ours & others == set()


def test_names_are_no_markup(page: str) -> None:
    assert "<b>new</b>" not in page
    assert "&lt;b&gt;new&lt;/b&gt;" in page


def test_distributions_of_agents_that_never_vary_are_drawn() -> None:
    same = study(Walker(), 0, natural=40, spread=10)
    flat = replace(same, returns=np.zeros(40), losses=np.zeros((50, 4)))
    self_contained(gate_page(*compared(flat, flat, tolerances=[0.2])))


def stage(name: str, mean: float) -> Stage:
    known = Known(mean, mean - 1, mean + 1)
    each = (known, known)
    return Stage(name, f"runs/{name}", 40, known, each, each, each, (1.0, 2.0), "q_range", known)


def test_the_page_of_a_training_names_every_checkpoint() -> None:
    stages = tuple(stage(f"step<{number}>", float(number)) for number in range(9))
    found = Evolution("road", (1, 2), (0.5, 1.0), 2, 0.9, 0, stages)
    text = evolution_page(found)
    self_contained(text)
    for each in stages:
        assert f"<tr><td>{each.name.replace('<', '&lt;').replace('>', '&gt;')}</td>" in text
    assert text.count("<svg") == 6
    assert text.count('text-anchor="end">step&lt;8&gt;<') == 6  # not cut off at the right end
    assert "step<" not in text
