"""SBX models score through safemargin exactly as by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from safemargin.errors import InvalidInput
from safemargin.policies import load_policy

jax: Any = pytest.importorskip("jax")
sbx: Any = pytest.importorskip("sbx", reason="pip install 'safemargin[sbx]'")
pytestmark = pytest.mark.filterwarnings("ignore")

CASES = {
    "PPO": ("CartPole-v1", {"n_steps": 32, "batch_size": 32}),
    "PPO-box": ("Pendulum-v1", {"n_steps": 32, "batch_size": 32}),
    "DQN": ("CartPole-v1", {"learning_starts": 8, "buffer_size": 64}),
    "SAC": ("Pendulum-v1", {"learning_starts": 8, "buffer_size": 64}),
    "TD3": ("Pendulum-v1", {"learning_starts": 8, "buffer_size": 64}),
    "DDPG": ("Pendulum-v1", {"learning_starts": 8, "buffer_size": 64}),
    "CrossQ": ("Pendulum-v1", {"learning_starts": 8, "buffer_size": 64}),
    "TQC": ("Pendulum-v1", {"learning_starts": 8, "buffer_size": 64}),
}


def train(name: str) -> Any:
    environment, options = CASES[name]
    model = getattr(sbx, name.partition("-")[0])("MlpPolicy", environment, seed=0, **options)
    return model.learn(64)


@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_the_model(adapted: Any, tmp_path: Path, name: str) -> None:
    model = train(name)
    model.save(tmp_path / "model.zip")
    named = "DDPG:" if name == "DDPG" else ""
    policy = load_policy(f"sbx:{named}{tmp_path / 'model.zip'}")
    state = model.policy.qf_state if name == "DQN" else model.policy.actor_state

    def of_the_library(observation: Any) -> Any:
        if policy.kind == "actions":
            return model.predict(observation, deterministic=True)[0]
        mean, deviation = compiled(state.params, observation)
        if policy.kind != "gaussian":
            return mean
        return np.stack([mean, np.log(np.asarray(deviation))], axis=1)

    def forward(params: Any, observation: Any) -> Any:
        found = state.apply_fn(params, observation)
        if policy.kind == "gaussian":
            return found.mean(), found.stddev()
        return (found if policy.kind == "q" else found.logits_parameter()), None

    compiled = jax.jit(forward)

    adapted("sbx-rl", name, policy, CASES[name][0], of_the_library)
    env = gym.make(CASES[name][0])
    for seed in range(20):  # and the greedy action
        seen = env.reset(seed=seed)[0]
        scores = policy.scores(seen[None])[0][0]
        if policy.kind in ("q", "logits"):
            acts: Any = scores.argmax()
        else:
            space: Any = env.action_space
            acts = np.clip(
                scores[0] if policy.kind == "gaussian" else scores, space.low, space.high
            )
        np.testing.assert_array_equal(acts, model.predict(seen, deterministic=True)[0])
    copied = cloudpickle.loads(cloudpickle.dumps(policy))
    np.testing.assert_array_equal(copied.scores(seen[None])[0], policy.scores(seen[None])[0])


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    with pytest.raises(InvalidInput, match="there is no file"):
        load_policy(f"sbx:{path}")
    model = train("PPO")
    model.save(path)
    with pytest.raises(InvalidInput, match="was saved by SBX; name it as 'sbx:"):
        load_policy(path)
    with pytest.raises(InvalidInput, match="the algorithm 'dpo' is unknown; did you mean"):
        load_policy(f"sbx:dpo:{path}")
    with pytest.raises(InvalidInput, match="the model gives scores of kind 'logits', not 'q'"):
        load_policy(f"sbx:{path}", kind="q")
    with pytest.raises(InvalidInput, match="SBX cannot load it as SAC"):
        load_policy(f"sbx:sac:{path}")
    (tmp_path / "junk.zip").write_bytes(b"junk")
    with pytest.raises(InvalidInput, match="not a file that SBX saved"):
        load_policy(f"sbx:{tmp_path / 'junk.zip'}")
    from stable_baselines3 import PPO

    PPO("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "torch.zip")
    with pytest.raises(InvalidInput, match="was saved by stable_baselines3, not by SBX"):
        load_policy(f"sbx:{tmp_path / 'torch.zip'}")
    several = sbx.PPO("MlpPolicy", Several(), n_steps=8, batch_size=8)
    several.save(tmp_path / "several.zip")
    with pytest.raises(InvalidInput, match="SBX's PPO is supported with Discrete and Box actions"):
        load_policy(f"sbx:{tmp_path / 'several.zip'}")


class Several(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 3])

    def reset(self, **options: Any) -> Any:
        return np.zeros(2, np.float32), {}


def test_statistics_are_not_forgotten(tmp_path: Path) -> None:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make_vec_env("Pendulum-v1", 1, seed=0))
    model = sbx.PPO("MlpPolicy", env, n_steps=32, batch_size=32, seed=0).learn(64)
    model.save(tmp_path / "model.zip")
    env.training = False
    env.save(str(tmp_path / "vecnormalize.pkl"))
    with pytest.raises(InvalidInput, match="add --normalize .*vecnormalize.pkl"):
        load_policy(f"sbx:{tmp_path / 'model.zip'}")
    policy = load_policy(
        f"sbx:{tmp_path / 'model.zip'}", normalize=str(tmp_path / "vecnormalize.pkl")
    )
    seen = np.ones((1, 3), np.float32)
    wanted, _ = model.predict(env.normalize_obs(seen), deterministic=True)
    np.testing.assert_array_equal(np.clip(policy.scores(seen)[0][:, 0], -2, 2), wanted)
