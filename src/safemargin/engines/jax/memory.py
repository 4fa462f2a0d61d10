"""How many groups of lanes a device has room for."""

from __future__ import annotations

import numpy as np

from safemargin.engines.jax.program import Program

MOST = {"cpu": 3}
"""More groups keep a device no busier; one is computed while the host looks after another."""

MOST_ON_ACCELERATORS = 2
COPIES = 6
"""A group needs about this many copies of its lanes: before and after a call, banks, and room."""

SHARE = 0.7
"""At most this share of the free memory is planned for."""


def groups_that_fit(program: Program) -> int:
    """Return the number of groups that the devices have room for; at least one."""
    first = program.devices[0]
    most = MOST.get(first.platform, MOST_ON_ACCELERATORS)
    known = first.memory_stats() if first.platform != "cpu" else None
    if not known or "bytes_limit" not in known:
        return most
    free = known["bytes_limit"] - known.get("bytes_in_use", 0)
    return max(1, min(most, int(SHARE * free / (COPIES * group_bytes(program)))))


def group_bytes(program: Program) -> int:
    """Return the bytes of the lanes of a group on one device, and of what a call returns."""
    jax = program.jax
    key = jax.ShapeDtypeStruct((program.tiles, program.lanes, 2), "uint32")
    start = jax.eval_shape(program.starts, key)
    every = sum(
        int(np.prod(leaf.shape)) * getattr(leaf.dtype, "itemsize", 8)
        for leaf in jax.tree.leaves(start)
    )
    return every // len(program.devices)
