"""What a team's calls will take, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.margins import margins, scores

import safemargin as sm
from safemargin.margins.natural_proxies import summarise
from safemargin.monitor import Caller
from safemargin.monitor.decisions import Decision
from safemargin.monitor.forecast import forecast_budget, forecast_margins, forecast_rehearsal


def test_a_budget_of_calls_takes_this_much_time() -> None:
    found = forecast_budget(Caller("20/hour"), 12)
    assert found.calls == 20
    assert found.length == pytest.approx(0.9 * 3 + 0.1 * 10)  # a tenth of them are random looks
    assert found.attention == pytest.approx(20 * 3.7 / 3600)
    assert found.at_least
    assert not found.floods
    assert found.text.startswith(
        "expect about 20 calls an hour of 3.7 s, at least 2.06 % of one person's time"
    )
    assert forecast_budget(Caller("61/hour"), 12).floods


def test_a_share_of_decisions_is_that_share_of_every_agents_time() -> None:
    found = forecast_budget(Caller(0.05), 12)
    assert (found.calls, found.length) == (None, None)
    assert found.attention == pytest.approx(0.6)
    assert found.floods
    assert found.text == (
        "expect calls during 60 % of one person's time (the budget of 0.05 for 12 agents)"
    )
    assert not forecast_budget(Caller(0.05), 4).floods
    assert "2.5 agents call at any moment" in forecast_budget(Caller(0.05), 50).text


def play_of(*called: bool) -> list[Decision]:
    """Return one agent's verdicts, as a monitor gives them."""
    monitor = sm.Monitor(margins(), tolerance=1.0, call_at=1)
    return [monitor.step(scores(3.0 if call else 0.0)) for call in called]


def test_a_rehearsal_counts_calls_as_people_will_get_them() -> None:
    """At 1 decision a second: two calls of a monitor, two seconds apart, are one of 3 + 2 s."""
    play = play_of(True, False, True, *[False] * 7)
    assert [each.call for each in play[:4]] == [True, False, True, False]
    found = forecast_rehearsal([play], Caller(), 12, 1.0)
    assert found.calls == pytest.approx(12 * 1 / 10 * 3600)
    assert found.floods
    assert "10 decisions rehearsed by one agent" in found.text
    calm = forecast_rehearsal([play_of(*[False] * 10)], Caller(), 12, 1.0)
    assert (calm.calls, calm.length, calm.attention) == (0, None, 0)
    assert not calm.floods


def test_margins_say_how_often_their_own_agent_was_low() -> None:
    natural = summarise(np.repeat([0.0, 1.0, 2.0, 3.0], 10))
    found = forecast_margins(margins(natural_proxies=natural), 1.0, 2, 12)
    assert found is not None
    assert found.attention == pytest.approx(12 * 0.5)  # margins 4, 2, 1 and 0: two of four are low
    assert "20 of 40 natural decisions behind the margins lie below margin 2" in found.basis
    assert found.floods
    assert forecast_margins(margins(), 1.0, 2, 12) is None
