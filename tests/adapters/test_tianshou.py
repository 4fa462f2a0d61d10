"""Policies of Tianshou 2 score through safemargin exactly as by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import load_policy

pytest.importorskip("tianshou", reason="pip install 'safemargin[tianshou]'")
pytestmark = pytest.mark.filterwarnings("ignore")


def build(name: str) -> Any:
    """An algorithm with a small network, as Tianshou's examples build it."""
    import torch
    from tianshou.algorithm import DDPG, DQN, PPO, SAC
    from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.modelfree.reinforce import (
        DiscreteActorPolicy,
        ProbabilisticActorPolicy,
    )
    from tianshou.algorithm.modelfree.sac import SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import (
        ContinuousActorDeterministic,
        ContinuousActorProbabilistic,
        ContinuousCritic,
    )
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    torch.manual_seed(0)
    env = gym.make("CartPole-v1" if name in ("DQN", "PPO") else "Pendulum-v1")
    space: Any = env.action_space
    shape = env.observation_space.shape
    optimizer = AdamOptimizerFactory(lr=1e-3)

    def net(concat: bool = False) -> Any:
        more = {"action_shape": space.shape, "concat": True} if concat else {}
        return Net(state_shape=shape, hidden_sizes=[16], **more)

    if name == "DQN":
        model = Net(state_shape=shape, action_shape=space.n, hidden_sizes=[16])
        policy: Any = DiscreteQLearningPolicy(
            model=model, action_space=space, observation_space=env.observation_space
        )
        return DQN(policy=policy, optim=optimizer, target_update_freq=10), env
    if name == "PPO":
        body = net()
        policy = DiscreteActorPolicy(
            actor=DiscreteActor(preprocess_net=body, action_shape=space.n, softmax_output=False),
            action_space=space,
        )
        critic = DiscreteCritic(preprocess_net=body)
        return PPO(policy=policy, critic=critic, optim=optimizer), env
    if name == "PPO-box":
        actor = ContinuousActorProbabilistic(
            preprocess_net=net(), action_shape=space.shape, unbounded=True
        )
        policy = ProbabilisticActorPolicy(
            actor=actor,
            dist_fn=lambda given: torch.distributions.Independent(
                torch.distributions.Normal(*given), 1
            ),
            action_space=space,
            action_scaling=True,
            action_bound_method="clip",
        )
        return PPO(
            policy=policy, critic=ContinuousCritic(preprocess_net=net()), optim=optimizer
        ), env
    critic = ContinuousCritic(preprocess_net=net(concat=True))
    if name == "DDPG":
        actor = ContinuousActorDeterministic(
            preprocess_net=net(), action_shape=space.shape, max_action=1
        )
        policy = ContinuousDeterministicPolicy(actor=actor, action_space=space, action_scaling=True)
        return DDPG(
            policy=policy, policy_optim=optimizer, critic=critic, critic_optim=optimizer
        ), env
    actor = ContinuousActorProbabilistic(
        preprocess_net=net(), action_shape=space.shape, unbounded=True, conditioned_sigma=True
    )
    policy = SACPolicy(actor=actor, action_space=space, action_scaling=True)
    return SAC(policy=policy, policy_optim=optimizer, critic=critic, critic_optim=optimizer), env


def trained(name: str) -> Any:
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv

    algorithm, env = build(name)
    envs = DummyVectorEnv([lambda: gym.make(env.spec.id)])
    buffer = VectorReplayBuffer(256, 1)
    collector: Any = Collector(algorithm.policy, envs, buffer)
    collector.reset()
    collector.collect(n_step=64)
    from tianshou.utils.torch_utils import policy_within_training_step

    with policy_within_training_step(algorithm.policy):
        if name.startswith("PPO"):
            algorithm.update(buffer=buffer, batch_size=32, repeat=1)
        else:
            algorithm.update(buffer=buffer, sample_size=32)
    return algorithm, env


@pytest.mark.parametrize("name", ["DQN", "PPO", "PPO-box", "DDPG", "SAC"])
def test_scores_are_those_of_the_policy(adapted: Any, tmp_path: Path, name: str) -> None:
    import cloudpickle
    import torch
    from tianshou.data import Batch

    algorithm, env = trained(name)
    if name == "PPO-box":  # a lambda in it cannot be pickled
        policy = load_policy(algorithm)
    else:
        torch.save(algorithm.policy, tmp_path / "policy.pt")
        policy = load_policy(f"tianshou:{tmp_path / 'policy.pt'}")
        assert policy.identity == load_policy(algorithm.policy).identity
    theirs: Any = algorithm.policy.eval()

    def of_the_library(observation: Any) -> Any:
        with torch.no_grad():
            found = theirs(Batch(obs=observation, info=Batch()))
        if name == "DQN":
            return found.logits.numpy()
        if name == "PPO":
            return found.dist.logits.numpy()
        if name == "PPO-box":
            normal = found.dist.base_dist  # torques lie in [−2, 2]
            low, high = env.action_space.low, env.action_space.high
            mean = low + (high - low) * (normal.mean.numpy() + 1.0) / 2.0
            return np.stack([mean, normal.stddev.log().numpy() + np.log((high - low) / 2)], axis=1)
        return theirs.map_action(found.act.numpy())

    adapted("tianshou", name, policy, env, of_the_library)
    seen = env.reset(seed=1)[0]
    copied = cloudpickle.loads(cloudpickle.dumps(policy))
    np.testing.assert_array_equal(copied.scores(seen[None])[0], policy.scores(seen[None])[0])
    if name == "PPO-box":
        mode = theirs(Batch(obs=seen[None], info=Batch())).dist.mode.detach().numpy()
        acts = theirs.map_action(mode)
        greedy = np.clip(policy.scores(seen[None])[0][0, 0], -2, 2)
        np.testing.assert_allclose(greedy, acts[0], rtol=1e-6)


