"""The proxies of critics are what the library's own critics say."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.small_policies import HAVE_SB3, sb3_model

from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import Policy, Proxy, load_policy
from safemargin.policies.checks import sample_batch
from safemargin.policies.proxies import default_proxy, find_proxy, proxies_for, proxy_at

pytestmark = pytest.mark.skipif(not HAVE_SB3, reason="stable-baselines3 is an extra")

ALGORITHMS = {"SAC": 2, "TD3": 2, "DDPG": 1, "TQC": 3, "CrossQ": 2}
"""The algorithms, and how many critics the tests give them."""


@functools.cache
def model_of(algorithm: str, env: Any = "Pendulum-v1", policy: str = "MlpPolicy") -> Any:
    """An untrained model, whose critics differ as they were initialised."""
    import sb3_contrib
    import stable_baselines3

    factory = getattr(stable_baselines3, algorithm, None) or getattr(sb3_contrib, algorithm)
    network: dict[str, Any] = {"net_arch": [16]}
    if algorithm != "DDPG":
        network["n_critics"] = ALGORITHMS[algorithm]
    return factory(policy, env, policy_kwargs=network, buffer_size=1, seed=0, device="cpu")


def proxies_of(policy: Policy) -> dict[str, Proxy]:
    return {proxy.name: proxy for proxy in policy.own_proxies()}


def q_of(model: Any, observation: Any, action: Any) -> list[float]:
    """What each critic of a model says of one action, asked as the library's training does."""
    import torch

    inputs, _ = model.policy.obs_to_tensor(observation)
    scaled = torch.tensor(model.policy.scale_action(action), dtype=torch.float32).reshape(1, -1)
    with torch.no_grad():
        found = model.critic(inputs, scaled)
    if isinstance(found, tuple):
        return [float(value) for value in found]
    return found[0].mean(dim=1).tolist()


def at(proxy: Proxy, scores: Any, observation: Any) -> float:
    return proxy_at(proxy, scores, history=[observation])


def by_hand(model: Any, policy: Policy, observation: Any) -> dict[str, float]:
    own = model.predict(observation, deterministic=True)[0]
    critics = policy.own_proxies()[0].function.__self__
    low, high = model.action_space.low.ravel(), model.action_space.high.ravel()
    assert critics.random_actions.shape == (32, len(low))
    assert ((critics.random_actions >= low) & (critics.random_actions <= high)).all()
    spread = critics.random_actions.max(axis=0) - critics.random_actions.min(axis=0)
    assert (spread > 0.8 * (high - low)).all()
    random = [
        np.mean(q_of(model, observation, action.reshape(model.action_space.shape)))
        for action in critics.random_actions
    ]
    mine = q_of(model, observation, own)
    return {
        "critic_advantage": float(np.mean(mine) - np.mean(random)),
        "critic_disagreement": max(mine) - min(mine),
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("from_file", [False, True])
def test_the_proxies_are_what_the_librarys_critics_say(
    algorithm: str, from_file: bool, tmp_path: Path
) -> None:
    model = model_of(algorithm)
    if from_file:
        model.save(tmp_path / "model.zip")
    policy = load_policy(tmp_path / "model.zip" if from_file else model)
    own = proxies_of(policy)
    assert list(own) == ["critic_advantage", "critic_disagreement"][: min(ALGORITHMS[algorithm], 2)]
    observations = sample_batch(model.observation_space, 3, seed=1)
    rows, _ = policy.scores(observations)
    for scores, observation in zip(rows, observations, strict=True):
        expected = by_hand(model, policy, observation)
        for name, proxy in own.items():
            assert at(proxy, scores, observation) == pytest.approx(
                expected[name], abs=1e-6, rel=1e-4
            ), name
        assert abs(expected["critic_advantage"]) > 1e-5
        assert len(own) < 2 or expected["critic_disagreement"] > 1e-5


class Grid(gym.Env[Any, Any]):
    """Dict observations and actions with two axes, whose bounds differ."""

    observation_space = gym.spaces.Dict(
        {"near": gym.spaces.Box(-1, 1, (3,)), "far": gym.spaces.Box(-1, 1, (2,))}
    )
    low = np.array([[0.0, -1.0], [5.0, -3.0]], np.float32)
    action_space = gym.spaces.Box(low, low + np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))


