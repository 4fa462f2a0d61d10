"""JAX, the optional library: imported here alone, when something written in it is first used."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

from safemargin.errors import EngineFault, MissingExtra

TILES = {"cpu": 64}
"""How many lanes run in one program, for each kind of device; see `tile`."""

TILE_OF_ACCELERATORS = 4096

_FLAGS = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
"""Otherwise a GPU's kernels are chosen by timing them, and two runs may add up in two orders."""


def load_jax(purpose: str) -> Any:
    """Return the module `jax`; MissingExtra says what is impossible without it."""
    if not _available():
        raise MissingExtra(purpose, extra="jax")
    import jax

    return jax


def tile() -> int:
    """Return how many observations, or lanes, are computed at once on this kind of device.

    Programs of one fixed shape give the same bits however many of them run.
    """
    return TILES.get(device_kind(), TILE_OF_ACCELERATORS)


def device_kind() -> str:
    """Return the kind of the default device: 'cpu', 'gpu' or 'tpu'."""
    jax = load_jax("a program in JAX")
    chosen = jax.config.jax_default_device
    return str(jax.default_backend() if chosen is None else chosen.platform)


def devices(kind: str | None = None) -> list[Any]:
    """Return the devices of a kind, by default the best there are, and compute on them from now on.

    EngineFault if there are none.
    """
    jax = load_jax("engine 'jax'")
    if kind is None:
        return list(jax.local_devices())
    try:
        found = list(jax.local_devices(backend=kind))
        jax.config.update("jax_default_device", found[0])
        return found
    except RuntimeError:
        there = jax.default_backend()
        raise EngineFault(
            f"there is no {kind.upper()} that JAX can use here, only {there!r}: leave --device "
            "out, or install JAX for it (pip install 'jax[cuda13]')"
        ) from None


def on_processor() -> contextlib.AbstractContextManager[Any]:
    """Compute on the processor inside, where single steps are faster than sent to an accelerator.

    Scores are not computed there: they would differ in the last bits.
    """
    return load_jax("a step in JAX").default_device(_processor())  # type: ignore[no-any-return]


@functools.cache
def _processor() -> Any:
    """Return the processor as JAX sees it; None where JAX was told not to use it."""
    try:
        return load_jax("a step in JAX").local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


@functools.cache
def _available() -> bool:
    if _FLAGS not in os.environ.get("XLA_FLAGS", ""):  # read when a device is first used
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
    try:
        import jax
    except ImportError:
        return False
    # TF32 would keep 10 bits of each factor.
    jax.config.update("jax_default_matmul_precision", "highest")
    return True
