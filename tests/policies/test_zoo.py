"""The agents that ship with the package."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from helpers.paths import ROOT

from safemargin.cli import main
from safemargin.environments import EnvironmentSpec
from safemargin.errors import InvalidInput
from safemargin.policies import load_policy
from safemargin.policies.zoo import zoo_agents, zoo_card, zoo_path

ATARI = [card for card in zoo_agents() if card["environment"].startswith("atari:")]
REPOSITORY_LIMIT = 20_500_000
"""Bytes of all agents together: 3.4 MB for an actor-critic, 6.6 MB for a dueling network."""

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
    "observation",
    "actions",
    "size_bytes",
}
ATARI_CARD_FIELDS = {
    "frames",
    "wall_seconds",
    "machine",
    "score_note",
    "evaluation",
    "half_precision",
    "curve",
    "notes",
}


@pytest.fixture(params=zoo_agents(), ids=lambda card: card["name"])
def card(request: pytest.FixtureRequest) -> dict:
    return request.param


def environment_of(card: dict) -> Any:
    if card["environment"].startswith("atari:"):
        pytest.importorskip("ale_py", reason="Atari needs safemargin[atari]")
        pytest.importorskip("cv2", reason="Atari needs safemargin[atari]")
    if card["environment"].startswith("jax:"):
        pytest.importorskip("jax", reason="needs safemargin[jax]")
        pytest.importorskip("pgx", reason="needs safemargin[pgx]")
    return EnvironmentSpec.parse(card["environment"]).make()


@pytest.fixture(scope="module", params=ATARI, ids=lambda card: card["name"])
def game(request: pytest.FixtureRequest) -> tuple[dict, float, np.ndarray]:
    """An agent's card, its clipped return over (most of) a greedy game, and what it saw."""
    card = request.param
    env, policy = environment_of(card), load_policy(f"zoo:{card['name']}")
    observation, _ = env.reset(seed=0)
    total, seen = 0.0, []
    while len(seen) < 2000:
        seen.append(observation)
        action = int(policy.scores(observation[None])[0].argmax())
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            if not env.get_wrapper_attr("game_goes_on"):
                break
            observation, _ = env.reset()  # the next life
    return card, total, np.array(seen)


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


def test_every_card_describes_its_file(card: dict) -> None:
    assert set(card) >= CARD_FIELDS
    content = zoo_path(card["name"]).read_bytes()
    assert card["size_bytes"] == len(content)
    assert card["identity"] == "sha256:" + hashlib.sha256(content).hexdigest()
    policy = load_policy(f"zoo:{card['name']}")
    assert policy.description == f"zoo:{card['name']}"
    assert (policy.kind, policy.identity) == (card["kind"], card["identity"])


def test_every_agent_acts_in_its_environment(card: dict) -> None:
    env, policy = environment_of(card), load_policy(f"zoo:{card['name']}")
    policy.check(env)
    observation, _ = env.reset(seed=0)
    assert card["observation"] == f"{observation.dtype} {list(observation.shape)}"
    scores, _ = policy.scores(observation[None])
    if card["kind"] == "gaussian":
        assert scores.shape == (1, 2, len(card["actions"]))
        assert env.action_space.shape == (len(card["actions"]),)
    else:
        assert scores.shape == (1, len(card["actions"]))
        assert env.action_space.n == len(card["actions"])
    if "ALE" in str(env.unwrapped.spec and env.unwrapped.spec.id):
        assert env.unwrapped.get_action_meanings() == card["actions"]


