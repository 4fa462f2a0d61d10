"""Live environments that can be saved, restored and hashed, with all their wrappers."""

from safemargin.environments.identity import ActionSource, environment_identity
from safemargin.environments.objects import register_state
from safemargin.environments.simulator import Simulator, Snapshot, Step, Way
from safemargin.environments.spec import EnvironmentSpec
from safemargin.environments.ways import ReplaySimulator, SnapshotSimulator, make_simulator, same

__all__ = [
    "ActionSource",
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
