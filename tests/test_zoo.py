"""The agents that ship with the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from safemargin.errors import InvalidInput
from safemargin.policies import load_policy
from safemargin.zoo import zoo_agents, zoo_path

CARD_FIELDS = {
    "name",
    "environment",
    "algorithm",
    "command",
    "seed",
    "steps",
    "mean_score",
    "score_sd",
    "games",
    "kind",
    "identity",
}


@pytest.fixture(params=zoo_agents(), ids=lambda card: card["name"])
def card(request: pytest.FixtureRequest) -> dict:
    return request.param


def visited(policy, environment: str, *, games: int, seed: int, random_share: float = 0.0):
    """Scores of some games and the observations seen, [steps, ...]."""
    env = gym.make(environment)
    generator = np.random.default_rng(seed)
    scores, observations = [], []
    for game in range(games):
        observation, _ = env.reset(seed=seed + game)
        total, over = 0.0, False
        while not over:
            observations.append(observation)
            action = int(policy.scores(observation[None])[0].argmax())
            if generator.random() < random_share:
                action = int(generator.integers(2))
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        scores.append(total)
    return np.array(scores), np.array(observations)


def test_every_agent_fits_its_card(card: dict) -> None:
    assert set(card) >= CARD_FIELDS
    policy = load_policy(f"zoo:{card['name']}")
    assert policy.description == f"zoo:{card['name']}"
    assert (policy.kind, policy.identity) == (card["kind"], card["identity"])
    policy.check(gym.make(card["environment"]))
    assert zoo_path(card["name"]).stat().st_size < 100_000


def test_the_cartpole_agent_plays_as_its_card_says() -> None:
    (card,) = [card for card in zoo_agents() if card["name"] == "cartpole"]
    assert card["mean_score"] >= 450
    scores, _ = visited(load_policy("zoo:cartpole"), "CartPole-v1", games=10, seed=500)
    assert abs(scores.mean() - card["mean_score"]) <= 3 * card["score_sd"] / 10**0.5 + 1


def test_no_path_of_the_training_machine_is_inside(card: dict) -> None:
    assert b"/work/" not in zoo_path(card["name"]).read_bytes()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is an extra")
def test_onnx_acts_as_the_network_it_was_exported_from() -> None:
    import onnx
    import torch
    from onnx import numpy_helper

    weights = {
        each.name: torch.tensor(numpy_helper.to_array(each))
        for each in onnx.load(zoo_path("cartpole")).graph.initializer
    }
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 2),
    )
    network.load_state_dict(weights)
    policy = load_policy("zoo:cartpole")
    _, observations = visited(policy, "CartPole-v1", games=12, seed=40, random_share=0.2)
    assert len(observations) >= 2000
    ours, _ = policy.scores(observations)
    theirs, _ = load_policy(network, kind="logits").scores(observations)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    gap = np.abs(theirs[:, 0] - theirs[:, 1])
    disagree = ours.argmax(axis=1) != theirs.argmax(axis=1)
    assert not disagree[gap > 1e-5].any()  # below that the last bits of float32 decide


def test_an_unknown_agent_suggests_a_known_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no bundled agent is called 'Cart'; did you mean 'cart"):
        zoo_path("Cart")
