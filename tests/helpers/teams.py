"""Teams for games of PettingZoo: every agent plays as a random linear policy would."""

from __future__ import annotations

from pathlib import Path

LINEAR = """
import numpy as np

def linear(seed, actions):
    def scores(observations):
        flat = observations.reshape(len(observations), -1).astype(np.float64)
        return flat @ np.random.default_rng(seed).normal(size=(flat.shape[1], actions))
    scores.kind = "logits"
    return scores

def team():
    return {{
        agent: linear(seed, actions) for seed, (agent, actions) in enumerate({actions}.items())
    }}
"""


def write_team(path: Path, actions: dict[str, int]) -> str:
    """Write a file with a team whose agents have this many actions; return what names it."""
    path.write_text(LINEAR.format(actions=actions))
    return f"{path}:team"
