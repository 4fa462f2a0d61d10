"""RLlib checkpoints of the new API stack: an RLModule behind its own connectors.

A checkpoint holds pickled objects, which RLlib unpickles: name only checkpoints whose origin you
trust.
"""

from __future__ import annotations

import warnings
from operator import itemgetter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.errors import InvalidInput, MissingExtra, errors_as
from safemargin.policies.base import Memory, Observations, ScoreKind
from safemargin.policies.batching import BatchedPolicy, batch_size, checked_fixed_batch
from safemargin.policies.checks import check_by_probe, check_observation_space, same_kind
from safemargin.policies.identity import weights_identity
from safemargin.policies.observations import for_each

try:
    import torch
    from ray.rllib.connectors.connector_v2 import ConnectorV2
    from ray.rllib.connectors.env_to_module import EnvToModulePipeline
    from ray.rllib.connectors.module_to_env import ModuleToEnvPipeline
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.rl_module.rl_module import RLModule
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
except ImportError as error:
    raise MissingExtra("an RLlib checkpoint", extra="rllib") from error

from safemargin.policies.torch import module_identity, one_thread

_MODULES = "learner_group/learner/rl_module"

_DEFAULT_PIECES = {
    "AddObservationsFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch", "AgentToModuleMapping", "BatchIndividualItems", "NumpyToTensor",
}  # fmt: skip
_ONE_AT_A_TIME = {"MeanStdFilter", "FlattenObservations", "SingleAgentObservationPreprocessor"}
"""Connectors that turn one observation into another, whatever came before it in the episode."""

_TO_ENVIRONMENT = {
    "GetActions", "TensorToNumpy", "UnBatchToIndividualItems", "ModuleToAgentUnmapping",
    "RemoveSingleTsTimeRankFromBatch", "NormalizeAndClipActions", "ListifyDataForVectorEnv",
}  # fmt: skip


