"""A short rehearsal of a crew, without pictures or people, to forecast its calls."""

from __future__ import annotations

import contextlib
import time

from safemargin.core.seeding import hashed_seed
from safemargin.monitor.decisions import Decision
from safemargin.monitor.overseen import oversee
from safemargin.web.fleet.local import Crew


def rehearse(crew: Crew, *, decisions: int = 2000, seconds: float = 5.0) -> list[list[Decision]]:
    """Return an agent's decisions, episode by episode: this many, or those of this much time."""
    plays: list[list[Decision]] = []
    left, deadline = decisions, time.monotonic() + seconds
    monitor = crew.make_monitor()
    with contextlib.closing(crew.environment.make()) as env:
        seed: int | None = hashed_seed(crew.seed, 0)
        while left > 0 and (time.monotonic() < deadline or not plays):
            plays.append([])
            run = oversee(env, crew.policy, monitor, seed=seed)
            seed = None
            for question in run:
                plays[-1].append(question.decision)
                left -= 1
                if left <= 0 or time.monotonic() > deadline:
                    break
            run.close()
    return plays
