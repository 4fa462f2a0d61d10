"""The monitor: one agent and many, hysteresis, pauses, drift, what it refuses and needs."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.margins import margins, scores

import safemargin as sm
from safemargin.errors import InvalidInput, StudyMismatch
from safemargin.margins.bounds.table import Bound
from safemargin.margins.lookup import Margins
from safemargin.margins.natural_proxies import summarise
from safemargin.monitor.decisions import Event
from safemargin.policies.proxies import PROXIES, Proxy


def monitor(table: Margins | None = None, **options: Any) -> sm.Monitor:
    return sm.Monitor(table or margins(), **{"tolerance": 1.0, "call_at": 2, **options})


def test_a_few_decisions_by_hand() -> None:
    watch = monitor()  # calls below 2, releases at 4
    said = [watch.step(scores(proxy)) for proxy in (0, 1, 2, 1, 0, 1)]
    assert [each.margin for each in said] == [4, 2, 1, 2, 4, 2]
    assert [each.call for each in said] == [False, False, True, True, False, False]
    assert [each.began for each in said] == [False, False, True, False, False, False]
    assert [each.proxy for each in said] == [0, 1, 2, 1, 0, 1]
    assert [each.why for each in said] == [
        "margin 4",
        "margin 2",
        "margin 1, below 2",
        "margin 2, not yet back at 4",
        "margin 4",
        "margin 2",
    ]
    assert watch.steps == 6
    assert watch.step([0.0, 1.0, 0.5]).margin == 2  # lists will do


def test_a_report_holds_plain_values_and_a_reason_only_where_it_matters() -> None:
    watch = monitor()
    calm, call, unknown = (watch.step(scores(proxy)) for proxy in (0, 2, np.nan))
    flags = {"call": False, "outside": False, "muted": False, "void": False}
    assert calm.report() == {"margin": 4, "proxy": 0.0, **flags, "why": ""}
    expected = {"margin": 1, "proxy": 2.0, **flags, "call": True, "why": "margin 1, below 2"}
    assert call.report() == expected
    assert unknown.report()["proxy"] is None
    assert unknown.report()["why"] == unknown.why
    assert calm._replace(void=True).report()["why"].startswith("margin 4; the guarantee is void")


def test_without_hysteresis_and_with_a_pause() -> None:
    plain = monitor(release_at=2)
    assert [plain.step(scores(p)).call for p in (2, 1, 2, 1)] == [True, False, True, False]
    watch = monitor(release_at=2, pause=2)
    said = [watch.step(scores(proxy)) for proxy in (2, 1, 2, 2, 2, 1)]
    assert [each.call for each in said] == [True, False, False, False, True, False]
    assert [each.muted for each in said] == [False, False, True, True, False, False]
    assert said[2].why == ("margin 1, below 2, but the last call ended fewer than 2 decisions ago")


def test_a_call_that_the_end_of_an_episode_cuts_off_is_paused_after_like_any_other() -> None:
    for before in ((3,), (3, 0)):  # cut off, or released just before the end
        alone, many = monitor(pause=2), monitor(pause=2)
        for proxy in before:
            alone.step(scores(proxy))
            many.step(np.array([scores(proxy), scores(0)]))
        alone.end_episode()
        many.end_episode([0])
        muted = []
        for _ in range(3):
            both, said = many.step(np.array([scores(3), scores(3)])), alone.step(scores(3))
            assert tuple(both[0]) == tuple(said)
            assert both.call[1]  # who was not called for is not muted
            muted.append((said.muted, said.call))
        assert muted == [(True, False), (True, False), (False, True)]


def test_outside_the_fitted_range_is_flagged() -> None:
    watch = monitor(release_at=2)
    assert not watch.step(scores(3)).outside
    above = watch.step(scores(3.1))
    assert (above.margin, above.outside, above.call) == (0, True, True)
    assert above.why.startswith("q_range 3.1 lies above 3, the highest the margins were fitted on")
    shifted = margins()
    shifted.bound.__dict__["grid"] = shifted.bound.grid + 0.5
    low = monitor(shifted).step(scores(0))
    assert (low.margin, low.outside, low.call) == (4, True, False)
    assert low.why == (
        "q_range 0 lies below 0.5, the lowest the margins were fitted on, which has margin 4"
    )
    none = monitor(shifted, below="zero").step(scores(0))
    assert (none.margin, none.outside, none.call) == (0, True, True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_call(bad: float) -> None:
    watch = monitor(pause=100)
    assert watch.step(scores(2)).call
    assert not watch.step(scores(0)).call
    assert watch.step(scores(2)).muted
    said = watch.step(np.array([1.0, bad, 2.0]))
    assert said.call
    assert said.began
    assert said.margin == 0
    assert not said.muted
    assert said.outside
    assert np.isnan(said.proxy)
    assert said.why == "the scores give no finite proxy, so nothing is known"
    many = monitor()
    both = many.step(np.array([[1.0, bad, 2.0], [0.0, 0.0, 0.0]]))
    assert both.call.tolist() == [True, False]
    assert np.isnan(both.proxy[0])
    assert both[0].why == said.why


@pytest.mark.parametrize("proxy", ["q_range", "q_variance", "certainty", "log_prob_range"])
def test_a_batch_gets_the_same_decisions_as_each_agent_alone(proxy: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 1.5, (200, 5, 3)).astype(np.float32)  # [steps, agents, actions]
    rows[rng.random((200, 5)) < 0.02, 1] = np.nan
    table = margins(proxy=proxy)
    options = {"pause": 3, "call_at": 2}
    alone = [monitor(table, **options) for _ in range(5)]
    together = monitor(table, **options)
    for step in range(200):
        if step % 37 == 36:
            together.end_episode([1, 3])
            alone[1].end_episode()
            alone[3].end_episode()
        said = together.step(rows[step])
        for agent, watch in enumerate(alone):
            mine = watch.step(rows[step, agent])
            np.testing.assert_equal(tuple(said[agent]), tuple(mine))
            assert said[agent].why == mine.why
    assert together.calling.tolist() == [bool(watch.calling[0]) for watch in alone]


def test_the_margins_are_those_of_the_table() -> None:
    rng = np.random.default_rng(1)
    rows = rng.uniform(0, 3.5, (500, 4))
    proxies = rows.max(axis=1) - rows.min(axis=1)
    found = margins().lookup(proxies, 1.0)
    said = monitor().step(rows)
    assert said.margin.tolist() == found.margin.tolist()
    assert said.outside.tolist() == (found.outside | found.below).tolist()


def test_arrays_are_reused_and_can_be_copied() -> None:
    watch = monitor()
    first = watch.step(np.zeros((3, 2)))
    kept = first.copy()
    second = watch.step(np.array([[0.0, 2.0]] * 3))
    assert second is first
    assert second.margin.tolist() == [1, 1, 1]
    assert kept.margin.tolist() == [4, 4, 4]
    assert second.why == ["margin 1, below 2"] * 3
    assert len(second) == 3


def test_memory_stays_flat() -> None:
    watch = monitor(margins(natural_proxies=summarise(np.arange(50.0))))
    rows = np.random.default_rng(0).random((1000, 6)).astype(np.float32)

    def go_on(steps: int) -> int:
        for _ in range(steps):
            watch.step(rows)
            watch.end_episode()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    before = go_on(5)
    grown = go_on(30) - before
    tracemalloc.stop()
    assert grown < 10_000


def test_a_gaussian_policy() -> None:
    class Box:
        low, high = np.array([-1.0]), np.array([1.0])

    table = margins(proxy="log_prob_range", policy={"kind": "gaussian"})
    with pytest.raises(InvalidInput, match="needs the bounds of its actions: pass action_space="):
        monitor(table)
    watch = monitor(table, action_space=Box)
    one = watch.step(np.array([[0.0], [0.0]]))  # mean 0, deviation 1: (1² − 0²) / 2
    assert one.proxy == 0.5
    many = monitor(table, action_space=Box).step(np.zeros((4, 2, 1)))
    assert many.proxy.tolist() == [0.5] * 4


def test_what_runs_must_be_what_was_measured() -> None:
    class Agent:
        identity = "sha256:abc"

    monitor(policy=Agent(), environment="sha256:def")
    monitor(policy="sha256:abc", environment="CartPole-v1").check(Agent())
    with pytest.raises(StudyMismatch, match=r"another policy \(agent.onnx, sha256:abc…, not other"):
        monitor(policy="other")
    with pytest.raises(StudyMismatch, match=r"another environment \(CartPole-v1, sha256:def…, not"):
        monitor(environment="Acrobot-v1")
    with pytest.raises(StudyMismatch, match="do not say which policy they were made for; fit"):
        monitor(margins(policy={}), policy="sha256:abc")
    with pytest.raises(InvalidInput, match="policy must be a policy or its identity, got 3"):
        monitor(policy=3)


def test_proxies_that_need_more_than_scores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="'mine', which is unknown here; register it first"):
        monitor(margins(proxy="mine"))
    monkeypatch.setitem(PROXIES, "far", Proxy("far", print, ("q",), history=2))
    with pytest.raises(InvalidInput, match="'far' needs observations; a monitor needs one that"):
        monitor(margins(proxy="far"))
    steep = np.array([[0.0, 1.0], [0.0, 2.0]])
    per_n = Bound((1, 2), steep, steep, 0.95, "paper", looks_at_n=True)
    with pytest.raises(InvalidInput, match="'late' looks at n; a monitor needs one that takes"):
        monitor(Margins(per_n, proxy="late"))
    twice = Proxy("twice", lambda scores, history, n: 2 * scores[1], ("q",))
    monkeypatch.setitem(PROXIES, "twice", twice)
    watch = monitor(margins(proxy="twice"))
    assert watch.step(np.array([0.0, 1.0])).proxy == 2
    assert monitor(margins(proxy="twice")).step(np.ones((2, 2))).proxy.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tolerance": -1.0}, "the tolerance must be at least 0, got -1.0"),
        ({"tolerance": np.nan}, "the tolerance must be at least 0, got nan"),
        ({"tolerance": "1"}, "the tolerance must be a number, got '1'"),
        ({"tolerance": None}, "the tolerance must be a number, got None"),
        ({"tolerance": 1j}, "the tolerance must be a number, got 1j"),
        ({"call_at": 1.5}, "call_at must be a whole number, got 1.5"),
        ({"call_at": "2"}, "call_at must be a whole number, got '2'"),
        ({"call_at": None}, "call_at must be a whole number, got None"),
        ({"release_at": "4"}, "release_at must be a whole number, got '4'"),
        ({"pause": 0.5}, "pause must be a whole number, got 0.5"),
        ({"call_at": 0}, "call_at must be at least 1"),
        ({"call_at": 5}, "call_at=5 lies above 4, the largest n that was measured"),
        ({"release_at": 1}, r"release_at must lie between call_at \(2\) and the largest n"),
        ({"release_at": 8}, r"release_at must lie between call_at \(2\) and the largest n"),
        ({"pause": -1}, "pause must be at least 0 decisions, got -1"),
        ({"below": "zeros"}, "below='zeros' is unknown; did you mean 'zero'"),
        ({"block": 0}, "block must be at least 1 decision, got 0"),
    ],
)
def test_invalid_options_are_refused(options: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        monitor(**options)


def test_scores_of_another_shape() -> None:
    with pytest.raises(InvalidInput, match=r"scores must be \[actions\] for one agent or \[agents"):
        monitor().step(np.zeros((2, 2, 2)))
    with pytest.raises(InvalidInput, match=r"must not be empty, got shape \[0, 2\]"):
        monitor().step(np.zeros((0, 2)))
    watch = monitor()
    watch.end_episode()  # nothing has begun
    assert watch.calling.tolist() == []
    watch.step(np.zeros((2, 2)))
    for other in (np.zeros((3, 2)), np.zeros(2)):
        with pytest.raises(InvalidInput, match=r"was given scores of shape \[2, 2\] first, now"):
            watch.step(other)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("text", "scores must be real numbers, got text"),
        (None, "scores must be real numbers, got None"),
        (["a", "b"], "scores must be real numbers"),
        ([1.0, None], "scores must be real numbers"),
        (np.array([1j, 0j]), "scores must be real numbers"),
        (np.array([1.0, None]), "scores must be real numbers"),
        ([[1.0, 2.0], [1.0]], "scores must be numbers, equally many for each agent"),
    ],
)
def test_scores_that_are_not_real_numbers_are_refused(wrong: Any, text: str) -> None:
    single, many = monitor(), monitor()
    single.step(np.zeros(2))
    many.step(np.zeros((2, 2)))
    for watch in (monitor(), single, many):
        with pytest.raises(InvalidInput, match=text):
            watch.step(wrong)
    assert single.steps == many.steps == 1
    assert single.step([0, 1]).proxy == 1  # other numbers are fine


def test_listeners_hear_of_calls_and_releases() -> None:
    heard: list[Event] = []
    watch = monitor(listeners=[heard.append])
    for proxy in (0, 2, 1, 0, 2):
        watch.step(scores(proxy))
    watch.end_episode()
    assert [(event.kind, event.step) for event in heard] == [
        ("call", 1), ("release", 3), ("call", 4), ("release", 5),
    ]  # fmt: skip
    assert heard[0].to_dict() == {
        "kind": "call",
        "agent": 0,
        "step": 1,
        "margin": 1,
        "proxy": 2.0,
        "why": "margin 1, below 2",
    }
    heard.clear()
    many = monitor(listeners=[heard.append])
    many.step(np.array([[0.0, 0.0], [0.0, np.nan], [0.0, 2.0]]))
    many.step(np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 2.0]]))
    assert [(event.kind, event.agent) for event in heard] == [
        ("call", 1), ("call", 2), ("release", 1),
    ]  # fmt: skip
    assert heard[0].to_dict()["proxy"] is None


def test_drift_voids_the_guarantee() -> None:
    heard: list[Event] = []
    table = margins(natural_proxies=summarise(np.linspace(0, 3, 200)))
    watch = monitor(table, listeners=[heard.append])
    assert watch.drift.watching
    assert not watch.drift.fired
    for _ in range(60):
        for _ in range(3):
            said = watch.step(scores(2.95))
        watch.end_episode()
    assert watch.drift.fired
    assert said.void
    assert said.why.endswith("; the guarantee is void: proxies no longer look as they did when the "
                             "margins were fitted")  # fmt: skip
    assert [event.kind for event in heard].count("drift") == 1
    drifted = next(event for event in heard if event.kind == "drift")
    assert drifted.agent == -1
    assert "their guarantee is void" in drifted.why


def test_older_margins_cannot_report_drift() -> None:
    watch = monitor()
    watch.step(scores(1))
    watch.end_episode()
    assert not watch.drift.watching
    assert not watch.drift.fired
    assert "drift cannot be noticed; fit again" in watch.drift.why


def test_episodes_are_looked_at_in_the_order_they_began() -> None:
    """Short episodes end first, so taking them as they come would be a biased sample."""
    watch = monitor(margins(natural_proxies=summarise(np.linspace(0, 3, 200))))
    watch.step(np.zeros((3, 2)))
    watch.end_episode([1])
    watch.step(np.zeros((3, 2)))
    watch.end_episode(np.array([False, True, False]))
    assert watch.drift.episodes == 0
    watch.end_episode([0])
    assert watch.drift.episodes == 2  # agent 0's first, agent 1's first
    watch.end_episode([2], counted=False)  # died: says nothing, and holds nobody up
    assert watch.drift.episodes == 3
    watch.end_episode([1, 1])  # without a decision
    assert watch.drift.episodes == 3
    watch.step(np.zeros((3, 2)))
    for nobody in ([], (), np.zeros(3, dtype=bool)):
        watch.end_episode(nobody)
    assert watch.drift.episodes == 3
    refusal = "agents must be indices 0–2 or a boolean mask of length 3"
    for wrong in (3, [True, False], "all", -1, [0, -3], [0.0], [[0], [1, 2]]):
        with pytest.raises(InvalidInput, match=refusal):
            watch.end_episode(wrong)


def test_a_seed_makes_the_same_draws() -> None:
    table = margins(natural_proxies=summarise(np.linspace(0, 3, 200)))
    for shape in ((2,), (4, 2)):
        evidence = []
        for _ in range(2):
            watch, rng = monitor(table, seed=7), np.random.default_rng(0)
            for step in range(60):
                watch.step(rng.uniform(0, 2, shape))
                if step % 6 == 5:
                    watch.end_episode()
            evidence.append(watch.drift.evidence)
        assert evidence[0] == evidence[1] != 1


def test_blocks_stand_for_episodes_that_do_not_end() -> None:
    table = margins(natural_proxies=summarise(np.linspace(0, 3, 200)))
    single, many = (monitor(table, block=10, false_alarms=1e-30) for _ in range(2))
    for _ in range(35):
        said = single.step(scores(2))
        many.step(np.array([scores(2)] * 4))
    assert said.call
    assert not said.began
    assert single.drift.episodes == 3
    assert many.drift.episodes == 12
    assert many.calling.all()


def test_every_decision_of_an_episode_is_as_likely_to_be_kept() -> None:
    table = margins(natural_proxies=summarise(np.linspace(0, 3, 200)))
    watch = monitor(table)
    for proxy in np.repeat([[0.0, 1.0, 2.0, 3.0]], 3000, axis=0).T:
        watch.step(np.stack([np.zeros(3000), proxy], axis=1))
    _, counts = np.unique(watch._reservoirs.kept, return_counts=True)
    assert counts.tolist() == pytest.approx([750] * 4, abs=120)


def test_it_needs_numpy_only(tmp_path: Path) -> None:
    path = margins(natural_proxies=summarise(np.arange(50.0))).save(tmp_path / "margins.json")
    code = (
        "import sys, safemargin as sm\n"
        f"watch = sm.Monitor({str(path)!r}, tolerance=1.0, call_at=2)\n"
        "print(watch.step([0.0, 2.0]).why)\n"
        "watch.end_episode()\n"
        "print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    said, loaded = result.stdout.splitlines()
    assert said == "margin 1, below 2"
    tops = {name.partition(".")[0] for name in loaded.split()}
    unwanted = {"gymnasium", "scipy", "onnxruntime", "sqlite3", "matplotlib", "torch", "rich"}
    assert not tops & unwanted


def test_a_fleet_with_long_episodes_makes_no_false_alarm() -> None:
    """High proxies go with long episodes: as they come, the first to end would all be low ones."""
    fired = 0
    for run in range(12):
        rng = np.random.default_rng(run)
        table = margins(natural_proxies=summarise(rng.uniform(0, 3, 300), seed=run))
        watch = monitor(table, false_alarms=0.05, seed=run)
        levels = rng.uniform(0, 3, 40)
        left = (1 + 20 * levels).astype(int)  # decisions of each agent's episode
        for _ in range(120):
            watch.step(np.stack([np.zeros(40), levels], axis=1))
            left -= 1
            ended = np.flatnonzero(left == 0)
            watch.end_episode(ended)
            levels[ended] = rng.uniform(0, 3, len(ended))
            left[ended] = (1 + 20 * levels[ended]).astype(int)
        assert watch.drift.fired or watch.drift.episodes > 60
        fired += watch.drift.fired
    assert fired <= 2
