"""Live environments that can be saved, restored and hashed, with all their wrappers.

`spec` makes an environment from a text or a function, `simulator` and `ways` run it and take it
back to a moment, `codecs`, `objects` and `graph` save and hash the objects inside it, `atari`,
`ale`, `lean` (Atari without wrappers, fast) and `mujoco` know particular simulators, `identity`
hashes an environment, and `doctor` proves that all of it works. To support a new simulator, write a
`Codec` in a module of its own, like `mujoco`, and list it in `objects`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.environments.identity import environment_identity
    from safemargin.environments.objects import register_state
    from safemargin.environments.simulator import Simulator, Snapshot, Step, Way
    from safemargin.environments.spec import EnvironmentSpec
    from safemargin.environments.ways import (
        ReplaySimulator,
        SnapshotSimulator,
        make_simulator,
        same,
    )

_HOMES = {
    "EnvironmentSpec": "spec",
    "ReplaySimulator": "ways",
    "Simulator": "simulator",
    "Snapshot": "simulator",
    "SnapshotSimulator": "ways",
    "Step": "simulator",
    "Way": "simulator",
    "environment_identity": "identity",
    "make_simulator": "ways",
    "register_state": "objects",
    "same": "ways",
}

__all__ = [
    "EnvironmentSpec",
    "ReplaySimulator",
    "Simulator",
    "Snapshot",
    "SnapshotSimulator",
    "Step",
    "Way",
    "environment_identity",
    "make_simulator",
    "register_state",
    "same",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
