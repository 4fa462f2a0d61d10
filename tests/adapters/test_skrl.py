"""Agents of skrl score through safemargin exactly as by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import load_policy

pytest.importorskip("skrl", reason="pip install 'safemargin[skrl]'")
pytestmark = pytest.mark.filterwarnings("ignore")


def models(name: str, space: Any, action_space: Any) -> dict[str, Any]:
    import torch
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model

    class Network(Model):  # type: ignore[misc]
        def __init__(self, outputs: int, *, takes_actions: bool = False) -> None:
            Model.__init__(self, observation_space=space, action_space=action_space, device="cpu")
            width = self.num_observations + (self.num_actions if takes_actions else 0)
            self.net = torch.nn.Sequential(
                torch.nn.Linear(width, 16), torch.nn.ReLU(), torch.nn.Linear(16, outputs)
            )
            self.takes_actions = takes_actions
            self.log_std = torch.nn.Parameter(torch.full((outputs,), -0.5))

        def compute(self, inputs: Any, role: str = "") -> Any:
            seen = inputs["observations"]
            if self.takes_actions:
                seen = torch.cat([seen, inputs["taken_actions"]], dim=1)
            found = self.net(seen)
            return found, {"log_std": self.log_std}

    class Gaussian(GaussianMixin, Network):  # type: ignore[misc]
        def __init__(self) -> None:
            Network.__init__(self, action_space.shape[0])
            GaussianMixin.__init__(self)

    class Categorical(CategoricalMixin, Network):  # type: ignore[misc]
        def __init__(self) -> None:
            Network.__init__(self, int(action_space.n))
            CategoricalMixin.__init__(self)

    class Deterministic(DeterministicMixin, Network):  # type: ignore[misc]
        def __init__(self, outputs: int, *, takes_actions: bool = False) -> None:
            Network.__init__(self, outputs, takes_actions=takes_actions)
            DeterministicMixin.__init__(self)

    if name == "DQN":
        q = int(action_space.n)
        return {"q_network": Deterministic(q), "target_q_network": Deterministic(q)}
    if name == "DDPG":
        critics = ("critic", "target_critic")
        return {
            **{each: Deterministic(1) for each in ("policy", "target_policy")},
            **{each: Deterministic(1, takes_actions=True) for each in critics},
        }
    chosen = Gaussian() if name == "PPO-box" else Categorical()
    return {"policy": chosen, "value": Deterministic(1)}


def trained(name: str) -> tuple[Any, Any]:
    import torch
    from skrl.agents.torch.ddpg import DDPG, DDPG_CFG
    from skrl.agents.torch.dqn import DQN, DQN_CFG
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.resources.preprocessors.torch import RunningStandardScaler
    from skrl.trainers.torch import SequentialTrainer

    torch.manual_seed(0)
    plain = gym.make("CartPole-v1" if name in ("DQN", "PPO") else "Pendulum-v1")
    env = wrap_env(plain, verbose=False)
    if name.startswith("PPO"):
        agent_class: Any = PPO
        config: Any = PPO_CFG(rollouts=32, learning_epochs=1, mini_batches=1)
        config.observation_preprocessor = RunningStandardScaler
        config.observation_preprocessor_kwargs = {"size": env.observation_space, "device": "cpu"}
    else:
        agent_class = DQN if name == "DQN" else DDPG
        config = (DQN_CFG if name == "DQN" else DDPG_CFG)(
            batch_size=16, learning_starts=16, random_timesteps=16
        )
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    size = 32 if name.startswith("PPO") else 64
    agent = agent_class(
        models=models(name, env.observation_space, env.action_space),
        memory=RandomMemory(memory_size=size, num_envs=1, device="cpu"),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        cfg=config,
    )
    options: Any = {"timesteps": 64, "headless": True, "disable_progressbar": True}
    SequentialTrainer(cfg=options, env=env, agents=agent).train()
    return agent, plain


@pytest.mark.parametrize("name", ["DQN", "PPO", "PPO-box", "DDPG"])
def test_scores_are_those_of_the_agent(adapted: Any, name: str, tmp_path: Path) -> None:
    import torch

    agent, env = trained(name)
    policy = load_policy(agent)
    model = agent.models["q_network" if name == "DQN" else "policy"]

    def of_the_library(observation: Any) -> Any:
        seen = torch.tensor(observation)
        if name.startswith("PPO"):
            seen = agent._observation_preprocessor(seen)
        with torch.no_grad():
            found, more = model.act({"observations": seen, "states": None}, role="policy")
            if name == "PPO":
                return model.distribution(role="policy").logits.numpy()
            if name == "PPO-box":
                mean = more["mean_actions"]
                return torch.stack([mean, more["log_std"].expand_as(mean)], dim=1).numpy()
            return found.numpy()

    adapted("skrl", name, policy, env, of_the_library)
    seen = env.reset(seed=1)[0][None]
    if name == "PPO":  # without its scaler it would be another agent
        bare = load_policy(agent)
        bare.preprocessor = None
        assert not np.array_equal(bare.scores(seen)[0], policy.scores(seen)[0])
    copied = cloudpickle.loads(cloudpickle.dumps(policy))
    np.testing.assert_array_equal(copied.scores(seen)[0], policy.scores(seen)[0])


def test_what_cannot_be_measured() -> None:
    agent, _ = trained("DQN")
    with pytest.raises(InvalidInput, match="the model gives scores of kind 'q', not 'logits'"):
        load_policy(agent, kind="logits")
    with pytest.raises(PolicyFault, match="the model could not score observations"):
        load_policy(agent).scores(np.zeros((1, 9), np.float32))
    agent.models = {}
    with pytest.raises(InvalidInput, match="expected an agent with a model called 'policy' or"):
        load_policy(agent)


def test_agents_with_a_memory_are_refused() -> None:
    agent, _ = trained("PPO")
    agent.models["policy"].get_specification = lambda: {"rnn": {"sizes": [(1, 1, 8)]}}
    with pytest.raises(InvalidInput, match="recurrent models of skrl are not supported; export it"):
        load_policy(agent)


def test_training_on_does_not_change_what_is_measured() -> None:
    import torch

    agent, env = trained("PPO")
    policy, seen = load_policy(agent), env.reset(seed=1)[0][None]
    before = policy.scores(seen)[0]
    with torch.no_grad():
        for weight in agent.models["policy"].parameters():
            weight.zero_()
        agent._observation_preprocessor.running_mean += 5
    np.testing.assert_array_equal(policy.scores(seen)[0], before)
