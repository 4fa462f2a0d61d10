"""A game in which an agent went round in circles: the reproduction's 22nd of beamrider-apex."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT

from safemargin.monitor import Stuck
from safemargin.monitor.overseen import state_of

REPRODUCTION = ROOT / "reproduction"


@pytest.mark.skipif(os.environ.get("SAFEMARGIN_SLOW") != "1", reason="plays 7,600 decisions")
@pytest.mark.parametrize("game", [22, 0])
def test_it_is_noticed(game: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Game 22 earned nothing in its last 1,500 decisions, and met 8 states; game 0 goes on."""
    pytest.importorskip("ale_py")
    monkeypatch.syspath_prepend(str(REPRODUCTION))
    supervise = pytest.importorskip("supervise")
    stored = sys.modules["stored"]
    study = stored.StoredStudy(Path(REPRODUCTION / "studies" / "beamrider-apex"))
    plan = supervise.Plan("beamrider-apex", 0.05, 1500, 150, 6000)
    supervisor = supervise.Supervisor(study, plan)
    seen: list[tuple[float, int, bool]] = []
    take = supervisor._step

    def step(action: Any) -> Any:
        result, observation = take(action)
        ended = bool(result.terminated or result.truncated)
        seen.append((float(result.reward), state_of(np.asarray(observation)), ended))
        return result, observation

    supervisor._step = step
    observation = supervisor._begin(game)
    alone = len(seen)
    for _ in range(plan.decisions):
        rows, _ = supervisor.runner.scores([observation], [None])
        own = supervisor.runner.choose(rows[0], None, supervisor.runner.simulator.mask)
        _, observation = step(int(own))
    stuck, found = Stuck(), []
    for number, (reward, state, ended) in enumerate(seen):
        if stuck.see(0, number / 15, reward, state):
            found.append(number)
        if ended:
            stuck.forget(0)
    print(f"game {game}: {alone} + {plan.decisions} decisions, stuck at {found[:1]}")
    if game == 22:
        assert sum(reward for reward, _, _ in seen[alone:]) == 0
        assert found[0] < alone  # before the reproduction looked at it
        assert found[-1] == len(seen) - 1
    else:
        assert not found
