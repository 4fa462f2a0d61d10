"""Pictures of what agents see: small enough for a tile, and no more than people look at."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.journal import Page

FASTEST = 0.25
A_SECOND = 40
"""Of all agents together, on tiles; the one that somebody looks at sends each."""


def pace_pictures(agents: Iterable[Agent], pages: Collection[Page]) -> None:
    """Tell agents how many seconds there may be between pictures; None: nobody looks."""
    linked = [agent for agent in agents if agent.link is not None]
    tile = max(FASTEST, len(linked) / A_SECOND) if pages else None
    looked_at = {page.looks_at for page in pages}
    for agent in linked:
        closely = agent.index in looked_at or agent.control is not None
        every = 0.0 if closely else tile
        if agent.link is not None and (agent.picture_every != every or not agent.paced):
            agent.picture_every, agent.paced = every, True
            agent.link.send({"kind": "pictures", "every": every})
