"""Stable-Baselines3 and sb3-contrib models as policies, from memory or from their .zip files.

A .zip holds pickled objects, which the library unpickles when it loads them: load only files
whose origin you trust.
"""

from __future__ import annotations

import importlib
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.errors import InvalidInput, MissingExtra, PolicyFault, did_you_mean, errors_as
from safemargin.policies.action_spaces import joint_logits, parts_of
from safemargin.policies.base import (
    Features,
    Memory,
    NotNormalised,
    Observations,
    ScoreKind,
    batch_of,
    for_each,
)
from safemargin.policies.batching import BatchedPolicy, batch_size, checked_fixed_batch
from safemargin.policies.checks import check_by_probe, check_observation_space
from safemargin.policies.critics import Critics
from safemargin.policies.loading import NO_STATISTICS
from safemargin.policies.normalisation import (
    Normalisation,
    load_normalisation,
    refuse_forgotten,
)
from safemargin.policies.proxies import Proxy

try:
    import torch
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.preprocessing import is_image_space
except ImportError as error:
    raise MissingExtra("a Stable-Baselines3 model", extra="sb3") from error

from safemargin.policies.torch import last_hidden, layers_watched, module_identity, one_thread

_LIBRARIES = {
    "stable_baselines3": ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3"),
    "sb3_contrib": ("ARS", "CrossQ", "MaskablePPO", "QRDQN", "RecurrentPPO", "TQC", "TRPO"),
}
ALGORITHMS = {
    name.lower(): (library, name) for library, names in _LIBRARIES.items() for name in names
}
"""The algorithms by lower-case name: their library and their class."""

_NETWORKS: dict[str, ScoreKind] = {"q_net": "q", "quantile_net": "q", "actor": "actions"}
"""The network that acts, where critics and target networks stand beside it, and its scores."""

_POLICY_MODULES = {
    "stable_baselines3.dqn.policies": "dqn",
    "stable_baselines3.sac.policies": "sac",
    "stable_baselines3.td3.policies": "td3",
    "sb3_contrib.ars.policies": "ars",
    "sb3_contrib.crossq.policies": "crossq",
    "sb3_contrib.qrdqn.policies": "qrdqn",
    "sb3_contrib.tqc.policies": "tqc",
    "sb3_contrib.common.maskable.policies": "maskableppo",
    "sb3_contrib.common.recurrent.policies": "recurrentppo",
}


def _no_learning(_: float) -> float:
    """A learning-rate schedule for a model that is not trained any further."""
    return 0.0


_NOT_NEEDED = {
    # Training state that is not needed to act: schedules are compiled code that another
    # Python version may not read, and a replay buffer of full size may not fit into memory.
    "lr_schedule": _no_learning,
    "learning_rate": 0.0,
    "clip_range": _no_learning,
    "clip_range_vf": None,
    "exploration_schedule": _no_learning,
    "buffer_size": 1,
    "replay_buffer_class": None,
    "replay_buffer_kwargs": {},
    "optimize_memory_usage": False,
    "ep_success_buffer": None,
    "_last_obs": None,
    "_last_original_obs": None,
    "_last_episode_starts": None,
}


