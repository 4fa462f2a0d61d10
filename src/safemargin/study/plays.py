"""Whether episodes are plays of their own: such as begin differently may meet and go on as one.

A deterministic environment and a greedy policy know no chance. Moments at different steps of the
same play are not copies of one another, but a study of a few plays speaks of these plays alone.
"""

from __future__ import annotations

import numpy as np

from safemargin.core.records import Floats
from safemargin.policies.proxies import single_values
from safemargin.study.store import Store

ALIKE = 32
"""Two episodes whose proxies agree to the last bit over so many steps are one play from there."""

FEWEST_VALUES = 8
"""Proxies that hardly change tell no two plays apart."""

FEW = 0.1
"""Fewer plays than this share of the moments are worth a word …"""

MANY = 50
"""… where there are so many moments; with fewer, somebody is just trying things out."""


class FewPlays(UserWarning):
    """Many moments of a study lie in the same few plays."""


class Plays:
    """The plays that were seen so far, in the order of a study."""

    def __init__(self) -> None:
        self._known: dict[bytes | str, str] = {}

    def joins(self, name: str, values: Floats, opening: int, fingerprint: str) -> str | None:
        """The first episode that was seen with the same play.

        Episodes that meet share their last steps, or, where a time limit cut them at different
        places, those from the highest proxy on.
        """
        single = single_values(values)
        top = opening + int(np.argmax(single[opening:]))
        parts = [values[max(opening, len(values) - ALIKE) :], values[top : top + ALIKE]]
        signs: list[bytes | str] = [fingerprint]
        signs += [
            part.tobytes() for part in parts if len(np.unique(single_values(part))) >= FEWEST_VALUES
        ]
        found = next((self._known[sign] for sign in signs if sign in self._known), None)
        for sign in signs:
            self._known.setdefault(sign, found or name)
        return found


def count_plays(store: Store) -> int:
    """How many plays the chosen moments lie in."""
    plays = Plays()
    return sum(
        plays.joins(str(trace.key), trace.values, trace.opening, trace.fingerprint) is None
        for trace in store.proxy_traces(store.meta("selection_proxy"))
        if trace.moment_step is not None
    )


def told_plays(plays: int, moments: int) -> str | None:
    """One sentence where few plays stand behind many moments; None elsewhere."""
    if moments < MANY or plays >= FEW * moments:
        return None
    return (
        f"{moments:,} moments lie in {plays:,} play{'s' * (plays != 1)}, since episodes with other "
        "beginnings run into the same play: margins will speak of these alone; in a new study a "
        "longer --opening (in Atari games 400, say) or --action-choice epsilon-greedy gives more"
    )