class RllibPolicy(BatchedPolicy):
    """Takes scores from an RLModule; observations and actions go through its own connectors.

    DQN                 q         (`compute_q_values`)
    PPO, APPO, IMPALA   logits for Discrete actions, gaussian for Box actions
    SAC                 logits for Discrete actions, actions for Box actions
    """

    def __init__(
        self,
        module: Any,
        to_module: Any,
        to_environment: Any,
        *,
        kind: ScoreKind | None = None,
        fixed_batch: int | None = 1,
        identity: str | None = None,
        description: str,
    ) -> None:
        self.description, self.module = description, module.eval()
        self.to_module = to_module
        self.fixed_batch = checked_fixed_batch(fixed_batch)
        if module.is_stateful():
            raise InvalidInput(
                f"policy {description}: a recurrent RLModule is not supported; export it to ONNX "
                "with its memory as an input and an output (agent.onnx)"
            )
        self.kind = self._kind_of_distribution()
        same_kind(self.kind, kind, description)
        _check_pieces(to_module, description)
        self._unsquash = _unsquashes(to_environment, description)
        pieces = [type(each).__name__ for each in to_module.connectors]
        self.identity = identity or weights_identity(
            [module_identity(module), *pieces, f"unsquash {self._unsquash}"],
            dict(_numbers_in(to_module.get_state())),
        )

    def _kind_of_distribution(self) -> ScoreKind:
        if hasattr(self.module, "compute_q_values") and not hasattr(self.module, "pi"):
            return "q"  # SAC computes Q values, too, but acts by its own network
        self._distribution = self.module.get_inference_action_dist_cls()
        space = self.module.action_space
        name = getattr(self._distribution, "__name__", type(self._distribution).__name__)
        kinds: dict[str, ScoreKind] = {
            "TorchCategorical": "logits",
            "TorchDiagGaussian": "gaussian",
            "TorchSquashedGaussian": "actions",
            "TorchDeterministic": "actions",
        }
        base = next((each for each in kinds if name.startswith(each)), None)
        if base is None or not isinstance(space, gym.spaces.Discrete | gym.spaces.Box):
            raise InvalidInput(
                f"policy {self.description}: expected a module with Discrete or Box actions and a "
                f"categorical or Gaussian distribution, got {name} over {space}; export it to ONNX"
            )
        return kinds[base]

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        rows = range(batch_size(observations))
        with torch.no_grad(), one_thread():
            batch = self._through_connectors(
                [for_each(observations, itemgetter(row)) for row in rows]
            )
            if self.kind == "q":
                return self.module.compute_q_values(batch)["qf_preds"].numpy(), None
            inputs = self.module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
            if self.kind == "logits":
                return inputs.numpy(), None
            if self.kind == "gaussian":
                return self._gaussian(inputs.numpy()), None
            distribution = self._distribution.from_logits(inputs)
            actions = distribution.to_deterministic().sample().numpy()
            return self._in_space(actions.reshape(len(rows), -1)), None

    def _through_connectors(self, observations: list[Any]) -> Any:
        """Return the batch that the module is given, as in RLlib's own environment runners."""
        episodes = []
        for observation in observations:
            episode = SingleAgentEpisode()
            episode.add_env_reset(observation)
            episodes.append(episode)
        return self.to_module(
            rl_module=self.module, episodes=episodes, explore=False, shared_data={}
        )

    def _gaussian(self, inputs: Any) -> Any:
        """Return mean and log standard deviation, in the units of the environment's actions."""
        mean, deviation = np.split(inputs, 2, axis=-1)
        if self._unsquash:
            deviation = deviation + np.log((self._high - self._low) / 2).astype(np.float32)
            mean = self._in_space(mean, clip=False)
        return np.stack([mean, deviation], axis=1)

    def _in_space(self, actions: Any, *, clip: bool = True) -> Any:
        """Map [−1, 1] to the action space, as RLlib does on the way to the environment."""
        if not self._unsquash:
            return actions
        scaled = self._low + (actions + 1.0) * (self._high - self._low) / 2.0
        return np.clip(scaled, self._low, self._high) if clip else scaled

    @property
    def _low(self) -> Any:
        return self.module.action_space.low.reshape(-1)

    @property
    def _high(self) -> Any:
        return self.module.action_space.high.reshape(-1)

    def check(self, env: gym.Env[Any, Any]) -> None:
        trained = self.to_module.input_observation_space
        if isinstance(trained, gym.spaces.Box):
            check_observation_space(
                self.description,
                env.observation_space,
                shape=trained.shape,
                dtype=np.dtype(trained.dtype or np.float32),
            )
        check_by_probe(self, env)


def load_rllib(text: str, **options: Any) -> RllibPolicy:
    """Return the policy in 'CHECKPOINT' or 'CHECKPOINT#MODULE'."""
    where, _, wanted = text.partition("#")
    if "normalize" in options:
        raise InvalidInput(
            f"policy rllib:{text}: VecNormalize statistics belong to Stable-Baselines3 models; "
            "RLlib's filters are in the checkpoint itself"
        )
    checkpoint = Path(where).expanduser().resolve()
    modules = checkpoint / _MODULES
    if not modules.is_dir():
        raise InvalidInput(_not_one(checkpoint, text))
    names = sorted(each.name for each in modules.iterdir() if each.is_dir())
    if not wanted and len(names) > 1:
        raise InvalidInput(
            f"policy rllib:{text}: the checkpoint holds the modules {', '.join(names)}; name the "
            f"one to measure, like rllib:{where}#{names[0]}"
        )
    name = wanted or names[0]
    if name not in names:
        raise InvalidInput(
            f"policy rllib:{text}: there is no module {name!r}; known: {', '.join(names)}"
        )
    runner = checkpoint / "env_runner"
    failure = f"policy rllib:{text}: RLlib cannot load it:"
    with errors_as(InvalidInput, failure), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # RLlib's advice to itself about older names
        module = RLModule.from_checkpoint(modules / name)
        to_module = EnvToModulePipeline.from_checkpoint(runner / "env_to_module_connector")
        back = ModuleToEnvPipeline.from_checkpoint(runner / "module_to_env_connector")
    if "AgentToModuleMapping" in map(_name, to_module.connectors):
        to_module = _of_one_agent(to_module, module, text)
    return RllibPolicy(module, to_module, back, description=f"rllib:{checkpoint}#{name}", **options)


