"""JAX, the optional library: imported here alone, when something written in it is first used."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
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


class SharedProgram:
    """A compiled function; functions that come out as the same program are compiled only once.

    `jax.jit` compiles every function object anew, and each environment made of the same text has
    its own. What decides here is the program that the compiler would get, with all its constants,
    and the types and structure of what goes in and comes out. Functions that call Python share
    nothing: the program does not say what they call. Nor does it say on which devices it is spread,
    if on several: name them.
    """

    def __init__(self, function: Callable[..., Any], devices: Sequence[Any] = ()) -> None:
        self._own = load_jax("a program in JAX").jit(function)
        self._devices = tuple(devices)
        self._chosen: dict[Hashable, Any] = {}

    def __call__(self, *given: Any) -> Any:
        leaves, structure = load_jax("a program in JAX").tree.flatten(given)
        kinds = (structure, *map(_kind, leaves))
        if kinds not in self._chosen:
            self._chosen[kinds] = self._first_of_its_kind(given)
        return self._chosen[kinds](*given)

    def _first_of_its_kind(self, given: Any) -> Any:
        """Return the first function that came out as the same program; by default this one."""
        traced = self._own.trace(*given)
        lowered = traced.lower()
        text = lowered.as_text()
        if any(word in text for word in _CALLS_OF_PYTHON):
            return self._own
        types = str(traced.jaxpr.out_avals)
        where = (device_kind(), *self._devices)
        program = (text, types, lowered.in_tree, lowered.out_tree, where)
        found = _programs.setdefault(program, self._own)
        _programs.move_to_end(program)
        if len(_programs) > _MOST_PROGRAMS:
            _programs.popitem(last=False)
        return found


_CALLS_OF_PYTHON = ("callback", "host_transfer")
"""One of these words stands in every program that calls Python."""

_MOST_PROGRAMS = 64
"""Programs used longest ago are forgotten; who has one of them keeps it."""

_programs: OrderedDict[Hashable, Any] = OrderedDict()


def _kind(leaf: Any) -> Any:
    """Return what the compiler wants to know about an argument."""
    if not hasattr(leaf, "dtype"):
        return type(leaf)
    return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)


@functools.cache
def _available() -> bool:
    if _FLAGS not in os.environ.get("XLA_FLAGS", ""):  # read when a device is first used
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
    # A driver and its workers may share a GPU, of which JAX would take three quarters at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
    except ImportError:
        return False
    # TF32 would keep 10 bits of each factor.
    jax.config.update("jax_default_matmul_precision", "highest")
    return True
