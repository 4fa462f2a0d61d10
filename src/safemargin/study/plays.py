"""Detects episodes that start differently but converge on the same play.

Without chance in environment and policy, that is common. Moments at different steps of the same
play are not copies of one another, but a study of a few plays only describes these plays.
"""

from __future__ import annotations

import numpy as np

from safemargin.core.records import Floats
from safemargin.core.text import counted
from safemargin.policies.proxies import single_values
from safemargin.study.store import Store

ALIKE = 32
"""Episodes whose proxies agree to the last bit over this many steps are one play from there."""

FEWEST_VALUES = 8
"""Stretches with fewer distinct proxies than this cannot tell two plays apart."""

FEW = 0.1
"""Fewer plays than this share of the moments are reported …"""

MANY = 50
"""… from this many moments on; with fewer, somebody is just trying things out."""


class FewPlays(UserWarning):
    """Many moments of a study lie in the same few plays."""


class Plays:
    """The plays seen so far, in the order of a study."""

    def __init__(self) -> None:
        self._known: dict[bytes | str, str] = {}

    def joins(self, name: str, values: Floats, opening: int, fingerprint: str) -> str | None:
        """Return the first episode seen with the same play, or None; remember this one.

        Episodes that converge share their last steps or, if a time limit ended them at different
        steps, those from the highest proxy on.
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
    """Return how many plays the selected moments lie in."""
    plays = Plays()
    return sum(
        plays.joins(str(trace.key), trace.values, trace.opening, trace.fingerprint) is None
        for trace in store.proxy_traces(store.meta("selection_proxy"))
        if trace.moment_step is not None
    )


def describe_plays(plays: int, moments: int) -> str | None:
    """Return a sentence if many moments lie in few plays, else None."""
    if moments < MANY or plays >= FEW * moments:
        return None
    return (
        f"{moments:,} moments lie in {counted(plays, 'play')}, because episodes that "
        "start differently run into the same play: margins will describe only these; in a new "
        "study, a longer --opening (say 400 in Atari games) or --action-choice epsilon-greedy "
        "gives more"
    )