def _not_one(checkpoint: Path, text: str) -> str:
    if not checkpoint.is_dir():
        return f"policy rllib:{text}: there is no such folder"
    if (checkpoint / "policies").is_dir() or (checkpoint / "policy_state.pkl").is_file():
        return (
            f"policy rllib:{text}: this checkpoint is of RLlib's old API stack, which is not "
            "supported; train on the new one (enable_rl_module_and_learner=True, "
            "enable_env_runner_and_connector_v2=True), or export the model to ONNX (agent.onnx)"
        )
    inside = sorted(str(each.parent.parent.parent) for each in checkpoint.glob(f"*/{_MODULES}"))
    hint = f"; did you mean rllib:{inside[-1]}?" if inside else ""
    return (
        f"policy rllib:{text}: expected a folder that Algorithm.save_to_path wrote, with "
        f"{_MODULES} in it{hint}"
    )


def _of_one_agent(pipeline: Any, module: Any, text: str) -> Any:
    """Return the connectors of a run with several agents for one agent's own observations."""
    others = [name for each in pipeline.connectors if (name := _name(each)) not in _DEFAULT_PIECES]
    if others:
        raise InvalidInput(
            f"policy rllib:{text}: the connectors {', '.join(others)} of a run with several agents "
            "cannot be restored for one of them; put them into the environment, or export the "
            "module to ONNX"
        )
    kept = [each for each in pipeline.connectors if _name(each) != "AgentToModuleMapping"]
    return EnvToModulePipeline(
        input_observation_space=module.observation_space,
        input_action_space=module.action_space,
        connectors=[_single(each) for each in kept],
    )


def _single(piece: Any) -> Any:
    if hasattr(piece, "_multi_agent"):
        piece._multi_agent = False
    return piece


def _check_pieces(pipeline: Any, description: str) -> None:
    """Freeze the filters; refuse connectors that see more than one observation."""
    for each in pipeline.connectors:
        known = {kind.__name__ for kind in type(each).__mro__}
        if not known & (_DEFAULT_PIECES | _ONE_AT_A_TIME):
            raise InvalidInput(
                f"policy {description}: the connector {_name(each)} may depend on more than the "
                "last observation, which cannot be restored at a moment; do what it does in a "
                "wrapper of the environment, or subclass SingleAgentObservationPreprocessor"
            )
        if hasattr(each, "_update_stats"):
            each._update_stats = False


def _unsquashes(pipeline: Any, description: str) -> bool:
    """Return whether actions in [−1, 1] are mapped to the action space; refuse what is unknown."""
    others = [name for each in pipeline.connectors if (name := _name(each)) not in _TO_ENVIRONMENT]
    if others:
        raise InvalidInput(
            f"policy {description}: the connectors {', '.join(others)} change its actions and "
            "cannot be restored; do what they do in a wrapper of the environment"
        )
    scalers = [each for each in pipeline.connectors if _name(each) == "NormalizeAndClipActions"]
    return any(each.normalize_actions for each in scalers)


def _name(piece: ConnectorV2) -> str:
    return type(piece).__name__


def _numbers_in(state: Any, name: str = "") -> list[tuple[str, Any]]:
    """Return the arrays and numbers of nested containers with the names that lead to them."""
    if isinstance(state, dict):
        return [pair for key, each in state.items() for pair in _numbers_in(each, f"{name}/{key}")]
    if isinstance(state, list | tuple):
        return [
            pair for key, each in enumerate(state) for pair in _numbers_in(each, f"{name}/{key}")
        ]
    array = np.asarray(state)
    return [(name, array)] if array.dtype.kind in "biuf" else []