def test_all_of_them_ship_and_are_small() -> None:
    listed = {entry.name: Path(str(entry)) for entry in files("safemargin.policies.zoo").iterdir()}
    names = {f"{card['name']}{suffix}" for card in zoo_agents() for suffix in (".json", ".onnx")}
    assert names == {name for name in listed if name.endswith((".json", ".onnx"))}
    assert sum(path.stat().st_size for path in listed.values() if path.is_file()) < REPOSITORY_LIMIT
    # The wheel takes what lies in src/safemargin, except what git ignores.
    if (ROOT / ".git").exists() and listed["__init__.py"].is_relative_to(ROOT):
        command = ["git", "check-ignore", *(str(listed[name]) for name in sorted(names))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.stdout == ""


@pytest.mark.parametrize("card", ATARI, ids=lambda card: card["name"])
def test_atari_cards_are_whole_and_agree_with_themselves(card: dict) -> None:
    assert set(card) >= ATARI_CARD_FIELDS
    greedy = card["evaluation"]["greedy"]
    figures = (card["mean_score"], card["score_sd"], card["games"])
    assert figures == (greedy["mean"], greedy["sd"], greedy["games"])
    for result in card["evaluation"].values():
        assert result["games"] == 100
        assert result["min"] <= result["mean"] <= result["max"]
    assert greedy["distinct_games"] <= 30
    assert card["frames"] == 4 * card["steps"]
    compared = card["half_precision"]
    assert compared["observations"] >= 5000
    # Near-ties only: the two best scores were as good as equal, in at most 1 of 1,000 moments.
    assert compared["other_greedy_actions"] <= compared["observations"] / 1000
    assert compared["largest_gap_of_these"] <= 2 * compared["largest_change_of_a_score"] < 0.05
    curve = card["curve"]
    assert 10 <= len(curve["steps"]) == len(curve["score"]) == len(curve["return_per_life"]) <= 100
    assert curve["steps"] == sorted(curve["steps"])
    assert curve["steps"][-1] <= card["steps"]
    assert (ROOT / f"docs/images/training-{card['name']}.png").exists()


def test_atari_agents_play_well(game: tuple[dict, float, np.ndarray]) -> None:
    card, total, seen = game
    if card["name"].startswith("pong"):
        assert total >= 18  # one whole game
        assert len(seen) < 2000
    else:
        assert total >= 10  # by chance: about 4 a life


def test_scores_do_not_depend_on_the_batch(game: tuple[dict, float, np.ndarray]) -> None:
    card, _, seen = game
    seen = seen[::20]
    policy = load_policy(f"zoo:{card['name']}")
    together, _ = policy.scores(seen)
    alone = np.concatenate([policy.scores(seen[i : i + 1])[0] for i in range(len(seen))])
    sevens = np.concatenate([policy.scores(seen[i : i + 7])[0] for i in range(0, len(seen), 7)])
    assert together.tobytes() == alone.tobytes() == sevens.tobytes()
    policy.widen(gym.spaces.Box(0, 255, seen.shape[1:], np.uint8), 8)
    eights = np.concatenate([policy.scores(seen[i : i + 8])[0] for i in range(0, len(seen), 8)])
    assert eights.tobytes() == alone.tobytes()


def test_the_cartpole_agent_plays_as_its_card_says() -> None:
    (card,) = [card for card in zoo_agents() if card["name"] == "cartpole"]
    assert card["mean_score"] >= 450
    scores, _ = visited(load_policy("zoo:cartpole"), "CartPole-v1", games=10, seed=500)
    assert abs(scores.mean() - card["mean_score"]) <= 3 * card["score_sd"] / 10**0.5 + 1


@pytest.mark.parametrize("name", ["minatar-breakout", "rocket"])
def test_the_agents_of_worlds_in_jax_play_as_their_cards_say(name: str) -> None:
    """20 games in one program, by the translated file, with other seeds than the card's."""
    jax = pytest.importorskip("jax", reason="needs safemargin[jax]")
    pytest.importorskip("pgx", reason="needs safemargin[pgx]")
    from safemargin.environments.functional.naming import functional_environment
    from safemargin.policies.jax_loading import as_jax

    card, policy = zoo_card(name), as_jax(load_policy(f"zoo:{name}"))
    world = functional_environment(card["environment"].removeprefix("jax:"))
    assert policy is not None

    def step(carry: Any, number: Any) -> tuple[Any, None]:
        states, seen, scores, over = carry
        found, _ = policy.apply(policy.params, seen, ())
        actions = found.argmax(1) if card["kind"] == "logits" else found[:, 0]
        keys = jax.random.split(jax.random.PRNGKey(number), 20)
        states, seen, rewards, *ended = jax.vmap(world.step)(states, actions, keys)
        return (states, seen, scores + rewards * ~over, over | ended[0] | ended[1]), None

    @jax.jit
    def play(keys: Any) -> Any:
        states, seen = jax.vmap(world.reset)(keys)
        start = states, seen, jax.numpy.zeros(20), jax.numpy.zeros(20, bool)
        return jax.lax.scan(step, start, jax.numpy.arange(3000))[0][2:]

    scores, over = map(np.asarray, play(jax.random.split(jax.random.PRNGKey(77), 20)))
    assert over.all()
    assert abs(scores.mean() - card["mean_score"]) <= 4 * card["score_sd"] / 20**0.5


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


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is an extra")
def test_atari_files_are_the_network_that_was_trained(
    game: tuple[dict, float, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of the file in the trainers' own PyTorch network give the same scores."""
    onnx = pytest.importorskip("onnx")
    import torch

    monkeypatch.syspath_prepend(str(ROOT / "reproduction"))
    from atari_training import NETWORKS
    from export import OneHead

    card, _, seen = game
    network = NETWORKS[card["kind"]](len(card["actions"])).eval()
    if card["kind"] == "q":
        network = OneHead(network, half=False)
    names = {name for name, _ in network.named_parameters()}
    weights = {
        each.name.removesuffix(".half"): torch.tensor(
            onnx.numpy_helper.to_array(each).astype(np.float32)
        )
        for each in onnx.load(zoo_path(card["name"])).graph.initializer
        if each.name.removesuffix(".half") in names
    }
    missing = network.load_state_dict(weights, strict=False).missing_keys
    assert all(name.startswith("value.") for name in missing)  # acting needs no state value
    ours, _ = load_policy(f"zoo:{card['name']}").scores(seen)
    theirs = np.concatenate(
        [network(torch.from_numpy(part)).detach().numpy() for part in np.array_split(seen, 20)]
    )
    rounding = 5e-6 * np.abs(theirs).max()  # of float32 sums; Q values often differ by little more
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=rounding)
    best_two = np.sort(theirs, axis=1)[:, -2:]
    clear = best_two[:, 1] - best_two[:, 0] > 2 * rounding
    assert clear.mean() > 0.99
    assert np.array_equal(ours.argmax(axis=1)[clear], theirs.argmax(axis=1)[clear])


def test_an_unknown_agent_suggests_a_known_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no bundled agent is called 'Cart'; did you mean 'cart"):
        zoo_path("Cart")


# -- the command line --------------------------------------------------------------------------


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    out = capsys.readouterr().out
    for card in zoo_agents():
        assert card["name"] in out
        assert card["environment"] in out
        assert card["observation"] in out
    assert "500 ± 0 (100)" in out
    assert "19 kB" in out


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["agents"]
    keys = {"name", "algorithm", "environment", "mean_score", "score_sd", "games"}
    assert [each["name"] for each in listed] == [card["name"] for card in zoo_agents()]
    for each in listed:
        assert keys <= set(each)
        assert each.items() <= zoo_card(each["name"]).items()


def test_one_card(card: dict, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "show", card["name"]]) == 0
    out = capsys.readouterr().out
    assert out.startswith(card["name"] + "\n")
    flat = " ".join(out.split())
    for text in (card["algorithm"], card["command"], card["identity"], *card.get("notes", [])):
        assert text in flat
    assert f"safemargin collect {card['environment']} zoo:{card['name']}" in flat
    for piece in card.get("pieces", []):
        begin = f"from step {piece['first_step']:,} on: " if piece["first_step"] else ""
        assert f"command {begin}{piece['command']}" in flat
    for arguments in (
        ["zoo", "show", card["name"], "--json"],
        ["zoo", "--json", "show", card["name"]],
    ):
        assert main(arguments) == 0
        assert json.loads(capsys.readouterr().out) == card


def test_a_card_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "show", "pong"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "safemargin: no bundled agent is called 'pong'; did you mean 'pong-a3c' or 'pong-apex'?\n"
    )


def test_help_names_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["zoo", "--help"], ["zoo", "show", "--help"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert "NAME" in out
        assert "--json" in out


def test_listing_needs_no_game_and_no_network() -> None:
    code = (
        "from safemargin.cli import main; main(['zoo', '--json']); import sys; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert not set(done.stdout.split()) & {"torch", "ale_py", "onnxruntime", "matplotlib"}