class Sb3Policy(BatchedPolicy):
    """Takes scores from a Stable-Baselines3 model; observations go through its own preprocessing.

    DQN, QR-DQN            q         (QR-DQN: the mean over quantiles)
    A2C, PPO, TRPO, …      logits for Discrete actions, gaussian for Box actions
    SAC, TD3, CrossQ, …    actions   (the deterministic action; ARS: with Box actions)
    """

    def __init__(
        self,
        model: BaseAlgorithm,
        *,
        kind: ScoreKind | None = None,
        fixed_batch: int | None = 1,
        identity: str | None = None,
        description: str | None = None,
        normalize: Any = None,
    ) -> None:
        """`normalize`: a statistics file, a VecNormalize, or False for a policy trained without."""
        self.algorithm = type(model).__name__
        self.description = description or f"a {self.algorithm} model"
        self.policy: Any = _copy_of_policy(model)
        self.fixed_batch = checked_fixed_batch(fixed_batch)
        network = next((name for name in _NETWORKS if hasattr(self.policy, name)), None)
        self.network: Any = getattr(self.policy, network) if network else self.policy
        self.kind = _NETWORKS[network] if network else self._kind_of_distribution()
        if kind is not None and kind != self.kind:
            raise InvalidInput(
                f"policy {self.description}: {self.algorithm} gives scores of kind "
                f"{self.kind!r}, not {kind!r}"
            )
        self.recurrent = hasattr(self.policy, "lstm_actor")
        self.uses_mask = self.algorithm == "MaskablePPO"
        self.normalisation = self._find_normalisation(model, normalize)
        self.identity = identity or module_identity(self.network)
        if self.normalisation is not None:
            if identity is None:
                self.identity = self.normalisation.identity(self.identity)
            if isinstance(normalize, str | Path):
                self.description += f", normalised with {Path(normalize).name}"
        self.trained_returns = _trained_returns(model)
        self.exploration = float(getattr(model, "exploration_rate", 0.0))

    def _find_normalisation(self, model: BaseAlgorithm, given: Any) -> Normalisation | None:
        """Return what normalises the observations, None where nothing does."""
        if given is None:
            normaliser = model.get_vec_normalize_env()
            if normaliser is not None and normaliser.norm_obs:
                warnings.warn(
                    f"policy {self.description}: trained under VecNormalize, but its statistics "
                    "are not used; pass normalize=model.get_vec_normalize_env(), or normalize="
                    "False if the environment normalises observations itself",
                    NotNormalised,
                    stacklevel=3,
                )
            return None
        if given is False or given == NO_STATISTICS:
            return None
        if isinstance(given, str | Path):
            found = load_normalisation(Path(given).expanduser(), model, self.description)
        else:
            found = Normalisation(given)
        return None if found.changes_nothing else found

    def _kind_of_distribution(self) -> ScoreKind:
        space = self.policy.action_space
        if self.algorithm == "ARS" and isinstance(space, gym.spaces.Box):
            return "actions"
        if self.algorithm == "ARS":
            raise InvalidInput(
                f"policy {self.description}: ARS models are supported with Box actions, not with "
                f"{space}, for which they give no scores; if its network's outputs are to be taken "
                "as scores, name a function that makes that network, as 'file.py:function'"
            )
        if not hasattr(self.policy, "get_distribution"):
            raise InvalidInput(
                f"policy {self.description}: {self.algorithm} models are not supported; "
                f"supported: {', '.join(name for _, name in ALGORITHMS.values())}"
            )
        if parts_of(space):
            return "logits"
        if isinstance(space, gym.spaces.Box) and not self.policy.squash_output:
            return "gaussian"
        raise InvalidInput(
            f"policy {self.description}: expected a model with Discrete, MultiDiscrete, "
            f"MultiBinary or (unsquashed) Box actions, got {space}"
        )

    def initial_memory(self, batch: int) -> Memory:
        if not self.recurrent:
            return None
        layers, _, hidden = self.policy.lstm_hidden_state_shape
        return tuple(np.zeros((batch, layers, hidden), np.float32) for _ in range(2))

    def evaluate_features(self, observations: Observations, memory: Memory) -> Features:
        with layers_watched(self.policy) as seen:
            scores, after = self.evaluate(observations, memory)
        value = None
        if self.kind in ("logits", "gaussian") and not self.recurrent:
            inputs = self._inputs(observations)
            with torch.no_grad(), one_thread():
                value = self.policy.predict_values(inputs).reshape(-1).cpu().numpy()
        return Features(scores, after, last_hidden(seen, batch_size(observations)), value)

    def _inputs(self, observations: Observations) -> Any:
        """Return the network's input: normalised, as tensors of their own."""
        if self.normalisation is not None:
            observations = self.normalisation(observations)
        inputs, _ = self.policy.obs_to_tensor(observations)
        # Copies: kernels may treat memory that begins at an odd address differently.
        return for_each(inputs, torch.clone)

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        with torch.no_grad(), one_thread():
            if self.kind == "actions":
                if self.normalisation is not None:
                    observations = self.normalisation(observations)
                actions, _ = self.policy.predict(observations, deterministic=True)
                return actions.reshape(len(actions), -1), None
            inputs = self._inputs(observations)
            if self.kind == "q":
                values = self.network(inputs)
                if hasattr(self.policy, "quantile_net"):
                    values = values.mean(dim=1)
                return values.cpu().numpy(), None
            if self.recurrent:
                distribution, memory = self._recurrent_distribution(inputs, memory)
            else:
                distribution = self.policy.get_distribution(inputs)
            if self.kind == "logits":
                return _logits(distribution), memory
            distribution = distribution.distribution
            gaussian = torch.stack([distribution.mean, distribution.stddev.log()], dim=1)
            return gaussian.cpu().numpy(), memory

    def _recurrent_distribution(self, inputs: Any, memory: Memory) -> tuple[Any, Memory]:
        if memory is None:
            raise PolicyFault(f"policy {self.description}: a recurrent policy needs its memory")
        # [batch, layers, hidden] here, [layers, batch, hidden] there
        states = tuple(torch.tensor(array).transpose(0, 1).contiguous() for array in memory)
        # The memory of a new episode is zero already, so no row is marked as a start.
        starts = torch.zeros(len(memory[0]))
        distribution, after = self.policy.get_distribution(inputs, states, starts)
        return distribution, tuple(
            state.transpose(0, 1).contiguous().cpu().numpy() for state in after
        )

    def own_proxies(self) -> tuple[Proxy, ...]:
        if self.kind != "actions" or not hasattr(self.policy, "critic"):
            return ()
        return Critics(self.action_values, self.policy.action_space).proxies(
            self.policy.critic.n_critics
        )

    def action_values(
        self,
        observation: Any,
        actions: npt.NDArray[np.float32],  # [actions, dimensions]
    ) -> npt.NDArray[np.float32]:
        """Return what each critic expects of each action here, [actions, critics].

        For TQC it is the mean over the quantiles of a critic.
        """
        observations = batch_of([observation] * len(actions))
        shaped = actions.reshape(-1, *self.policy.action_space.shape)
        scaled = self.policy.scale_action(shaped).reshape(actions.shape).astype(np.float32)
        with torch.no_grad(), one_thread():
            values = self.policy.critic(self._inputs(observations), torch.tensor(scaled))
            # One tensor [actions, 1] for each critic, or for TQC one [actions, critics, quantiles].
            joined = torch.cat(values, dim=1) if isinstance(values, tuple) else values.mean(dim=2)
            return np.asarray(joined.cpu().numpy())

    def check(self, env: gym.Env[Any, Any]) -> None:
        trained, space = self.policy.observation_space, env.observation_space
        if isinstance(trained, gym.spaces.Dict):
            if not isinstance(space, gym.spaces.Dict) or set(trained.spaces) - set(space.spaces):
                raise PolicyFault(
                    f"policy {self.description}: expected Dict observations with "
                    f"{', '.join(trained.spaces)}, got {space} from the environment"
                )
        else:
            shape = tuple(trained.shape or ())
            last_first = (*shape[1:], *shape[:1])
            # Stable-Baselines3 puts the channels of images first by itself.
            if is_image_space(trained) and space.shape == last_first:
                shape = last_first
            check_observation_space(
                self.description, space, shape=shape, dtype=np.dtype(trained.dtype)
            )
        check_by_probe(self, env)


