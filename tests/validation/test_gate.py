"""The gate between checkpoints, on a road whose truth is known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.roads import Walker, study

from safemargin.errors import GateClosed, InvalidInput, StudyMismatch
from safemargin.study.gating import gate
from safemargin.validation import GateResult
from safemargin.validation.baseline import Baseline
from safemargin.validation.gate_files import (
    failed_junit,
    failed_markdown,
    junit,
    markdown,
    more_text,
)

OLD = Walker()
TOLERANCE = 0.2
GATE: dict[str, Any] = {"tolerances": [TOLERANCE], "matters": {"return": 0.2}}


def checks(result: GateResult) -> dict[str, str | None]:
    return {check.kind: check.verdict for check in result.checks}


@pytest.fixture(scope="module")
def old() -> Baseline:
    return study(OLD, 0, natural=150)


@pytest.fixture(scope="module")
def healthy(old: Baseline) -> GateResult:
    """An agent that slips a little less, on the same roads."""
    return gate(study(Walker(slips=0.015), 0, natural=150), old, **GATE)


@pytest.fixture(scope="module")
def damaged(old: Baseline) -> GateResult:
    return gate(study(Walker(exposure=2.0), 0, natural=150), old, **GATE)


def test_a_healthy_checkpoint_passes(healthy: GateResult) -> None:
    assert healthy.paired
    assert healthy.verdict == "passed"
    assert set(checks(healthy).values()) <= {"better", "no difference", "no worse", None}
    assert healthy.sentence == "passed: no check found a deterioration that matters"
    assert healthy.more_moments is None
    assert healthy.check() is healthy


def test_a_damaged_checkpoint_is_found(damaged: GateResult) -> None:
    assert damaged.verdict == "worse"
    found = checks(damaged)
    assert (found["affordable"], found["worst"]) == ("worse", "worse")
    with pytest.raises(GateClosed, match="exposure=2.0.* beside .*: worse: .*affordable actions"):
        damaged.check()
    with pytest.raises(AssertionError):  # so that a test fails, and does not err
        damaged.check(undecided=True)


def test_intervals_hold_the_truth(damaged: GateResult) -> None:
    check = next(each for each in damaged.checks if each.kind == "affordable")
    truth = Walker(exposure=2.0).mean_affordable(TOLERANCE) - OLD.mean_affordable(TOLERANCE)
    assert check.low < truth < check.high < 0


def test_every_check_of_the_paper_trail_is_there(healthy: GateResult) -> None:
    assert [check.kind for check in healthy.checks] == [
        *("return", "affordable", "critical", "called", "worst", "margins", "drift")
    ]
    told = {check.kind for check in healthy.checks if not check.judged}
    assert told == {"called", "drift"}  # until somebody says what matters


def test_whoever_says_what_matters_has_it_judged(old: Baseline) -> None:
    new = replace(study(OLD, 0, natural=150), proxies=old.proxies + 3)
    result = gate(new, old, tolerances=[TOLERANCE], matters={"drift": 0.3, "called": "50%"})
    found = {check.kind: check for check in result.checks}
    assert found["drift"].verdict == "worse"
    assert found["drift"].change > 0.9
    assert found["called"].verdict is not None
    assert found["drift"].said
    assert not found["worst"].said


def test_all_judged_checks_share_one_error_rate(old: Baseline) -> None:
    """With a drift that is judged, too, every other interval is wider."""
    new = study(OLD, 0, natural=150)
    few = gate(new, old, **GATE)
    many = gate(new, old, tolerances=[TOLERANCE, 0.5], matters={"return": 0.2, "drift": 0.3})
    width = [result.checks[0].high - result.checks[0].low for result in (few, many)]
    assert width[0] < width[1]


def test_pairing_shows_what_other_starts_hide(old: Baseline) -> None:
    new = Walker(exposure=1.3)
    paired = gate(study(new, 0, natural=150), old, **GATE)
    other = gate(study(new, 1, natural=150), old, **GATE)
    assert (paired.paired, other.paired) == (True, False)
    assert checks(paired)["affordable"] == "worse"
    assert checks(other)["affordable"] == "cannot tell"
    assert "with the same seed, both agents meet the same starts" in " ".join(other.notes)


def test_it_says_how_many_more_moments_would_decide(old: Baseline) -> None:
    result = gate(study(Walker(exposure=1.1), 2, natural=150), old, **GATE)
    assert result.verdict == "cannot tell"
    undecided = [check for check in result.checks if check.verdict == "cannot tell"]
    assert result.more_moments == max(check.needed or 0 for check in undecided) - 150
    assert f"about {result.more_moments:,} more natural moments of each" in result.sentence
    with pytest.raises(GateClosed, match="cannot tell yet"):
        result.check()
    assert result.check(undecided=True) is result


def test_too_few_moments_for_the_worst_percent_are_no_verdict() -> None:
    new, before = (study(OLD, 0, natural=60) for _ in range(2))
    check = {each.kind: each for each in gate(new, before, **GATE).checks}["worst"]
    assert (check.verdict, check.needed, check.power) == ("cannot tell", 100, 0.0)
    assert check.note == "it takes 100 natural moments, there are 60"


def test_a_share_of_nothing_asks_for_a_number() -> None:
    safe = replace(study(OLD, 0), returns=np.zeros(100))
    new = replace(safe, returns=np.where(np.arange(100) % 2 == 0, 0.1, -0.1))
    check = gate(new, safe, tolerances=[TOLERANCE]).checks[0]
    assert (check.kind, check.verdict) == ("return", "cannot tell")
    assert check.note == (
        "5% of 0 is 0, so that any change counts: name a number, --matters return=…"
    )
    fallen = replace(safe, returns=np.where(np.arange(100) % 2 == 0, 0.0, -0.1))
    worse = gate(fallen, safe, tolerances=[TOLERANCE]).checks[0]
    assert (worse.verdict, worse.note) == ("worse", check.note)
    assert more_text(worse) == check.note
    said = gate(new, safe, tolerances=[TOLERANCE], matters={"return": 0.5}).checks[0]
    assert said.verdict == "no difference"


def test_returns_that_cancel_one_another_have_the_scale_of_their_size() -> None:
    """Games are won by 10 or lost by 10: 5 % of their mean would be next to nothing."""
    won = np.where(np.arange(100) % 2 == 0, 10.0, -10.0)
    new, before = (replace(study(OLD, 0), returns=won) for _ in range(2))
    assert gate(new, before, tolerances=[TOLERANCE]).checks[0].matters == pytest.approx(0.5)


def test_the_same_agent_on_both_sides_is_noted(old: Baseline) -> None:
    result = gate(old, old, **GATE)
    assert "the same agent on both sides: equal policy hashes" in result.notes
    assert all(check.change == 0 for check in result.checks if check.kind != "margins")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"environment": {"name": "sea", "identity": "sha256:sea"}},
            "measured in another environment .sea, sha256:sea.* than runs/0 .road",
        ),
        (
            {"settings": {"gamma": 0.8, "n_values": [1, 2, 4, 8], "trials": 16, "seed": 0}},
            "other settings than runs/0 .gamma: 0.8, not 0.9.*; only the seed may differ",
        ),
        (
            {"versions": {"safemargin": "0.1.0", "gymnasium": "1.0"}},
            "other versions than runs/0 .gymnasium 1.0, not none.*--other-versions",
        ),
        (
            {"proxies": np.zeros((150, 4))},
            "looks at n in only one of runs/0 and runs/0; name another with --proxy",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(change: dict[str, Any], text: str) -> None:
    before = study(OLD, 0)
    with pytest.raises(StudyMismatch, match=text):
        gate(replace(before, **change), before, **GATE)


def test_other_versions_may_be_compared_all_the_same(old: Baseline) -> None:
    new = replace(old, versions={"safemargin": "0.1.0", "gymnasium": "1.0"})
    result = gate(new, old, other_versions=True, **GATE)
    assert "other versions: gymnasium 1.0, not none" in result.notes
    # Libraries that neither measure nor behave are only noted.
    small = replace(old, versions={"safemargin": "0.1.0", "rich": "14"})
    assert "other versions: rich 14, not none" in gate(small, old, **GATE).notes


def test_a_handful_of_games_is_refused(old: Baseline) -> None:
    with pytest.raises(InvalidInput, match="a gate needs 10 natural moments .* runs/0 has 9"):
        gate(study(OLD, 0, natural=9), old, **GATE)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tolerances": [-1]}, "the tolerance must be at least 0, got -1"),
        ({"tolerances": [float("nan")]}, "the tolerance must be at least 0, got nan"),
        ({"worst": 0}, "worst must lie above 0 and be at most 0.5, got 0"),
        ({"error_rate": 0.7}, "error_rate must lie above 0 and be at most 0.5, got 0.7"),
        ({"call_at": 0}, "call_at must be at least 1, got 0"),
        ({"call_at": 99}, "call_at must be at most 8, the largest n that was measured, got 99"),
        ({"confidence": 1.5}, "confidence must"),
        ({"matters": {"retrun": 1}}, "no check 'retrun' .*did you mean 'return'"),
        ({"matters": {"return": "much"}}, "a number of at least 0 or a share like 5%, got 'much'"),
        ({"matters": {"return": -1}}, "a number of at least 0 or a share like 5%, got -1"),
        ({"tolerance": [1]}, "gate has no option 'tolerance'; did you mean 'tolerances'"),
    ],
)
def test_wrong_options_are_refused(old: Baseline, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        gate(old, old, **options)


# -- what continuous integration reads --------------------------------------------------------


def test_junit_has_one_case_a_check(damaged: GateResult) -> None:
    suite = ElementTree.fromstring(junit(damaged).encode())[0]
    cases = {case.get("name"): case for case in suite}
    assert list(cases) == [check.name for check in damaged.checks]
    for check in damaged.checks:
        children = {child.tag for child in cases[check.name]}
        assert ("failure" in children) == (check.verdict == "worse")
        assert ("skipped" in children) == (check.verdict in ("cannot tell", None))
    assert suite.get("tests") == "7"
    worse = sum(check.verdict == "worse" for check in damaged.checks)
    assert (suite.get("failures"), suite.get("errors")) == (str(worse), "0")


def test_junit_of_a_failed_comparison_is_an_error() -> None:
    suite = ElementTree.fromstring(failed_junit("no <study> there").encode())[0]
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    assert suite[0][0].get("message") == "no <study> there"


def test_the_summary_has_a_row_and_a_line_of_the_picture_for_each_check(
    damaged: GateResult,
) -> None:
    text = markdown(damaged)
    assert text.startswith("## safemargin gate: ❌ worse")
    picture = text.partition("```text\n")[2].partition("```")[0]
    for check in damaged.checks:
        assert (check.name in picture) == check.judged
        assert f"| {check.name} |" in text
    line = next(each for each in picture.splitlines() if each.startswith("affordable"))
    drawn = line.partition("  ")[2]
    assert drawn.index("●") < drawn.index("│")  # left of 0: worse
    assert "├" in drawn
    assert "┤" in drawn


def test_the_summary_of_a_failed_comparison_is_no_markup() -> None:
    assert failed_markdown("a | b\n<script>") == (
        "## safemargin gate: ⚠️ nothing was compared\n\na \\| b &lt;script>\n"
    )


def test_everything_is_json(damaged: GateResult) -> None:
    found = json.loads(json.dumps(damaged.to_dict()))
    assert found["verdict"] == "worse"
    assert found["checks"][0]["kind"] == "return"
