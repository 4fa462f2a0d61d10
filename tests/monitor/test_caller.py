"""A team's calls: held to a budget, long enough, none twice, and some at random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from helpers.margins import margins, scores
from hypothesis import given, settings
from hypothesis import strategies as st

import safemargin as sm
from safemargin.core.budget import Budget
from safemargin.errors import InvalidInput
from safemargin.monitor.calls import LOOK
from safemargin.monitor.threshold import HIGHEST, LOWEST, Window

Draw = Callable[[float], np.ndarray]
"""The proxy of each agent at a time, [agents]; margins are 0."""


@dataclass
class Team:
    """A caller whose agents decide `rate` times a second, and the calls that it made."""

    caller: sm.Caller
    agents: int = 12
    rate: float = 3.0
    now: float = 0.0
    begun: list[tuple[float, int, str]] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    decisions: int = 0
    called: int = 0
    _open: dict[int, float] = field(default_factory=dict)

    def run(self, hours: float, draw: Draw, **more: Any) -> Team:
        for _ in range(round(hours * 3600 * self.rate)):
            self.now += 1 / self.rate
            for agent, proxy in enumerate(draw(self.now)):
                call = self.caller.see(agent, self.now, 0, float(proxy), **more)
                self.decisions += 1
                self.called += call.on
                if call.began:
                    self.begun.append((self.now, agent, call.cause))
                    self._open[agent] = self.now
                elif agent in self._open and not call.on:
                    self.lengths.append(self.now - self._open.pop(agent))
        return self

    def between(self, first: float, last: float) -> int:
        """Calls that began between two hours."""
        return sum(3600 * first <= when < 3600 * last for when, _, _ in self.begun)


def wandering(agents: int = 12, seed: int = 0) -> Draw:
    """Proxies that stay high or low for about three seconds, and are normal over time."""
    rng, state = np.random.default_rng(seed), np.zeros(agents)

    def draw(now: float) -> np.ndarray:
        state[:] = 0.9 * state + rng.normal(size=agents) * np.sqrt(1 - 0.81)
        return state

    return draw


def test_a_team_makes_the_calls_of_its_budget() -> None:
    """Four hours at 30/hour: 120 calls; the bank keeps the number within 10 of what it allows."""
    team = Team(sm.Caller("30/hour", seed=1)).run(4, wandering())
    assert abs(len(team.begun) - 120) <= 10
    for hour in range(4):
        assert abs(team.between(hour, hour + 1) - 30) <= 11
    assert min(team.lengths) >= 3
    looks = Counter(cause for _, _, cause in team.begun)["look"]
    assert abs(looks - 12) <= 1  # one in each tenth of an hour
    assert len({agent for _, agent, _ in team.begun}) == 12


def test_the_most_urgent_decisions_call() -> None:
    """Calls begin at proxies that few slots of an agent reach."""
    draw, seen = wandering(seed=3), []
    team = Team(sm.Caller("30/hour", seed=1, looks=0))

    def watched(now: float) -> np.ndarray:
        seen.append(draw(now).copy())
        return seen[-1]

    team.run(3, watched)
    values = np.array(seen)
    at = [values[round(when * team.rate) - 1, agent] for when, agent, _ in team.begun]
    # 85 calls in 12 × 32,400 decisions: the highest 0.3 % of them if each lasts four seconds.
    assert np.mean(np.array(at) > np.quantile(values, 0.98)) > 0.9


def test_the_threshold_follows_a_shift() -> None:
    for shift in (100.0, -100.0):
        draw = wandering(seed=4)
        team = Team(sm.Caller("40/hour", seed=2))
        team.run(4, lambda now, draw=draw, shift=shift: draw(now) + shift * (now > 7200))
        assert abs(team.between(0, 2) - 80) <= 15
        assert abs(team.between(2, 4) - 80) <= 15
        assert min(team.lengths) >= 3


def test_another_scale_changes_nothing() -> None:
    begun = []
    for scale in (1.0, 1e6):
        draw = wandering(seed=5)
        team = Team(sm.Caller("40/hour", seed=2))
        team.run(0.5, lambda now, draw=draw, scale=scale: scale * draw(now))
        begun.append(team.begun)
    assert begun[0] == begun[1]


def test_equal_proxies_call_by_lot() -> None:
    team = Team(sm.Caller("40/hour", seed=3)).run(3, lambda now: np.ones(12))
    assert abs(len(team.begun) - 120) <= 12
    counts = Counter(agent for _, agent, _ in team.begun)
    assert len(counts) == 12
    assert max(counts.values()) <= 24  # of 120 for 12 agents: 10 expected, ± 3 each
    assert min(team.lengths) >= 3
    assert np.mean(team.lengths) < 15


def test_a_noisy_agent_gets_no_more_than_its_share() -> None:
    rng, draw = np.random.default_rng(0), wandering(seed=6)

    def noisy(now: float) -> np.ndarray:
        values = draw(now).copy()
        values[7] += 50 * rng.normal()
        return values

    team = Team(sm.Caller("40/hour", seed=3)).run(3, noisy)
    counts = Counter(agent for _, agent, cause in team.begun if cause == "margin")
    assert abs(len(team.begun) - 120) <= 15
    assert counts[7] <= 0.5 * 36 * 3 + 5  # half of the calls, and what it could save up
    assert sum(counts.values()) - counts[7] >= 40


def test_nothing_known_is_most_urgent() -> None:
    draw = wandering(seed=7)
    team = Team(sm.Caller("20/hour", seed=0, looks=0)).run(1, draw)
    before = len(team.begun)

    def broken(now: float) -> np.ndarray:
        values = draw(now).copy()
        values[4] = np.nan
        return values

    team.run(0.2, broken)
    assert (4, "margin") in {(agent, cause) for _, agent, cause in team.begun[before:]}


def test_a_pause_saves_up_nothing() -> None:
    draw = wandering(seed=8)
    team = Team(sm.Caller("40/hour", seed=3)).run(1, draw)
    before = len(team.begun)
    team.now += 48 * 3600  # nobody decides for two days
    team.run(0.25, draw)
    assert len(team.begun) - before <= 10 + 10  # what the bank may hold and what comes in


def test_a_restart_spends_what_was_spent() -> None:
    draw = wandering(seed=9)
    team = Team(sm.Caller("20/hour", seed=3)).run(1, draw)
    paid = [when for when, _, cause in team.begun if cause != "look"]
    again = sm.Caller("20/hour", seed=4)
    again.restore(paid, team.now)
    assert again._bank is not None
    assert team.caller._bank is not None
    assert again._bank.saved == pytest.approx(team.caller._bank.saved, abs=0.05)
    spent = sm.Caller("20/hour", seed=4)
    spent.restore([10.0, 11.0, 12.0], 13.0)  # more than half of what can be saved, just now
    late = Team(spent).run(0.02, draw)
    assert not [call for call in late.begun if call[2] != "look"]


@pytest.mark.parametrize("unit", ["hour", "share"])
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scales=st.lists(st.sampled_from([0.0, 1.0, 30.0]), min_size=2, max_size=6),
    amount=st.sampled_from([20, 60, 200]),
)
def test_no_agents_exceed_the_budget(
    unit: str, seed: int, scales: list[float], amount: int
) -> None:
    """Whatever agents do, in any stretch there are at most the budgeted calls and the bank's."""
    budget = f"{amount}/hour" if unit == "hour" else amount / 5000
    rng, team = np.random.default_rng(seed), Team(sm.Caller(budget, seed=seed), len(scales))
    level = np.zeros(len(scales))

    def draw(now: float) -> np.ndarray:
        if rng.random() < 0.001:
            level[:] = rng.normal(size=len(scales)) * 20
        return level + rng.normal(size=len(scales)) * scales

    hours = 0.5
    team.run(hours, draw)
    if unit == "hour":
        own = [when for when, _, cause in team.begun if cause != "look"]
        for first in range(len(own)):
            for last in range(first, len(own)):
                allowed = 10 + 0.9 * amount * (own[last] - own[first]) / 3600 + 1
                assert last - first + 1 <= allowed
        assert len(team.begun) - len(own) <= 0.1 * amount * hours + 1
    else:
        saved = 10 * 3600 * 0.02 * team.rate
        assert team.called <= float(budget) * team.decisions + saved
    assert all(length >= 3 - 1e-6 for length in team.lengths)


