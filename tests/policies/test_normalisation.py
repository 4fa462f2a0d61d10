"""An agent trained under VecNormalize is measured with its statistics, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.small_policies import HAVE_SB3, train_normalised

from safemargin.errors import InvalidInput
from safemargin.policies import load_policy
from safemargin.policies.loading import normalized

pytestmark = pytest.mark.skipif(not HAVE_SB3, reason="stable-baselines3 is an extra")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, its live VecNormalize, and a folder with both as files."""
    folder = tmp_path_factory.mktemp("trained")
    return *train_normalised(folder), folder


def observations() -> np.ndarray:
    env = gym.make("Pendulum-v1")
    return np.array([env.reset(seed=seed)[0] for seed in range(40)])


def test_a_forgotten_file_of_statistics_stops_it(trained: Any) -> None:
    folder = trained[2]
    with pytest.raises(InvalidInput, match="add --normalize .*vecnormalize.pkl") as caught:
        load_policy(folder / "model.zip")
    assert f"normalize={str(folder / 'vecnormalize.pkl')!r}" in str(caught.value)


def test_also_in_a_folder_below_as_rl_zoo_keeps_it(trained: Any, tmp_path: Path) -> None:
    shutil.copy(trained[2] / "model.zip", tmp_path / "best_model.zip")
    (tmp_path / "Pendulum-v1").mkdir()
    shutil.copy(trained[2] / "vecnormalize.pkl", tmp_path / "Pendulum-v1" / "vecnormalize.pkl")
    with pytest.raises(InvalidInput, match="add --normalize .*Pendulum-v1/vecnormalize.pkl"):
        load_policy(tmp_path / "best_model.zip")


def test_with_its_statistics_it_acts_as_in_training(trained: Any) -> None:
    model, env, folder = trained
    raw = observations()
    expected, _ = model.predict(env.normalize_obs(raw), deterministic=True)
    for policy in (
        load_policy(folder / "model.zip", normalize=folder / "vecnormalize.pkl"),
        load_policy(normalized(str(folder / "model.zip"), folder / "vecnormalize.pkl")),
        load_policy(model, normalize=env),
    ):
        means = policy.scores(raw)[0][:, 0]
        np.testing.assert_allclose(np.clip(means, -2, 2), expected, rtol=1e-5, atol=1e-6)


def test_without_them_it_is_another_agent(trained: Any) -> None:
    folder = trained[2]
    raw = load_policy(folder / "model.zip", normalize=False)
    right = load_policy(folder / "model.zip", normalize=folder / "vecnormalize.pkl")
    assert raw.identity != right.identity
    assert not np.allclose(raw.scores(observations())[0], right.scores(observations())[0])
    assert load_policy(f"normalized:none:{folder / 'model.zip'}").identity == raw.identity


def test_other_statistics_make_another_agent(trained: Any, tmp_path: Path) -> None:
    _, env, folder = trained
    mean = env.obs_rms.mean.copy()
    try:
        env.obs_rms.mean += 0.1
        env.save(str(tmp_path / "other.pkl"))
    finally:
        env.obs_rms.mean = mean
    one = load_policy(folder / "model.zip", normalize=folder / "vecnormalize.pkl")
    other = load_policy(folder / "model.zip", normalize=tmp_path / "other.pkl")
    assert one.identity != other.identity


def test_it_remembers_the_returns_of_its_training(trained: Any) -> None:
    model, _, folder = trained
    loaded = load_policy(folder / "model.zip", normalize=False)
    assert len(loaded.trained_returns) == 2
    assert loaded.trained_returns == tuple(each["r"] for each in model.ep_info_buffer)


def test_dictionaries(tmp_path: Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    from safemargin.policies.normalisation import Normalisation

    class Sensors(gym.Env[Any, Any]):
        observation_space = gym.spaces.Dict(
            {"far": gym.spaces.Box(-1, 1, (2,)), "near": gym.spaces.Box(-1, 1, (3,))}
        )
        action_space = gym.spaces.Discrete(2)

        def reset(self, **options: Any) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0.0, False, False, {}

    env = VecNormalize(DummyVecEnv([Sensors]), norm_obs_keys=["far"])
    env.reset()
    for _ in range(20):
        env.step([0])
    batch = {"far": np.ones((4, 2), np.float32), "near": np.ones((4, 3), np.float32)}
    expected = env.normalize_obs(batch)
    found = Normalisation(env)(batch)
    assert set(found) == {"far", "near"}
    for key, values in found.items():
        np.testing.assert_array_equal(values, expected[key])
    assert not np.array_equal(found["far"], batch["far"])


def test_what_cannot_be_used(trained: Any, tmp_path: Path) -> None:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    model = trained[2] / "model.zip"
    with pytest.raises(InvalidInput, match="there is no statistics file .*gone.pkl"):
        load_policy(model, normalize=tmp_path / "gone.pkl")
    (tmp_path / "junk.pkl").write_bytes(b"junk")
    with pytest.raises(InvalidInput, match="junk.pkl cannot be used as the VecNormalize statist"):
        load_policy(model, normalize=tmp_path / "junk.pkl")
    VecNormalize(make_vec_env("CartPole-v1", 1)).save(str(tmp_path / "cartpole.pkl"))
    with pytest.raises(InvalidInput, match="cartpole.pkl cannot be used .* that takes Box"):
        load_policy(model, normalize=tmp_path / "cartpole.pkl")
    with pytest.raises(InvalidInput, match="statistics belong to Stable-Baselines3 models"):
        load_policy("zoo:cartpole", normalize=tmp_path / "cartpole.pkl")
    with pytest.raises(InvalidInput, match="statistics belong to Stable-Baselines3 models"):
        load_policy(lambda rows: rows, kind="q", normalize=tmp_path / "cartpole.pkl")
