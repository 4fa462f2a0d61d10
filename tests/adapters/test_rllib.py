"""RLlib's modules score through safemargin exactly as by themselves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from safemargin.errors import InvalidInput
from safemargin.policies import load_policy

pytest.importorskip("ray.rllib", exc_type=ImportError, reason="pip install 'safemargin[rllib]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib warns about itself


def _config(name: str) -> Any:
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.sac import SACConfig
    from ray.rllib.connectors.env_to_module import MeanStdFilter

    algorithm, _, extra = name.partition("-")
    off_policy = {
        "num_steps_sampled_before_learning_starts": 16,
        "train_batch_size_per_learner": 16,
    }
    on_policy = {"train_batch_size_per_learner": 100, "num_epochs": 1, "minibatch_size": 50}
    config: Any
    config, training = {
        "PPO": (PPOConfig(), on_policy),
        "APPO": (APPOConfig(), {"train_batch_size_per_learner": 50}),
        "IMPALA": (IMPALAConfig(), {"train_batch_size_per_learner": 50}),
        "DQN": (DQNConfig(), off_policy),
        "SAC": (SACConfig(), off_policy),
    }[algorithm]
    box = extra == "box" or algorithm == "SAC"
    config = config.environment("Pendulum-v1" if box else "CartPole-v1").training(**training)
    if algorithm == "PPO":
        config = config.rl_module(model_config={"fcnet_hiddens": [16]})
    if extra == "filter":
        config.env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=1).learners(num_learners=0)
    return config.debugging(seed=0)


NAMES = ["PPO", "PPO-filter", "PPO-box", "DQN", "SAC", "IMPALA", "APPO"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that trains an algorithm for a moment and saves it, once for each name."""
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    made: dict[str, Path] = {}

    def train(name: str) -> Path:
        if name not in made:
            algorithm = _config(name).build_algo()
            algorithm.train()
            made[name] = tmp_path_factory.mktemp(name) / "checkpoint"
            algorithm.save_to_path(str(made[name]))
            algorithm.stop()
        return made[name]

    yield train
    ray.shutdown()


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_module(trained: Any, adapted: Any, name: str) -> None:
    import torch
    from ray.rllib.connectors.env_to_module import EnvToModulePipeline
    from ray.rllib.core.rl_module.rl_module import RLModule
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.spaces.space_utils import unsquash_action

    checkpoint = trained(name)
    policy = load_policy(f"rllib:{checkpoint}")
    learned = checkpoint / "learner_group" / "learner" / "rl_module" / "default_policy"
    module: Any = RLModule.from_checkpoint(learned)
    module.eval()
    runner = checkpoint / "env_runner" / "env_to_module_connector"
    pipeline = EnvToModulePipeline.from_checkpoint(runner)
    for piece in pipeline.connectors:
        if hasattr(piece, "_update_stats"):
            piece._update_stats = False

    def of_the_library(observation: Any) -> Any:
        episode = SingleAgentEpisode()
        episode.add_env_reset(observation[0])
        batch = pipeline(rl_module=module, episodes=[episode], explore=False, shared_data={})
        with torch.no_grad():
            if name == "DQN":
                return module.compute_q_values(batch)["qf_preds"].numpy()
            inputs = module.forward_inference(batch)["action_dist_inputs"]
            if policy.kind == "logits":
                return inputs.numpy()
            distribution = module.get_inference_action_dist_cls().from_logits(inputs)
            if policy.kind == "actions":
                action = distribution.to_deterministic().sample().numpy()
                return unsquash_action(action[0], module.action_space)
            mean, deviation = inputs.numpy()[0]
            return np.array([[mean * 2.0], [deviation + np.log(2.0)]])  # torques lie in [−2, 2]

    exact = policy.kind != "gaussian"
    adapted(
        "ray",
        name,
        policy,
        "Pendulum-v1" if name in ("PPO-box", "SAC") else "CartPole-v1",
        of_the_library,
        tolerance=0.0 if exact else 1e-6,
    )
    assert load_policy(f"rllib:{checkpoint}").identity == policy.identity
    copied = cloudpickle.loads(cloudpickle.dumps(policy))
    probe = gym.make("Pendulum-v1" if name in ("PPO-box", "SAC") else "CartPole-v1").reset(seed=1)
    np.testing.assert_array_equal(
        copied.scores(probe[0][None])[0], policy.scores(probe[0][None])[0]
    )


def test_the_greedy_action_is_what_rllib_sends_to_the_environment(trained: Any) -> None:
    """PPO over Box: RLlib maps [−1, 1] to the space; without that it would be another agent."""
    from ray.rllib.utils.spaces.space_utils import unsquash_action

    policy = load_policy(f"rllib:{trained('PPO-box')}")
    env = gym.make("Pendulum-v1")
    seen, _ = env.reset(seed=2)
    import torch

    inputs = policy.module.forward_inference({"obs": torch.tensor(seen[None])})
    mean = inputs["action_dist_inputs"].detach().numpy()[0, :1]
    wanted = unsquash_action(mean, env.action_space)
    found = np.clip(policy.scores(seen[None])[0][0, 0], -2, 2)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_filters_are_part_of_the_agent(trained: Any) -> None:
    plain, filtered = load_policy(f"rllib:{trained('PPO')}"), trained("PPO-filter")
    with_filter = load_policy(f"rllib:{filtered}")
    seen = np.full((1, 4), 0.5, np.float32)
    before = with_filter.scores(seen)[0]
    for _ in range(3):  # frozen: nothing is learned from what is measured
        np.testing.assert_array_equal(with_filter.scores(seen)[0], before)
    with_filter.to_module.connectors.pop(0)
    assert not np.array_equal(with_filter.scores(seen)[0], before)
    assert plain.identity != with_filter.identity