def _copy_of_policy(model: BaseAlgorithm) -> Any:
    """Copy the policy alone: training the model further does not change the copy.

    It is built again in the way the algorithm does, because a policy in use keeps tensors that can
    neither be copied nor sent to another process.
    """
    options = dict(model.policy_kwargs)
    schedule = () if type(model).__name__ == "ARS" else (_no_learning,)  # ARS takes none
    if getattr(model, "use_sde", False):
        options["use_sde"] = True
    with torch.random.fork_rng(devices=[]):  # the initial weights are random, and are replaced
        policy: Any = model.policy_class(
            model.observation_space, model.action_space, *schedule, **options
        )
    policy.load_state_dict(model.policy.state_dict())
    policy.to("cpu")
    policy.set_training_mode(False)
    return policy


def _logits(chosen: Any) -> npt.NDArray[np.float32]:
    """Return the logits of all actions, from the library's distribution over one or several."""
    several = getattr(chosen, "distributions", None)  # MaskablePPO, of several parts
    if several is None:
        several = chosen.distribution
    if isinstance(several, torch.distributions.Bernoulli):  # of each bit: that of 1, where 0 has 0
        columns = several.logits.cpu().numpy().T
        return joint_logits([np.stack([0 * one, one], axis=1) for one in columns])
    if isinstance(several, torch.distributions.Categorical):
        return np.asarray(several.logits.cpu().numpy())
    parts = [one.logits.cpu().numpy() for one in several]
    return parts[0] if len(parts) == 1 else joint_logits(parts)


