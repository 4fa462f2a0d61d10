"""Groups moments that belong together, so that no fit is judged on an episode it has seen.

Episodes that differ at first and then converge on the same play (`plays`) are not copies. Where
there are only a few plays, a fresh moment resembles the fitted ones as much as a judged one does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from safemargin.core.records import EpisodeKey
from safemargin.margins.learned.probe import LEARNED
from safemargin.study.store import Store


def group_labels(store: Store, moments: Sequence[EpisodeKey]) -> npt.NDArray[np.int64]:
    """Return a label per moment, [moments]: equal for the lives of one game, and for copies.

    A deterministic environment and a greedy policy repeat themselves: two moments of episodes with
    equal fingerprints are hardly independent evidence.
    """
    fingerprints = store.fingerprints()
    label: dict[object, int] = {}
    for number, key in enumerate(moments):
        names: tuple[object, object] = key.game_keys, fingerprints[key]
        found = {label[name] for name in names if name in label}
        joined = min(found, default=number)
        for name, value in label.items() if len(found) > 1 else ():
            if value in found:
                label[name] = joined
        label.update(dict.fromkeys(names, joined))
    return np.array([label[key.game_keys] for key in moments], dtype=np.int64)


def learned_groups(
    store: Store, keys: Sequence[EpisodeKey], proxy: str = LEARNED
) -> npt.NDArray[np.int64]:
    """Return the group of each moment as it was when the proxy was learned, [moments]."""
    groups = store.meta(proxy)["groups"]
    return np.array([groups[key.id] for key in keys], dtype=np.int64)