def test_what_cannot_be_measured(trained: Any, tmp_path: Path) -> None:
    checkpoint = trained("PPO")
    with pytest.raises(InvalidInput, match="there is no such folder"):
        load_policy(f"rllib:{tmp_path / 'gone'}")
    with pytest.raises(InvalidInput, match="expected a folder that Algorithm.save_to_path wrote"):
        load_policy(f"rllib:{tmp_path}")
    with pytest.raises(InvalidInput, match=f"did you mean rllib:{checkpoint}"):
        load_policy(f"rllib:{checkpoint.parent}")
    with pytest.raises(InvalidInput, match="there is no module 'walker'; known: default_policy"):
        load_policy(f"rllib:{checkpoint}#walker")
    with pytest.raises(InvalidInput, match="the model gives scores of kind 'logits', not 'q'"):
        load_policy(f"rllib:{checkpoint}", kind="q")
    with pytest.raises(InvalidInput, match="RLlib's filters are in the checkpoint itself"):
        load_policy(f"rllib:{checkpoint}", normalize="none")
    old = tmp_path / "old"
    (old / "policies" / "default_policy").mkdir(parents=True)
    (old / "algorithm_state.pkl").write_bytes(b"")
    with pytest.raises(InvalidInput, match="is of RLlib's old API stack, which is not supported"):
        load_policy(f"rllib:{old}")
    two = tmp_path / "two"
    shutil.copytree(checkpoint, two)
    modules = two / "learner_group" / "learner" / "rl_module"
    shutil.copytree(modules / "default_policy", modules / "walker")
    with pytest.raises(InvalidInput, match=r"the modules default_policy, walker; name the one"):
        load_policy(f"rllib:{two}")
    seen = np.full((1, 4), 0.5, np.float32)
    walker = load_policy(f"rllib:{two}#walker")
    np.testing.assert_array_equal(
        walker.scores(seen)[0], load_policy(f"rllib:{checkpoint}").scores(seen)[0]
    )
    (modules / "walker" / "module_state.pkl").write_bytes(b"junk")
    with pytest.raises(InvalidInput, match="RLlib cannot load it"):
        load_policy(f"rllib:{two}#walker")


def test_connectors_that_look_back_or_change_actions_are_refused(trained: Any) -> None:
    from ray.rllib.connectors.common.frame_stacking import FrameStacking
    from ray.rllib.connectors.connector_v2 import ConnectorV2

    from safemargin.policies.libraries.rllib import RllibPolicy

    class Rounds(ConnectorV2):  # type: ignore[misc]
        def __call__(self, **_: Any) -> Any:
            raise NotImplementedError

    class Pieces:
        def __init__(self, *connectors: Any) -> None:
            self.connectors = connectors

    module = load_policy(f"rllib:{trained('PPO')}").module
    looks_back = FrameStacking.__new__(FrameStacking)
    with pytest.raises(InvalidInput, match="FrameStacking may depend on more than the last"):
        RllibPolicy(module, Pieces(looks_back), Pieces(), description="it")
    with pytest.raises(InvalidInput, match="the connectors Rounds change its actions and"):
        RllibPolicy(module, Pieces(), Pieces(Rounds()), description="it")


def test_one_module_of_a_run_with_several_agents(adapted: Any, tmp_path: Path) -> None:
    """Two modules, each with its own agent: the one that is named is measured."""
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.rl_module import RLModule
    from ray.rllib.env.multi_agent_env import make_multi_agent

    if not ray.is_initialized():
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    both = make_multi_agent("CartPole-v1")
    config = (
        PPOConfig()
        .environment(both, env_config={"num_agents": 2})
        .multi_agent(
            policies={"walker", "runner"},
            policy_mapping_fn=lambda agent, *_, **__: "walker" if agent == 0 else "runner",
        )
        .training(train_batch_size_per_learner=100, num_epochs=1, minibatch_size=50)
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1)
        .learners(num_learners=0)
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    algorithm.train()
    algorithm.save_to_path(str(tmp_path / "checkpoint"))
    algorithm.stop()
    with pytest.raises(InvalidInput, match=r"holds the modules runner, walker; name the one"):
        load_policy(f"rllib:{tmp_path / 'checkpoint'}")
    policies = {}
    for name in ("walker", "runner"):
        policies[name] = load_policy(f"rllib:{tmp_path / 'checkpoint'}#{name}")
        stored = tmp_path / "checkpoint" / "learner_group" / "learner" / "rl_module" / name
        module: Any = RLModule.from_checkpoint(stored)

        def of_the_library(observation: Any, module: Any = module) -> Any:
            with torch.no_grad():
                found = module.forward_inference({"obs": torch.tensor(observation)})
            return found["action_dist_inputs"].numpy()

        several = f"PPO, {name} of two agents"
        adapted("ray", several, policies[name], "CartPole-v1", of_the_library)
    assert policies["walker"].identity != policies["runner"].identity


def test_modules_with_a_memory_are_refused(tmp_path: Path) -> None:
    import ray

    if not ray.is_initialized():
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    config = _config("PPO").rl_module(model_config={"use_lstm": True, "max_seq_len": 4})
    algorithm = config.build_algo()
    algorithm.save_to_path(str(tmp_path / "checkpoint"))
    algorithm.stop()
    with pytest.raises(InvalidInput, match="a recurrent RLModule is not supported; export it to"):
        load_policy(f"rllib:{tmp_path / 'checkpoint'}")