def test_a_share_of_decisions_is_kept() -> None:
    team = Team(sm.Caller(0.02, seed=3)).run(3, wandering(seed=10))
    assert team.called / team.decisions == pytest.approx(0.02, rel=0.15)
    assert min(team.lengths) >= 3


def steps(caller: sm.Caller, wanted: str, **more: Any) -> Iterator[str]:
    """A second for each character: "x" where a monitor calls."""
    for second, each in enumerate(wanted):
        call = caller.see("a", float(second), 4, 1.0, wanted=each == "x", **more)
        yield "^" if call.began else "#" if call.on else "."


def test_without_a_budget_calls_are_longer_and_near_ones_are_one() -> None:
    caller = sm.Caller(length=3, gap=2)
    assert "".join(steps(caller, "..x.......x...x.x......")) == "..^##.....^##.^###....."[:23]


def test_an_acknowledged_look_ends_but_not_too_soon() -> None:
    caller = sm.Caller("3600/hour", looks="3599/hour", length=3, gap=1, seed=0)
    begun = None
    for second in range(60):
        call = caller.see(0, float(second), 4, 0.0)
        if call.began and begun is None:
            assert (call.cause, call.why) == ("look", "a random look: no margin asks for it")
            begun = second
            caller.acknowledge(0)
        elif begun is not None and not call.on:
            assert second - begun == 3
            break
    else:
        pytest.fail("no look began and ended")
    lonely = sm.Caller("3600/hour", looks="3599/hour", length=3, gap=1, seed=0)
    on = [lonely.see(0, float(second), 4, 0.0).on for second in range(60)]
    first = on.index(True)
    assert on[first : first + int(LOOK)] == [True] * int(LOOK)