def _trained_returns(model: BaseAlgorithm) -> tuple[float, ...]:
    """Return the returns of the last training episodes, as far as the model remembers them."""
    episodes = getattr(model, "ep_info_buffer", None) or ()
    returns = [float(each["r"]) for each in episodes if isinstance(each, dict) and "r" in each]
    return tuple(value for value in returns if np.isfinite(value))


def is_sb3_model(value: Any) -> bool:
    """Whether an object is a Stable-Baselines3 model."""
    return isinstance(value, BaseAlgorithm)


def load_sb3(path: Path, *, algorithm: str | None = None, **options: Any) -> Sb3Policy:
    """Return the policy in a model's .zip file, which Stable-Baselines3 unpickles.

    The options are those of `Sb3Policy`.
    """
    if options.get("normalize") is None:
        refuse_forgotten(path)
    name = find_algorithm(path) if algorithm is None else algorithm
    key = name.lower().replace("-", "").replace("_", "")
    if key not in ALGORITHMS:
        raise InvalidInput(
            f"policy {path}: the algorithm {name!r} is unknown; {did_you_mean(key, ALGORITHMS)}"
        )
    library, class_name = ALGORITHMS[key]
    try:
        loader = getattr(importlib.import_module(library), class_name)
    except (ImportError, AttributeError) as error:  # missing, or too old to have the algorithm
        raise MissingExtra(f"a {class_name} model", extra="sb3") from error
    failure = f"policy {path}: Stable-Baselines3 cannot load it as {class_name}:"
    with errors_as(InvalidInput, failure):
        model = loader.load(path, device="cpu", custom_objects=dict(_NOT_NEEDED))
    return Sb3Policy(model, description=str(path), **options)


def find_algorithm(path: Path) -> str:
    """Find the algorithm of a .zip file from the JSON in it; nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InvalidInput(
            f"policy {path}: not a file that Stable-Baselines3 saved ({error})"
        ) from error
    policy_class = data.get("policy_class")
    module = policy_class.get("__module__") if isinstance(policy_class, dict) else None
    if module in _POLICY_MODULES:
        return _POLICY_MODULES[module]
    if str(module).startswith("sbx."):
        raise InvalidInput(f"policy {path}: was saved by SBX; name it as 'sbx:{path}'")
    # Algorithms that share a policy class differ in options that only one of them has.
    if "cg_max_steps" in data:
        return "trpo"
    if "n_epochs" in data and "clip_range" in data:
        return "ppo"
    if "exploration_fraction" in data:
        return "dqn"
    if "gae_lambda" in data:
        return "a2c"
    raise InvalidInput(
        f"policy {path}: the file does not say which algorithm made it; name it as 'sb3:ppo:{path}'"
    )
