"""Live environments that can be saved, restored and hashed, with all their wrappers.

`spec` makes an environment from a text or a function, `simulator` and `ways` run it and take it
back to a moment, `codecs`, `objects` and `graph` save and hash the objects inside it, `atari`,
`ale`, `lean` (Atari without wrappers, fast) and `mujoco` know particular simulators, `rl_zoo` makes
the environment of a training folder, `functional` holds environments of pure functions in JAX,
`minigrid` and `pettingzoo` make the worlds of those libraries, `pygame` knows its objects, `box2d`
renews worlds, `bridge` runs an environment in another process (`bridge_child` is the other end),
`identity` hashes an environment, and `doctor` proves that all of it works. To support a new
simulator, write a `Codec` in a module of its own, like `mujoco`, and list it in `objects`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.environments.identity import environment_identity as environment_identity
    from safemargin.environments.objects import register_state as register_state
    from safemargin.environments.simulator import Simulator as Simulator
    from safemargin.environments.simulator import Snapshot as Snapshot
    from safemargin.environments.simulator import Step as Step
    from safemargin.environments.simulator import Way as Way
    from safemargin.environments.spec import EnvironmentSpec as EnvironmentSpec
    from safemargin.environments.ways import ReplaySimulator as ReplaySimulator
    from safemargin.environments.ways import SnapshotSimulator as SnapshotSimulator
    from safemargin.environments.ways import make_simulator as make_simulator
    from safemargin.environments.ways import same as same

__getattr__, __dir__, __all__ = lazy_names(__name__)
