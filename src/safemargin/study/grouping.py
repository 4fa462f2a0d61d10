"""Which moments belong together: none is judged by a fit that has seen its episode, or a copy.

Episodes that differ at first and then run into the same play (`plays`) are not copies. Where few
plays are all there is, a fresh moment is as much like those that were fitted as the judged one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from safemargin.core.records import EpisodeKey
from safemargin.study.store import Store


def group_labels(store: Store, moments: Sequence[EpisodeKey]) -> npt.NDArray[np.int64]:
    """Return a label per moment, [moments]: equal for the lives of one game, and for copies.

    A deterministic environment and a greedy policy repeat themselves; two moments of episodes with
    equal fingerprints are hardly two pieces of evidence.
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
