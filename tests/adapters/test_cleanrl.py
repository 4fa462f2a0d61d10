"""CleanRL's files: the networks of its scripts, written here as the scripts write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from safemargin.errors import InvalidInput
from safemargin.policies import load_policy

torch: Any = pytest.importorskip("torch")
nn = torch.nn

IMAGES = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)


class Game(gym.Env[Any, Any]):
    """Spaces of an Atari game, of which only the spaces are used."""

    observation_space = IMAGES
    action_space = gym.spaces.Discrete(6)


def convolutions() -> list[Any]:
    return [
        nn.Conv2d(4, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
    ]


def mlp(*sizes: int, active: Any) -> Any:
    layers = [nn.Linear(sizes[0], sizes[1]), active(), nn.Linear(sizes[1], sizes[2]), active()]
    return nn.Sequential(*layers, nn.Linear(sizes[2], sizes[3]))


class Agent(nn.Module):  # type: ignore[name-defined,misc]
    def __init__(self, script: str) -> None:
        super().__init__()
        self.script = script
        if script == "ppo":
            self.critic = mlp(4, 64, 64, 1, active=nn.Tanh)
            self.actor = mlp(4, 64, 64, 2, active=nn.Tanh)
        elif script == "ppo_atari":
            self.network = nn.Sequential(*convolutions())
            self.actor, self.critic = nn.Linear(512, 6), nn.Linear(512, 1)
        elif script == "dqn":
            self.network = mlp(4, 120, 84, 2, active=nn.ReLU)
        else:
            self.network = nn.Sequential(*convolutions(), nn.Linear(512, 6))

    def forward(self, seen: Any) -> Any:
        if self.script == "ppo":
            return self.actor(seen)
        if self.script == "ppo_atari":
            return self.actor(self.network(seen / 255.0))
        return self.network(seen if self.script == "dqn" else seen / 255.0)


def trained(script: str) -> Agent:
    """An agent after a few steps of gradient descent on anything."""
    torch.manual_seed(1)
    agent = Agent(script)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    atari = script.endswith("atari")
    for _ in range(2 if atari else 20):
        seen = torch.rand((4, 4, 84, 84)) * 255 if atari else torch.randn((16, 4))
        loss = (agent(seen) - torch.randn((len(seen), 6 if atari else 2))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return agent.eval()


@pytest.mark.parametrize("script", ["ppo", "dqn", "ppo_atari", "dqn_atari"])
def test_a_file_of_a_torch_script(adapted: Any, tmp_path: Path, script: str) -> None:
    agent = trained(script)
    path = tmp_path / f"{script}.cleanrl_model"
    torch.save(agent.state_dict(), path)
    policy = load_policy(f"cleanrl:{path}")
    assert policy.kind == ("q" if script.startswith("dqn") else "logits")
    assert policy.description.endswith(f"({script})")

    def of_the_script(observation: Any) -> Any:
        with torch.no_grad():
            return agent(torch.Tensor(observation)).numpy()

    env: Any = Game() if script.endswith("atari") else "CartPole-v1"
    adapted("torch", f"CleanRL {script}", policy, env, of_the_script)
    with pytest.raises(InvalidInput, match="the model gives scores of kind .*, not 'gaussian'"):
        load_policy(f"cleanrl:{path}", kind="gaussian")


def flax_parameters(script: str) -> tuple[Any, Any]:
    """A network as a Flax script makes it, and its parameters."""
    linen: Any = pytest.importorskip("flax.linen", reason="pip install 'safemargin[cleanrl]'")
    import jax

    class Convolved(linen.Module):  # type: ignore[misc,name-defined]
        head: int

        @linen.compact
        def __call__(self, seen: Any) -> Any:
            hidden = jax.numpy.transpose(seen, (0, 2, 3, 1)) / 255.0
            for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
                sizes = {"kernel_size": (kernel, kernel), "strides": (stride, stride)}
                hidden = linen.relu(linen.Conv(channels, **sizes, padding="VALID")(hidden))
            hidden = linen.relu(linen.Dense(512)(hidden.reshape((hidden.shape[0], -1))))
            return linen.Dense(self.head)(hidden) if self.head else hidden

    class Dense(linen.Module):  # type: ignore[misc,name-defined]
        @linen.compact
        def __call__(self, seen: Any) -> Any:
            hidden = linen.relu(linen.Dense(120)(seen))
            hidden = linen.relu(linen.Dense(84)(hidden))
            return linen.Dense(2)(hidden)

    class Actor(linen.Module):  # type: ignore[misc,name-defined]
        @linen.compact
        def __call__(self, hidden: Any) -> Any:
            return linen.Dense(6)(hidden)

    key = jax.random.PRNGKey(4)
    if script == "dqn_jax":
        network: Any = Dense()
        params = network.init(key, np.zeros((1, 4), np.float32))
        return params, lambda seen: network.apply(params, seen)
    image = np.zeros((1, 4, 84, 84), np.uint8)
    if script == "dqn_atari_jax":
        network = Convolved(6)
        params = network.init(key, image)
        return params, lambda seen: network.apply(params, seen)
    network, actor = Convolved(0), Actor()
    both = network.init(key, image), actor.init(key, np.zeros((1, 512), np.float32))
    stored = [{"env_id": "Pong-v5"}, [*both, both[1]]]
    return stored, lambda seen: actor.apply(both[1], network.apply(both[0], seen))


@pytest.mark.parametrize("script", ["dqn_jax", "dqn_atari_jax", "ppo_atari_envpool_xla_jax"])
def test_a_file_of_a_flax_script(adapted: Any, tmp_path: Path, script: str) -> None:
    stored, scores = flax_parameters(script)
    import jax
    from flax.serialization import to_bytes

    path = tmp_path / f"{script}.cleanrl_model"
    path.write_bytes(to_bytes(stored))
    policy = load_policy(f"cleanrl:{path}")
    assert policy.kind == ("logits" if script.startswith("ppo") else "q")
    env: Any = "CartPole-v1" if script == "dqn_jax" else Game()
    adapted("flax", f"CleanRL {script}", policy, env, jax.jit(scores))


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "model.cleanrl_model"
    with pytest.raises(InvalidInput, match="there is no such file"):
        load_policy(f"cleanrl:{path}")
    torch.save(nn.Sequential(nn.Linear(4, 3)).state_dict(), path)
    with pytest.raises(InvalidInput, match=r"the weights \(0.weight, 0.bias, …\) do not fit"):
        load_policy(f"cleanrl:{path}")
    weights = Agent("ppo").state_dict()
    torch.save({**weights, "actor.2.weight": torch.zeros(64, 63)}, path)
    with pytest.raises(InvalidInput, match="the weights do not fit the network of ppo"):
        load_policy(f"cleanrl:{path}")
    weights = Agent("dqn_atari").state_dict()
    torch.save({**weights, "network.0.weight": torch.zeros(32, 4, 5, 5)}, path)
    with pytest.raises(InvalidInput, match=r"network.0 has a kernel of \[5, 5\]"):
        load_policy(f"cleanrl:{path}")
    torch.save({"actor_mean.0.weight": torch.zeros(2, 2), "actor_logstd": torch.zeros(1)}, path)
    with pytest.raises(InvalidInput, match="statistics that CleanRL does not save"):
        load_policy(f"cleanrl:{path}")
    torch.save([1, 2], path)
    with pytest.raises(InvalidInput, match=r"the weights \(list, …\) do not fit the network"):
        load_policy(f"cleanrl:{path}")
    with pytest.raises(InvalidInput, match="VecNormalize statistics belong to"):
        load_policy(f"cleanrl:{path}", normalize="none")


def test_nothing_in_a_file_is_unpickled(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (Path.mkdir, (tmp_path / "made",))

    path = tmp_path / "model.cleanrl_model"
    torch.save({"actor.0.weight": Harmful()}, path)
    with pytest.raises(InvalidInput, match="cannot be read as weights of PyTorch"):
        load_policy(f"cleanrl:{path}")
    assert not (tmp_path / "made").exists()


def test_other_parameters_of_flax(tmp_path: Path) -> None:
    pytest.importorskip("flax.serialization", reason="pip install 'safemargin[cleanrl]'")
    from flax.serialization import to_bytes

    path = tmp_path / "model.cleanrl_model"
    path.write_bytes(to_bytes({"params": {"Dense_0": {"kernel": np.zeros((4, 2))}}}))
    with pytest.raises(InvalidInput, match=r"the weights \(Dense_0, …\) do not fit the network"):
        load_policy(f"cleanrl:{path}")
    path.write_bytes(b"junk")
    with pytest.raises(InvalidInput, match="cannot be read as parameters of Flax or PyTorch"):
        load_policy(f"cleanrl:{path}")
