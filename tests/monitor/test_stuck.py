"""Agents without progress: in circles, or without a reward for unusually long."""

from __future__ import annotations

import pytest

import safemargin as sm
from safemargin.errors import InvalidInput
from safemargin.monitor import Stuck


def first(stuck: Stuck, rewards: list[float], states: list[object], agent: int = 0) -> int | None:
    """The first decision, one a second, at which the agent is stuck."""
    for second, (reward, state) in enumerate(zip(rewards, states, strict=True)):
        if stuck.see(agent, float(second), reward, state):
            return second
    return None


def test_going_round_in_circles() -> None:
    states = [f"on the way {each}" for each in range(50)] + [each % 3 for each in range(60)]
    # From second 50 on, three states repeat. Of the 31 up to second 80, only those were new.
    found = first(Stuck(patience=30), [0.0] * 110, states)
    assert found == 80
    assert first(Stuck(patience=30), [0.0] * 110, list(range(110))) is None


def test_a_reward_is_progress_and_a_penalty_is_none() -> None:
    states = [each % 3 for each in range(200)]
    assert first(Stuck(patience=30), [1.0 if each % 20 == 0 else 0.0 for each in range(200)],
                 list(states)) is None  # fmt: skip
    assert first(Stuck(patience=30), [-1.0] * 200, list(states)) == 30


def test_a_drought_is_judged_by_the_teams_longest() -> None:
    stuck = Stuck(drought=60)
    nothing = list(range(1000))
    assert first(stuck, [0.0] * 1000, nothing) is None  # nobody has ever earned anything
    rewards = [0.0] * 40 + [1.0] + [0.0] * 200
    stuck = Stuck(drought=60)
    assert first(stuck, rewards, nothing[:241], agent=1) == 40 + 120  # three times 40 s
    why = stuck.see(1, 300.0, 0.0, 5000)
    assert why == "no reward for 260 s; the longest drought that ended with one took 40 s"
    stuck.forget(1)
    assert not stuck.see(1, 301.0, 0.0, 0)
    assert not stuck.see(1, 400.0, None, 0)  # the reward is not known


def test_a_stuck_agent_calls_once_until_it_is_free() -> None:
    for budget in (None, "60/hour"):
        caller = sm.Caller(budget, stuck=Stuck(patience=30))
        causes = []
        for second in range(400):
            state = second % 3 if second < 200 or second > 300 else second
            call = caller.see(0, float(second), 4, 1.0, reward=0.0, state=state)
            if call.began and call.cause == "stuck":
                causes.append(second)
                assert "it goes round in circles" in call.why
            if second == 100:
                caller.acknowledge(0)
                assert call.on
            if second == 110 and budget is None:
                assert not call.on
        assert len(causes) == 2
        assert causes[0] >= 30
        assert causes[1] > 300


def test_bad_patience() -> None:
    with pytest.raises(InvalidInput, match="patience and drought must be above 0 s, got 0 and 60"):
        Stuck(patience=0)
