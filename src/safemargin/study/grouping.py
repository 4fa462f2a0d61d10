"""Which moments belong together: none is judged by a fit that has seen its episode, or a copy.

Episodes that differ at first and then run into the same play (`plays`) are not copies. Where few
plays are all there is, a fresh moment is as much like those that were fitted as the judged one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from safemargin.study.store import Store


def group_labels(
    store: Store,
    moments: Sequence[tuple[str, int, int]],  # phase, episode, life
) -> npt.NDArray[np.int64]:
    """A label for each moment, [moments]: the same for the lives of one game, and for copies.

    A deterministic environment and a greedy policy repeat themselves; two moments of episodes with
    equal fingerprints are hardly two pieces of evidence.
    """
    fingerprints = {
        key: fingerprint
        for *key_parts, fingerprint in store.query(
            "SELECT phase, episode, life, fingerprint FROM episodes"
        )
        for key in [tuple(key_parts)]
    }
    label: dict[object, int] = {}
    for number, key in enumerate(moments):
        names: tuple[object, object] = key[:2], fingerprints[key]
        found = {label[name] for name in names if name in label}
        joined = min(found, default=number)
        for name, value in label.items() if len(found) > 1 else ():
            if value in found:
                label[name] = joined
        label.update(dict.fromkeys(names, joined))
    return np.array([label[key[:2]] for key in moments], dtype=np.int64)