def test_it_acts_as_tianshou_evaluates_it() -> None:
    """Sampled or with some exploration where the policy says so, and never by a random draw."""
    import torch
    from tianshou.algorithm.modelfree.sac import SACPolicy

    from safemargin.environments.doctor.returns import settings_for

    dqn, _ = build("DQN")
    assert settings_for(load_policy(dqn), None).action_choice == "greedy"
    dqn.policy.set_eps_inference(0.1)
    exploring = settings_for(load_policy(dqn), None)
    assert (exploring.action_choice, exploring.epsilon) == ("epsilon-greedy", 0.1)
    ppo, _ = build("PPO")
    assert settings_for(load_policy(ppo), None).action_choice == "sampled"
    ppo.policy.deterministic_eval = True
    assert settings_for(load_policy(ppo), None).action_choice == "greedy"
    sac, env = build("SAC")
    seen = env.reset(seed=1)[0][None]
    wanted = load_policy(sac).scores(seen)[0]
    sac.policy.deterministic_eval = False
    np.testing.assert_array_equal(load_policy(sac).scores(seen)[0], wanted)

    class Own(SACPolicy):  # squashed, whatever its name
        pass

    sac.policy.__class__ = Own
    policy = load_policy(sac)
    np.testing.assert_array_equal(policy.scores(seen)[0], wanted)
    with torch.no_grad():
        for weight in sac.policy.parameters():
            weight.zero_()  # training goes on, but what is measured stays
    np.testing.assert_array_equal(policy.scores(seen)[0], wanted)


def test_q_values_are_those_that_it_acts_by(adapted: Any) -> None:
    """FQF weighs its quantiles, so their plain mean would be another agent."""
    from tianshou.algorithm.modelfree.fqf import FQFPolicy
    from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
    from tianshou.data import Batch
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import FractionProposalNetwork, FullQuantileFunction

    env = gym.make("CartPole-v1")
    body = Net(state_shape=(4,), action_shape=8, hidden_sizes=[8])
    policy = FQFPolicy(
        model=FullQuantileFunction(
            preprocess_net=body, action_shape=2, hidden_sizes=[8], num_cosines=8
        ),
        fraction_model=FractionProposalNetwork(4, 8),
        action_space=env.action_space,
        observation_space=env.observation_space,
    ).eval()
    ours = load_policy(policy)
    for seed in range(50):
        seen = env.reset(seed=seed)[0][None] * 40
        acts = policy(Batch(obs=seen, info=Batch())).act
        assert ours.scores(seen)[0].argmax() == acts[0]

    class Contrary(QRDQNPolicy):
        def forward(self, *given: Any, **more: Any) -> Any:
            found = super().forward(*given, **more)
            found.act = 1 - found.act
            return found

    network = Net(state_shape=(4,), action_shape=2, hidden_sizes=[8], num_atoms=5)
    contrary = Contrary(model=network, action_space=env.action_space)
    with pytest.raises(PolicyFault, match="does not take the action of the greatest Q value"):
        load_policy(contrary).scores(seen)


def test_policies_with_a_memory_are_refused() -> None:
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.utils.net.common import Recurrent

    env = gym.make("CartPole-v1")
    network = Recurrent(layer_num=1, state_shape=(4,), action_shape=2, hidden_layer_size=8)
    policy = DiscreteQLearningPolicy(model=network, action_space=env.action_space)
    with pytest.raises(InvalidInput, match="recurrent policies of Tianshou are not supported"):
        load_policy(policy).check(env)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "policy.pt"
    with pytest.raises(InvalidInput, match="there is no such file"):
        load_policy(f"tianshou:{path}")
    algorithm, _ = build("DQN")
    torch.save(algorithm.policy.state_dict(), path)
    with pytest.raises(InvalidInput, match="holds a OrderedDict, not a whole policy; save it with"):
        load_policy(f"tianshou:{path}")
    with pytest.raises(InvalidInput, match="VecNormalize statistics belong to"):
        load_policy(f"tianshou:{path}", normalize="none")
    path.write_bytes(b"junk")
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        load_policy(f"tianshou:{path}")
    with pytest.raises(InvalidInput, match="the model gives scores of kind 'q', not 'logits'"):
        load_policy(algorithm, kind="logits")