def test_quiet_agents_begin_no_call_and_are_not_looked_at() -> None:
    team = Team(sm.Caller("60/hour", seed=1), 3).run(0.3, wandering(3), quiet=True)
    assert not team.begun
    team.run(0.2, wandering(3))
    assert team.begun


def test_one_that_leaves_calls_no_longer() -> None:
    caller = sm.Caller()
    assert caller.see("a", 0.0, 0, 1.0, wanted=True).began
    caller.leave("a")
    assert not caller.see("a", 1.0, 4, 1.0).on
    assert caller.see("a", 2.0, 0, 1.0, wanted=True).began
    assert not caller.end_episode("a")  # it has not lasted three seconds
    assert caller.see("a", 6.0, 0, 1.0, wanted=True).on
    assert caller.end_episode("a")
    caller.leave("nobody")


def test_beside_a_monitor() -> None:
    monitor, caller = sm.Monitor(margins(), tolerance=1.0), sm.Caller(length=2, gap=1)
    found = [caller.step(monitor.step(scores(proxy)), now) for now, proxy in enumerate([0.0, 9, 0])]
    assert [(call.on, call.began) for call in found] == [
        (False, False),
        (True, True),
        (True, False),
    ]
    team, many = sm.Caller(), sm.Monitor(margins(), tolerance=1.0)
    calls = team.step(many.step(np.array([scores(9.0), scores(0.0)])), 0.0, rewards=[None, 1.0])
    assert [call.began for call in calls] == [True, False]
    with pytest.raises(InvalidInput, match="a value for each of 2 agents, got 3"):
        team.step(many.step(np.array([scores(9.0), scores(0.0)])), 1.0, rewards=[1, 2, 3])


def test_an_overseer_is_asked_during_the_callers_calls() -> None:
    from helpers.margins import own_margins
    from helpers.worlds import TableWorld, always_first, chain

    clock = iter(range(100))
    monitor = sm.Monitor(own_margins(), tolerance=1.0, call_at=1)
    env = sm.Overseen(
        TableWorld(chain(6)), always_first, monitor, lambda *_: None, caller=sm.Caller(),
        clock=lambda: float(next(clock)),
    )  # fmt: skip
    env.reset(seed=0)
    infos = [env.step()[4]["oversight"] for _ in range(6)]
    assert [info["asked"] for info in infos] == [False, False, True, True, True, True]
    assert [info["began"] for info in infos] == [False, False, True, False, False, False]


def test_windows_count_from_the_top() -> None:
    window = Window(4)
    assert window.level(0.0, 1.0, 1.0) == HIGHEST  # too early
    for now, value in enumerate([5.0, 3.0, 9.0, 1.0]):
        window.add(float(now), (0.0, value, 0.0))
    assert window.level(3.0, 1.0, 1.0) == (0.0, 3.0, 0.0)  # exceeded or met three times in 3 s
    assert window.level(3.0, 1.0, 0.3) == (0.0, 9.0, 0.0)
    assert window.level(3.0, 1.0, 4.0) == LOWEST
    assert window.level(5.5, 1.0, 0.5) == (0.0, 1.0, 0.0)  # 5 and 3 are forgotten
    assert len(window) == 2


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [("0.05", 0.05, "share"), (0.05, 0.05, "share"), ("20/hour", 20, "hour"), (1, 1, "share"),
     ("2.5 / hour", 2.5, "hour"), ("20 per hour", 20, "hour")],
)  # fmt: skip
def test_one_parser_for_all_budgets(text: Any, amount: float, unit: str) -> None:
    budget = Budget.parse(text)
    assert (budget.amount, budget.unit) == (amount, unit)
    assert Budget.parse(str(budget)) == budget == Budget.parse(budget)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "20/day"}, r"the budget must be like 0.05 \(a share of decisions\) or 20/hour"),
        ({"budget": "nan"}, "the budget must be like"),
        ({"budget": "-1/hour"}, "the budget must be like"),
        ({"budget": True}, "the budget must be like"),
        ({"budget": 20}, "got 20, which is above 1; 20 calls an hour are 20/hour"),
        ({"budget": 0}, "the budget must be above 0, or None for calls without one"),
        ({"budget": "1/hour", "looks": "2/hour"}, "1/hour cannot be kept: random looks alone take"),
        ({"budget": "1/hour", "looks": 0.1}, r"looks \(0.1\) must have the unit of the budget"),
        ({"looks": "1/hour"}, "random looks are a part of a budget; give one, like 20/hour"),
        ({"length": -1}, "length and gap must be at least 0 s, got -1 and 2.0"),
    ],
)
def test_budgets_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        sm.Caller(**options)


def test_a_budget_that_so_few_agents_cannot_spend() -> None:
    sm.Caller("700/hour").check(1)
    with pytest.raises(InvalidInput, match="1 agents make at most 720 an hour; lower the budget"):
        sm.Caller("800/hour").check(1)
    sm.Caller("800/hour").check(2)
    sm.Caller(0.5).check(1)
