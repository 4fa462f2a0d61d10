"""How often agents send pictures: no more than people look at."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from safemargin.web.fleet.agents import Agent
from safemargin.web.fleet.journal import Page

FASTEST = 0.25
"""Seconds between two pictures on a tile, at least."""
TILES_PER_SECOND = 40
"""Pictures a second of all agents together; one that somebody looks at sends every picture."""


def pace_pictures(agents: Iterable[Agent], pages: Collection[Page]) -> None:
    """Tell agents how many seconds to leave between pictures; None: nobody looks."""
    linked = [agent for agent in agents if agent.link is not None]
    tile = max(FASTEST, len(linked) / TILES_PER_SECOND) if pages else None
    looked_at = {page.looks_at for page in pages}
    for agent in linked:
        closely = agent.index in looked_at or agent.holder is not None
        every = 0.0 if closely else tile
        if agent.link is not None and (agent.picture_every != every or not agent.paced):
            agent.picture_every, agent.paced = every, True
            agent.link.send({"kind": "pictures", "every": every})
