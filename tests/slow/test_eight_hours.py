"""Twelve agents, a team's budget of 20 calls an hour, and eight hours of their time.

Each agent plays recorded games of Pong in an order of its own: sequences of margins and proxies as
its policy gives them, with everything that repeats itself in them. No clock is involved. The same
with invented proxies, for four hours, is in `tests/monitor/test_caller.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from helpers.paths import ROOT

import safemargin as sm
from safemargin.core.seeding import hashed_seed
from safemargin.environments import EnvironmentSpec
from safemargin.validation.defaults import default_tolerance

pytestmark = pytest.mark.skipif(
    os.environ.get("SAFEMARGIN_SLOW") != "1", reason="plays twelve games of Pong"
)
AGENTS, RATE, BUDGET, HOURS, GAMES = 12, 15.0, 20, 8, 12


@pytest.fixture(scope="module")
def margins() -> sm.Margins:
    """Margins of the bundled Pong agent, from the reproduction's stored study."""
    pytest.importorskip("pyarrow")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "reproduction"))
        from stored import StoredStudy

        fitted = StoredStudy(ROOT / "reproduction" / "studies" / "pong-a3c").fit("calibrated")
    assert isinstance(fitted, sm.Margins)
    return fitted


@pytest.fixture(scope="module")
def traces(margins: sm.Margins) -> list[np.ndarray]:
    """The proxy at each decision of whole games that the agent plays, [games] of [decisions]."""
    pytest.importorskip("ale_py")
    policy = sm.load_policy("zoo:pong-a3c")
    monitor = sm.Monitor(margins, tolerance=default_tolerance(margins))
    env = EnvironmentSpec.parse("atari:pong").make()
    found = []
    for game in range(GAMES):
        run = sm.oversee(env, policy, monitor, seed=hashed_seed(1, game))
        found.append(np.array([question.decision.proxy for question in run]))
    env.close()
    return found


def games(rng: np.random.Generator, traces: list[np.ndarray]) -> Iterator[float]:
    while True:
        yield from traces[int(rng.integers(len(traces)))].tolist()


def test_twelve_agents_make_twenty_calls_an_hour(
    margins: sm.Margins, traces: list[np.ndarray]
) -> None:
    tolerance, decisions = default_tolerance(margins), round(HOURS * 3600 * RATE)
    drawn = (games(np.random.default_rng(agent), traces) for agent in range(AGENTS))
    proxies = np.array([list(islice(each, decisions)) for each in drawn]).T  # [decisions, agents]
    granted = np.asarray(margins.lookup(proxies.ravel(), tolerance).margin).reshape(proxies.shape)
    caller = sm.Caller(f"{BUDGET}/hour", seed=0)
    begun: list[tuple[int, str]] = []
    lengths: list[float] = []
    since: dict[int, float] = {}
    for step in range(decisions):
        now, row = step / RATE, zip(granted[step].tolist(), proxies[step].tolist(), strict=True)
        for agent, (margin, proxy) in enumerate(row):
            call = caller.see(agent, now, margin, proxy)
            if call.began:
                since[agent] = now
                begun.append((agent, call.cause))
            elif agent in since and not call.on:
                lengths.append(now - since.pop(agent))
    looks = sum(cause == "look" for _, cause in begun)
    of = [sum(agent == each for each, _ in begun) for agent in range(AGENTS)]
    print(
        f"{len(begun)} calls in {HOURS} h ({looks} random looks), of {min(lengths):.2f} to "
        f"{max(lengths):.1f} s, {np.mean(lengths):.2f} on average; by agent {of}"
    )
    assert abs(len(begun) / HOURS - BUDGET) <= 0.2 * BUDGET
    assert min(lengths) >= 2
    assert abs(looks - 0.1 * BUDGET * HOURS) <= 1
    assert min(of) > 0
