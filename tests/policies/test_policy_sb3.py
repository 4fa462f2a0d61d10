"""Stable-Baselines3 models act through safemargin exactly as by themselves."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from helpers.small_policies import HAVE_SB3, SB3_CASES, sb3_model

from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import load_policy
from safemargin.policies.base import NotNormalised
from safemargin.policies.checks import sample_batch

pytestmark = pytest.mark.skipif(not HAVE_SB3, reason="stable-baselines3 is an extra")


@pytest.fixture(params=SB3_CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def greedy(policy, scores):
    if policy.kind in ("q", "logits"):
        return scores.argmax(axis=1)
    space = policy.policy.action_space
    return np.clip(scores[:, 0] if policy.kind == "gaussian" else scores, space.low, space.high)


def test_greedy_action_is_what_predict_says(name: str) -> None:
    model = sb3_model(name)
    policy = load_policy(model)
    assert policy.kind == SB3_CASES[name][4]
    observations = sample_batch(model.observation_space, 200, seed=2)
    scores, _ = policy.scores(observations)
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(greedy(policy, scores), expected, rtol=1e-5, atol=1e-6)


def test_the_file_says_which_algorithm_it_is(name: str, tmp_path: Path) -> None:
    model = sb3_model(name)
    path = tmp_path / "model.zip"
    model.save(path)
    policy = load_policy(path)
    assert policy.algorithm == SB3_CASES[name][1]
    assert policy.description == str(path)
    observations = sample_batch(model.observation_space, 4)
    np.testing.assert_array_equal(
        policy.scores(observations)[0], load_policy(model).scores(observations)[0]
    )
    assert policy.identity == load_policy(model).identity
    named = load_policy(f"sb3:{SB3_CASES[name][1]}:{path}")
    assert named.identity == policy.identity


def test_a_recurrent_model_remembers_as_predict_does() -> None:
    model = sb3_model("recurrentppo")
    policy = load_policy(model)
    random = np.random.default_rng(0)
    memory, states, starts = policy.initial_memory(1), None, np.array([True])
    logits = []
    for _ in range(20):
        observation = random.normal(size=(1, 4)).astype(np.float32)
        scores, memory = policy.scores(observation, memory)
        expected, states = model.predict(observation, states, starts, deterministic=True)
        starts = np.array([False])
        assert scores.argmax() == expected[0]
        for ours, theirs in zip(memory, states, strict=True):
            np.testing.assert_allclose(ours.transpose(1, 0, 2), theirs, atol=1e-6)
        logits.append(scores)
    assert policy.scores(observation, policy.initial_memory(1))[0].tolist() != logits[-1].tolist()


def test_training_the_model_further_does_not_change_the_policy() -> None:
    model = sb3_model("ppo")
    policy = load_policy(model)
    import torch

    with torch.no_grad():
        bias = next(model.policy.parameters())
        kept = bias.clone()
        bias += 1
        try:
            assert load_policy(model).identity != policy.identity
        finally:
            bias.copy_(kept)
    assert load_policy(model).identity == policy.identity


def test_images_with_channels_last_are_turned_as_the_library_does() -> None:
    from stable_baselines3 import DQN

    class Camera(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (36, 40, 3), np.uint8)
        action_space = gym.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros((36, 40, 3), np.uint8), {}

        def step(self, action):
            return np.zeros((36, 40, 3), np.uint8), 0.0, False, False, {}

    model = DQN("CnnPolicy", Camera(), buffer_size=1, device="cpu")
    policy = load_policy(model)
    policy.check(Camera())
    images = sample_batch(Camera.observation_space, 3)
    scores, _ = policy.scores(images)
    np.testing.assert_array_equal(
        scores.argmax(axis=1), model.predict(images, deterministic=True)[0]
    )
    scaled = gym.spaces.Box(0, 1, (36, 40, 3), np.float32)
    with pytest.raises(PolicyFault, match="expected observations of type uint8, got float32"):
        policy.check(gym.wrappers.TransformObservation(Camera(), lambda image: image / 255, scaled))


def test_check_says_what_the_model_was_trained_on() -> None:
    with pytest.raises(PolicyFault, match=r"expected observations of shape \[4\], got Box of shap"):
        load_policy(sb3_model("dqn")).check(gym.make("Acrobot-v1"))


def test_a_kind_that_the_model_does_not_give_is_refused() -> None:
    with pytest.raises(InvalidInput, match="DQN gives scores of kind 'q', not 'logits'"):
        load_policy(sb3_model("dqn"), kind="logits")


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    path.write_bytes(b"PK nothing")
    with pytest.raises(InvalidInput, match="not a file that Stable-Baselines3 saved"):
        load_policy(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"gamma": 0.9}))
    with pytest.raises(
        InvalidInput, match="does not say which algorithm made it; name it as 'sb3:ppo:"
    ):
        load_policy(path)
    with pytest.raises(InvalidInput, match="the algorithm 'dqnn' is unknown; did you mean 'dqn'"):
        load_policy(f"sb3:dqnn:{path}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InvalidInput, match="Stable-Baselines3 cannot load it as PPO"):
            load_policy(f"sb3:ppo:{path}")
    with pytest.raises(InvalidInput, match=r"write it as 'sb3:ALGORITHM:model.zip'"):
        load_policy("sb3:model.zip")


def test_squashed_gaussians_are_refused() -> None:
    from stable_baselines3 import PPO

    model = PPO(
        "MlpPolicy",
        "Pendulum-v1",
        use_sde=True,
        policy_kwargs={"squash_output": True},
        n_steps=64,
        device="cpu",
    )
    with pytest.raises(InvalidInput, match=r"MultiBinary or \(unsquashed\) Box actions"):
        load_policy(model)


@pytest.mark.parametrize("normalised", [True, False])
def test_a_model_that_saw_normalised_observations_is_loaded_with_a_warning(
    normalised: bool,
) -> None:
    from stable_baselines3 import DQN
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]), norm_obs=normalised)
    model = DQN("MlpPolicy", env, buffer_size=1, device="cpu")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        load_policy(model)
    assert [each.category for each in seen] == [NotNormalised] * normalised
    assert all("a DQN model: trained under VecNormalize" in str(each.message) for each in seen)


@pytest.mark.parametrize("network", ["LinearPolicy", "MlpPolicy"])
def test_ars_acts_in_boxes_as_predict_does(network: str, tmp_path: Path) -> None:
    import torch
    from sb3_contrib import ARS

    model = ARS(network, "Pendulum-v1", seed=0, device="cpu")
    weights = np.random.default_rng(0).normal(0, 0.15, size=5000).astype(np.float32)
    with torch.no_grad():  # they begin at zero
        for parameter in model.policy.parameters():
            parameter.copy_(torch.tensor(np.resize(weights, tuple(parameter.shape))))
    model.save(tmp_path / "model.zip")
    policy = load_policy(tmp_path / "model.zip")
    assert (policy.algorithm, policy.kind, policy.own_proxies()) == ("ARS", "actions", ())
    assert policy.identity == load_policy(model).identity
    observations = sample_batch(model.observation_space, 20)
    expected, _ = model.predict(observations)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(policy.scores(observations)[0], expected, rtol=1e-5, atol=1e-6)


def test_ars_without_scores_is_refused_with_advice_that_works(tmp_path: Path) -> None:
    from sb3_contrib import ARS

    path = tmp_path / "model.zip"
    model = ARS("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    model.save(path)
    with pytest.raises(InvalidInput, match="ARS models are supported with Box actions, not with"):
        load_policy(path)
    (tmp_path / "agent.py").write_text(
        "from sb3_contrib import ARS\n\n\n"
        "def make():\n"
        f"    return ARS.load({str(path)!r}, device='cpu').policy.action_net\n"
    )
    policy = load_policy(f"{tmp_path / 'agent.py'}:make", kind="q")
    observations = sample_batch(model.observation_space, 20)
    np.testing.assert_array_equal(
        policy.scores(observations)[0].argmax(axis=1), model.predict(observations)[0]
    )
