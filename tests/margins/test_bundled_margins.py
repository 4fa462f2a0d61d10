"""The margins that come with the bundled agents belong to them, and a monitor runs them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT

import safemargin as sm
from safemargin.cli.app import main
from safemargin.environments.atari import make_atari
from safemargin.policies import load_policy
from safemargin.policies.features import with_value
from safemargin.policies.zoo import zoo_agents

pytest.importorskip("ale_py", reason="pip install 'safemargin[atari]'")

CARDS = [card for card in zoo_agents() if "margins" in card]


@pytest.fixture(params=CARDS, ids=[card["name"] for card in CARDS])
def card(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def test_all_atari_agents_have_margins() -> None:
    names = {"beamrider-a3c", "beamrider-apex", "pong-a3c", "pong-apex"}
    assert {card["name"] for card in CARDS} == names


def test_they_are_about_the_agent(card: dict[str, Any]) -> None:
    margins = sm.Margins.load(f"zoo:{card['name']}")
    assert margins.probe is not None
    assert margins.probe.policy == margins.policy["identity"] == card["identity"]
    assert margins.environment["name"] == card["environment"]
    assert margins.confidence == card["margins"]["confidence"]
    assert margins.counts == card["margins"]["moments"]


def test_the_card_says_what_cross_validation_found(card: dict[str, Any]) -> None:
    path = ROOT / "reproduction" / "studies" / card["name"] / "learned.json"
    judged = json.loads(path.read_text())
    found = {
        f"{tolerance:g}": [row["mean_margin"], perfect]
        for tolerance, row, perfect in zip(
            judged["tolerances"],
            judged["results"]["learned, bound"],
            judged["perfect"],
            strict=True,
        )
    }
    assert card["margins"]["mean_margin"] == found


def test_a_monitor_runs_them_beside_the_agent(card: dict[str, Any]) -> None:
    policy = load_policy(f"zoo:{card['name']}")
    monitor = sm.Monitor(f"zoo:{card['name']}", tolerance=1.0)
    env = make_atari(card["environment"].removeprefix("atari:"))
    observation, _ = env.reset(seed=4)
    margins = []
    for _ in range(150):
        seen = policy.features(observation[None], policy.initial_memory(1))
        margins.append(monitor.step(seen.scores[0], features=with_value(seen)[0]).margin)
        observation, *_ = env.step(int(np.argmax(seen.scores[0])))
    env.close()
    assert max(margins) >= 8  # it can afford many mistakes somewhere in the first few seconds


def test_margins_of_an_agent_that_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["margin", "zoo:cartpole", "--proxy", "1", "--tolerance", "1"]) == 2
    assert "no margins come with cartpole; they come with beamrider-a3c" in capsys.readouterr().err
    assert main(["margin", "zoo:pong-a3c", "--proxy", "-2", "--tolerance", "0.5"]) == 0
    assert int(capsys.readouterr().out.split()[0]) >= 1