def test_actions_and_observations_of_any_shape() -> None:
    model = model_of("SAC", Grid(), "MultiInputPolicy")
    policy = load_policy(model)
    observation = Grid.observation_space.sample()
    batch = {name: value[None] for name, value in observation.items()}
    scores = policy.scores(batch)[0][0]
    found = {name: at(proxy, scores, observation) for name, proxy in proxies_of(policy).items()}
    assert found == pytest.approx(by_hand(model, policy, observation), abs=1e-6)


def test_observations_are_normalised_first(tmp_path: Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    env.obs_rms.mean, env.obs_rms.var = np.array([0.5, -0.5, 1.0]), np.array([0.1, 0.2, 9.0])
    model = model_of("SAC")
    policy = load_policy(model, normalize=env)
    observation = np.array([0.3, 0.9, -4.0], np.float32)
    scores = policy.scores(observation[None])[0][0]
    found = {name: at(proxy, scores, observation) for name, proxy in proxies_of(policy).items()}
    seen = env.normalize_obs(observation).astype(np.float32)
    expected = by_hand(model, policy, seen)
    assert found == pytest.approx(expected, abs=1e-6)
    assert found != pytest.approx(by_hand(model, policy, observation), abs=1e-3)


def test_a_copy_in_another_process_gives_the_same_bits() -> None:
    model = model_of("TQC")
    policy = load_policy(model)
    copy: Policy = pickle.loads(pickle.dumps(policy))
    proxies = pickle.loads(pickle.dumps(policy.own_proxies()))
    observation = sample_batch(model.observation_space, 1)[0]
    scores = policy.scores(observation[None])[0][0]
    assert copy.identity == policy.identity
    for ours, theirs, carried in zip(
        policy.own_proxies(), copy.own_proxies(), proxies, strict=True
    ):
        expected = at(ours, scores, observation)
        assert at(theirs, scores, observation) == expected
        assert at(carried, scores, observation) == expected


def test_the_critics_do_not_change_the_identity() -> None:
    import torch

    model = sb3_model("sac")
    before = load_policy(model).identity
    with torch.no_grad():
        weight = next(model.critic.parameters())
        kept = weight.clone()
        weight += 1
        try:
            assert load_policy(model).identity == before
        finally:
            weight.copy_(kept)


def test_the_advantage_is_the_default() -> None:
    own = load_policy(model_of("SAC")).own_proxies()
    mine = Proxy("mine", lambda scores, history, n: 0.0, ("actions",))
    recorded = proxies_for("actions", [mine], own)
    assert [proxy.name for proxy in recorded] == [
        "critic_advantage",
        "critic_disagreement",
        "mine",
    ]
    assert default_proxy("actions", recorded) == "critic_advantage"
    assert default_proxy("actions", proxies_for("actions", [mine])) == "mine"
    assert proxies_for("actions", ["critic_advantage"], own) == own


def test_a_policy_without_critics_has_none() -> None:
    assert load_policy(sb3_model("ppo-box")).own_proxies() == ()
    assert load_policy(sb3_model("dqn")).own_proxies() == ()
    assert proxies_for("actions") == ()
    with pytest.raises(InvalidInput, match="'critic_advantage' needs critics that the policy"):
        proxies_for("actions", ["critic_advantage"])
    one = load_policy(model_of("DDPG")).own_proxies()
    with pytest.raises(InvalidInput, match="the disagreement: with two critics or more"):
        proxies_for("actions", ["critic_disagreement"], one)
    with pytest.raises(InvalidInput, match="'critic_advantage' needs scores of kind actions"):
        proxies_for("q", ["critic_advantage"])
    with pytest.raises(PolicyFault, match="only a policy that has critics can compute it"):
        at(find_proxy("critic_advantage"), np.zeros(1), np.zeros(3))
