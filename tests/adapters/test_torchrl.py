"""Modules of TorchRL score through safemargin exactly as by themselves."""

from __future__ import annotations

from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import load_policy

pytest.importorskip("torchrl", reason="pip install 'safemargin[torchrl]'")
pytestmark = pytest.mark.filterwarnings("ignore")


def build(name: str) -> Any:
    import torch
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torch import nn
    from torchrl.data import OneHot
    from torchrl.modules import MLP, Actor, ProbabilisticActor, QValueActor, TanhNormal

    torch.manual_seed(0)
    if name == "DQN":
        network = MLP(in_features=4, out_features=2, num_cells=[16])
        return QValueActor(network, in_keys=["observation"], spec=OneHot(2))
    if name == "DDPG":
        network = nn.Sequential(MLP(in_features=3, out_features=1, num_cells=[16]), nn.Tanh())
        return Actor(network, in_keys=["observation"])
    if name == "PPO":
        inner = TensorDictModule(
            MLP(in_features=4, out_features=2, num_cells=[16]),
            in_keys=["observation"],
            out_keys=["logits"],
        )
        return ProbabilisticActor(
            inner, in_keys=["logits"], distribution_class=torch.distributions.Categorical
        )
    inner = TensorDictModule(
        nn.Sequential(MLP(in_features=3, out_features=2, num_cells=[16]), NormalParamExtractor()),
        in_keys=["observation"],
        out_keys=["loc", "scale"],
    )
    squashed = {"distribution_class": TanhNormal, "distribution_kwargs": {"low": -2.0, "high": 2.0}}
    normal = {"distribution_class": torch.distributions.Normal}
    chosen: Any = squashed if name == "SAC" else normal
    return ProbabilisticActor(inner, in_keys=["loc", "scale"], **chosen)


def trained(name: str) -> Any:
    """The module after a few steps of gradient descent on the actions of anybody."""
    import torch
    from tensordict import TensorDict

    module = build(name)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    width = 4 if name in ("DQN", "PPO") else 3
    for _ in range(5):
        batch = TensorDict({"observation": torch.randn(16, width)}, batch_size=[16])
        if name in ("DQN", "DDPG"):
            loss = module(batch)["action_value" if name == "DQN" else "action"].square().mean()
        else:
            distribution = module.get_dist(batch)
            taken = torch.randint(2, (16,)) if name == "PPO" else torch.rand(16, 1)
            loss = -distribution.log_prob(taken).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return module.eval()


@pytest.mark.parametrize("name", ["DQN", "PPO", "PPO-box", "SAC", "DDPG"])
def test_scores_are_those_of_the_module(adapted: Any, name: str) -> None:
    import torch
    from tensordict import TensorDict
    from tensordict.nn import InteractionType, set_interaction_type

    module = trained(name)
    policy = load_policy(module)

    def of_the_library(observation: Any) -> Any:
        batch = TensorDict({"observation": torch.tensor(observation)}, batch_size=[1])
        with torch.no_grad(), set_interaction_type(InteractionType.DETERMINISTIC):
            if name == "DQN":
                return module(batch)["action_value"].numpy()
            if name == "PPO":
                return module.get_dist(batch).logits.numpy()
            if name == "PPO-box":
                normal = module.get_dist(batch)
                return torch.stack([normal.mean, normal.stddev.log()], dim=1).numpy()
            return module(batch)["action"].numpy()

    discrete = name in ("DQN", "PPO")
    environment = "CartPole-v1" if discrete else "Pendulum-v1"
    adapted("torchrl", name, policy, environment, of_the_library)
    seen = gym.make(environment).reset(seed=1)[0][None]
    copied = cloudpickle.loads(cloudpickle.dumps(policy))
    np.testing.assert_array_equal(copied.scores(seen)[0], policy.scores(seen)[0])
    assert load_policy(trained(name)).kind == policy.kind


def test_what_cannot_be_measured() -> None:
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor

    module = build("DQN")
    with pytest.raises(InvalidInput, match="the model gives scores of kind 'q', not 'logits'"):
        load_policy(module, kind="logits")
    with pytest.raises(PolicyFault, match="the module .keys observation. failed"):
        load_policy(module).scores(np.zeros((1, 9), np.float32))
    inner = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["rate"])
    poisson = ProbabilisticActor(
        inner, in_keys=["rate"], distribution_class=torch.distributions.Poisson
    )
    with pytest.raises(InvalidInput, match="the distribution Poisson is not known; known: Categ"):
        load_policy(poisson)
    memory = TensorDictModule(
        torch.nn.Linear(3, 1), in_keys=["recurrent_state"], out_keys=["action_value"]
    )
    with pytest.raises(InvalidInput, match="recurrent modules of TorchRL are not supported"):
        load_policy(memory)
    init = TensorDictModule(
        torch.nn.Linear(3, 1), in_keys=["observation", "is_init"], out_keys=["action_value"]
    )
    with pytest.raises(InvalidInput, match="recurrent modules of TorchRL are not supported"):
        load_policy(init)
    nested = TensorDictModule(
        torch.nn.Linear(3, 1), in_keys=[("agents", "seen")], out_keys=["action_value"]
    )
    with pytest.raises(InvalidInput, match="expected in_keys that are names of observations, got"):
        load_policy(nested)
