"""MuJoCo's simulation as part of a snapshot: the whole MjData, not just positions and velocities.

Those are not enough for an exact continuation: the solver starts from its last solution, and tasks
read quantities that were computed before the last substep.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

from safemargin.environments.codecs import Codec, Reference
from safemargin.errors import EnvironmentFault

_SPARES_KEPT = 16
_MODELS_KEPT = 4


class _Copy:
    """A copy of an MjData. Its memory is reused, because allocating one costs several steps."""

    def __init__(self, source: Any, spares: list[Any]) -> None:
        if not hasattr(mujoco, "mj_copyData"):
            raise EnvironmentFault(
                f"MuJoCo {mujoco.__version__} cannot copy a simulation, MuJoCo 3.5 can: "
                "pip install --no-deps mujoco==3.5.0"
            )
        self.data = spares.pop() if spares else mujoco.MjData(source.model)
        self._spares = spares
        mujoco.mj_copyData(self.data, source.model, source)

    def __del__(self, kept: int = _SPARES_KEPT) -> None:  # at exit, the constant may be gone
        spares = getattr(self, "_spares", None)
        if spares is not None and len(spares) < kept:
            spares.append(self.data)


class SimulationState(Codec):
    """An MjData, copied completely."""

    mutable = True

    def __init__(self) -> None:
        self._spares_of: Callable[[Any], list[Any]]
        self._spares_of = functools.lru_cache(_MODELS_KEPT)(lambda model: [])

    def content(self, value: Any) -> Any:
        return _Copy(value, self._spares_of(value.model))

    def restore(self, value: Any, content: Any) -> None:
        mujoco.mj_copyData(value, value.model, content.data)

    def encode(self, value: Any, reference: Reference) -> Any:
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(value.model, kind))
        mujoco.mj_getState(value.model, value, state, kind)
        return (state.tobytes(), value.xpos.tobytes(), value.cfrc_ext.tobytes())
