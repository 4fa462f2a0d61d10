"""SBX (Stable-Baselines3 in JAX) models as policies, from memory or from their .zip files.

A .zip holds pickled objects, which SBX unpickles: load only files whose origin you trust.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.jax_library import load_jax
from safemargin.errors import InvalidInput, MissingExtra, did_you_mean, errors_as
from safemargin.policies.base import Memory, Observations, ScoreKind
from safemargin.policies.batching import BatchedPolicy, checked_fixed_batch
from safemargin.policies.checks import check_by_probe, check_observation_space, same_kind
from safemargin.policies.identity import weights_identity

try:
    import sbx
except ImportError as error:
    raise MissingExtra("an SBX model", extra="sbx") from error

from safemargin.policies.loading import NO_STATISTICS
from safemargin.policies.normalisation import load_normalisation, refuse_forgotten

ALGORITHMS = {name.lower(): name for name in ("PPO", "DQN", "SAC", "TD3", "DDPG", "TQC", "CrossQ")}


class SbxPolicy(BatchedPolicy):
    """Takes scores from an SBX model; observations go through its own preprocessing.

    DQN                           q
    PPO                           logits for Discrete actions, gaussian for Box actions
    SAC, TD3, DDPG, TQC, CrossQ   actions
    """

    def __init__(
        self,
        model: Any,
        *,
        kind: ScoreKind | None = None,
        fixed_batch: int | None = 1,
        identity: str | None = None,
        description: str,
        normalisation: Any = None,
    ) -> None:
        self.description, self.policy = description, model.policy
        self.fixed_batch = checked_fixed_batch(fixed_batch)
        self.normalisation = normalisation
        self.algorithm, space = type(model).__name__, model.action_space
        if self.algorithm == "DQN":
            self.kind = "q"
        elif self.algorithm != "PPO":
            self.kind = "actions"
        elif isinstance(space, gym.spaces.Discrete | gym.spaces.Box):
            self.kind = "logits" if isinstance(space, gym.spaces.Discrete) else "gaussian"
        else:
            raise InvalidInput(
                f"policy {description}: SBX's PPO is supported with Discrete and Box actions, not "
                f"with {space}; export it to ONNX"
            )
        same_kind(self.kind, kind, description)
        self.state = self.policy.qf_state if self.kind == "q" else self.policy.actor_state
        self._compiled: Any = None
        leaves = load_jax(description).tree_util.tree_flatten_with_path(self.state.params)[0]
        arrays = {str(where): np.asarray(leaf) for where, leaf in leaves}
        self.identity = identity or weights_identity([self.algorithm, self.kind], arrays)
        if identity is None and normalisation is not None:
            self.identity = normalisation.identity(self.identity)

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        if self.normalisation is not None:
            observations = self.normalisation(observations)
        if self.kind == "actions":
            actions, _ = self.policy.predict(observations, deterministic=True)
            return actions.reshape(len(actions), -1), None
        if self._compiled is None:
            self._compiled = load_jax(f"policy {self.description}").jit(self._applied)
        inputs, _ = self.policy.prepare_obs(observations)
        found = self._compiled(self.state.params, inputs)
        if self.kind == "gaussian":
            mean, deviation = map(np.asarray, found)
            return np.stack([mean, np.log(deviation)], axis=1), None
        return np.asarray(found), None

    def _applied(self, params: Any, inputs: Any) -> Any:
        """Return Q values, logits or (mean, standard deviation)."""
        found = self.state.apply_fn(params, inputs)
        if self.kind == "gaussian":
            return found.mean(), found.stddev()
        return found if self.kind == "q" else found.logits_parameter()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}

    def check(self, env: gym.Env[Any, Any]) -> None:
        trained = self.policy.observation_space
        if isinstance(trained, gym.spaces.Box) and len(trained.shape) == 1:
            check_observation_space(
                self.description,
                env.observation_space,
                shape=trained.shape,
                dtype=np.dtype(trained.dtype or np.float32),
            )
        check_by_probe(self, env)


def load_sbx(text: str, *, normalize: Any = None, **options: Any) -> SbxPolicy:
    """Return the policy in 'model.zip' or 'ALGORITHM:model.zip'."""
    named, colon, file = text.rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file():
        raise InvalidInput(f"policy sbx:{text}: there is no file {path}")
    if normalize is None:
        refuse_forgotten(path)
    key = (named if colon else _algorithm_of(path)).lower()
    if key not in ALGORITHMS:
        raise InvalidInput(
            f"policy sbx:{text}: the algorithm {key!r} is unknown; {did_you_mean(key, ALGORITHMS)}"
        )
    with errors_as(InvalidInput, f"policy sbx:{text}: SBX cannot load it as {ALGORITHMS[key]}:"):
        model = getattr(sbx, ALGORITHMS[key]).load(path)
    description, normalisation = f"sbx:{path}", None
    if normalize not in (None, False, NO_STATISTICS):
        normalisation = load_normalisation(Path(normalize).expanduser(), model, description)
        if normalisation.changes_nothing:
            normalisation = None
    return SbxPolicy(model, **options, description=description, normalisation=normalisation)


def _algorithm_of(path: Path) -> str:
    """Find the algorithm of a .zip file from the JSON in it; nothing is unpickled."""
    with errors_as(InvalidInput, f"policy sbx:{path}: not a file that SBX saved:"):
        with zipfile.ZipFile(path) as archive:
            policy_class = json.loads(archive.read("data"))["policy_class"]
        module = str(policy_class["__module__"])
    if not module.startswith("sbx."):
        raise InvalidInput(
            f"policy sbx:{path}: was saved by {module.partition('.')[0]}, not by SBX; name it "
            "without 'sbx:'"
        )
    return module.split(".")[1]
