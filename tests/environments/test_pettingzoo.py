"""One agent of a PettingZoo game is measured; the others belong to the environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from helpers.teams import write_team

import safemargin as sm
from safemargin.cli import main
from safemargin.environments import EnvironmentSpec, environment_identity, make_simulator
from safemargin.environments.pettingzoo import MeasuredAgent
from safemargin.errors import EnvironmentFault, InvalidInput, PolicyFault
from safemargin.policies import load_policy
from safemargin.policies.team import load_team

pytest.importorskip("pettingzoo")
pytest.importorskip("pygame")

MORE_TEAMS = """
def other_team():
    return {"player_1": linear(1, 9), "player_2": linear(3, 9)}

def one_short():
    return {"player_1": linear(1, 9)}

def failing():
    raise RuntimeError("no weights")
"""


@pytest.fixture
def players(tmp_path: Path) -> str:
    path = tmp_path / "players.py"
    write_team(path, {"player_1": 9, "player_2": 9})
    path.write_text(path.read_text() + MORE_TEAMS)
    return str(path)


def tictactoe(players: str, team: str = "team", **given: Any) -> EnvironmentSpec:
    arguments = {"team": f"{players}:{team}", **given}
    return EnvironmentSpec.parse("pettingzoo:tictactoe_v3/player_1", arguments)


class Duel:
    """A parallel game of three rounds: who calls the higher number gets a point."""

    possible_agents = ("ann", "bob")
    metadata: ClassVar[dict[str, Any]] = {"name": "duel"}

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(0, 3, (2,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(3)

    @property
    def unwrapped(self) -> Duel:
        return self

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.round = list(self.possible_agents), 0
        return self._observe(), {one: {} for one in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert actions.keys() == set(self.agents)
        self.round += 1
        won = float(actions["ann"] > actions["bob"]) - float(actions["ann"] < actions["bob"])
        ended = dict.fromkeys(self.agents, self.round == 3)
        rewards = {"ann": won, "bob": -won}
        infos: dict[str, Any] = {one: {} for one in self.agents}
        self.agents = [] if self.round == 3 else self.agents
        return self._observe(), rewards, ended, dict.fromkeys(ended, False), infos

    def _observe(self) -> Any:
        seen = np.array([self.round, 0], np.float32)
        return {"ann": seen, "bob": seen + np.array([0, 1])}

    def close(self) -> None:
        self.closed = True


def calls(number: int, spread: float = 9.0) -> Any:
    def scores(observations: np.ndarray) -> np.ndarray:
        return np.tile(spread * (np.arange(3) == number), (len(observations), 1))

    return load_policy(scores, kind="logits")


@pytest.mark.parametrize(("bob", "reward"), [(0, 1.0), (1, 0.0), (2, -1.0)])
def test_the_other_agent_plays_its_own_policy(bob: int, reward: float) -> None:
    env = MeasuredAgent(Duel(), "ann", {"bob": calls(bob)})
    env.reset(seed=0)
    outcomes = [env.step(1)[1:4] for _ in range(3)]
    assert outcomes == [(reward, False, False)] * 2 + [(reward, True, False)]


def test_a_partner_draws_from_the_environments_own_stream() -> None:
    def rewards(simulator: Any) -> list[float]:
        return [simulator.step(1).reward for _ in range(3)]

    env = MeasuredAgent(Duel(), "ann", {"bob": calls(1, 0.5)}, partners="sampled")
    simulator = make_simulator(env)
    simulator.reset(5)
    saved, seen = simulator.save(), rewards(simulator)
    simulator.restore(saved)
    assert rewards(simulator) == seen
    found = set()
    for seed in range(20):
        simulator.reset(seed)
        found |= set(rewards(simulator))
    assert found == {-1.0, 0.0, 1.0}


def test_the_memory_of_a_partner_is_part_of_the_snapshot() -> None:
    class Counting(sm.Policy):
        kind, identity, description = "logits", "sha256:counting", "counts its steps"

        def initial_memory(self, batch: int) -> Any:
            return (np.zeros((batch, 1)),)

        def scores(self, observations: Any, memory: Any = None) -> Any:
            best = memory[0] % 3
            return np.asarray(9.0 * (np.arange(3) == best), np.float32), (memory[0] + 1,)

    simulator = make_simulator(MeasuredAgent(Duel(), "ann", {"bob": Counting()}))
    simulator.reset(0)
    assert simulator.step(1).reward == 1  # it begins with 0
    saved = simulator.save()
    assert [simulator.step(1).reward for _ in range(2)] == [0, -1]
    simulator.restore(saved)
    assert [simulator.step(1).reward for _ in range(2)] == [0, -1]


def test_a_game_in_turns_is_measured_by_one_text_for_the_whole_team(
    players: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    game, folder = "pettingzoo:tictactoe_v3/player_1", str(tmp_path / "study")
    asked = ["--natural", "3", "--spread", "1", "--trials", "4", "--n", "1", "--workers", "1"]
    assert main(["collect", game, f"{players}:team", "-o", folder, *asked, "--json"]) == 0
    study = sm.Study.open(folder)
    assert study.environment["arguments"] == {"team": f"{players}:team"}
    assert study.policy["description"].startswith("player_1 of ")
    assert study.environment["masked"] is True
    text = study.environment["spec"]
    assert json.loads(text)["arguments"]["team"] == f"{players}:team"
    study.collect(natural=4, spread=1, workers=1)  # everything is found again
    assert study.status().moments == {"natural": 4, "spread": 1}
    capsys.readouterr()
    assert main(["doctor", game, "--policy", f"{players}:team", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["way"] == "snapshot"


def test_other_partners_make_another_environment(players: str) -> None:
    specs = [tictactoe(players), tictactoe(players), tictactoe(players, "other_team")]
    first, again, other = (environment_identity(spec, spec.make()) for spec in specs)
    assert first == again != other
    path = Path(players)
    path.write_text(path.read_text().replace(": linear(seed,", ": linear(seed + 7,"))
    for name in [name for name in sys.modules if name.startswith("safemargin_file_players")]:
        del sys.modules[name]
    changed = tictactoe(players)
    assert environment_identity(changed, changed.make()) != first


def test_an_agent_moves_legally(players: str) -> None:
    simulator = make_simulator(tictactoe(players).make())
    simulator.reset(0)
    policy = load_policy(f"team:player_1:{players}:team")
    assert policy.uses_mask
    assert simulator.observation.shape == (3, 3, 2)  # the mask is not part of it
    assert simulator.mask.sum() == 9
    simulator.step(4)
    assert simulator.mask.sum() == 7  # the partner has moved, too


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        (
            "tictactoe_v3/player_1",
            {},
            r"other agents \(player_2\) need policies of their own; .*te",
        ),
        ("tictactoe_v3", {}, r"name the agent to measure, as 'pettingzoo:tictactoe_v3/player_1'"),
        ("tictactoe_v3/player_7", {}, r"no agent 'player_7'; did you mean 'player_"),
        ("tictactoe_v2/player_1", {}, r"is unknown; did you mean 'tictactoe_v3'"),
        ("tictactoe_v3/player_1", {"api": "parallel"}, r"the game has no parallel_env\(\)"),
        ("tictactoe_v3/player_1", {"api": "both"}, r"api='both' must be 'parallel' or 'aec'"),
        ("tictactoe_v3/player_1", {"team": "team", "partners": "x"}, r"must be 'greedy' or 'sam"),
        ("tictactoe_v3/player_1", {"team": "one_short"}, r"no policy for player_2 \(it names play"),
        ("tictactoe_v3/player_1", {"team": "linear"}, r"making it failed: TypeError"),
        ("tictactoe_v3/player_1", {"team": "failing"}, r"failed: RuntimeError: no weights"),
        ("tictactoe_v3/player_1", {"team": "np"}, r"expected a function that returns one policy"),
        ("connect_four_v3/player_1", {"team": "team"}, r"names no policy for player_0 \(it names"),
        ("NOT.py:make/x", {}, r"there is no file NOT.py"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_sentence(
    players: str, name: str, given: dict[str, Any], text: str
) -> None:
    if "team" in given:
        given = {**given, "team": f"{players}:{given['team']}"}
    with pytest.raises(InvalidInput, match=text):
        EnvironmentSpec.parse(f"pettingzoo:{name}", given).make()


@pytest.mark.parametrize("policy", ["agent.zip", "zoo:cartpole", "sb3:ppo:agent.zip"])
def test_a_policy_without_partners_is_refused(policy: str) -> None:
    spec = EnvironmentSpec.parse("pettingzoo:tictactoe_v3/player_1")
    alone, same_policy = spec.with_team(policy)
    assert (alone, same_policy) == (spec, policy)
    with pytest.raises(InvalidInput, match=r"the other agents \(player_2\) need policies of their"):
        alone.make()


def test_a_partner_that_does_not_fit_its_seat_is_refused(players: str) -> None:
    with pytest.raises(PolicyFault, match="environment with 9 actions, one for each score, got 3"):
        MeasuredAgent(
            Duel(), "ann", {"bob": load_team(f"{players}:team", ["player_1"])["player_1"]}
        )


def test_a_member_says_what_does_not_fit(players: str) -> None:
    with pytest.raises(InvalidInput, match="scores of player_1's policy are of kind 'logits', not"):
        load_policy(f"team:player_1:{players}:team", kind="q")
    with pytest.raises(InvalidInput, match="normalize is for one policy"):
        load_policy(f"team:player_1:{players}:team", normalize="stats.pkl")
    assert load_policy(f"team:player_1:{players}:team", identity="mine").identity == "mine"
    with pytest.raises(InvalidInput, match="names nobody|names no policy"):
        load_team(dict, ["player_1"])


def test_a_game_that_never_comes_to_the_agent_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    class Solitaire(Duel):
        agent_selection = "bob"

        def agent_iter(self) -> Any: ...

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.agents = []

    env = MeasuredAgent(Solitaire(), "ann", {"bob": calls(0)})
    with pytest.raises(EnvironmentFault, match="100 games ended before ann was to act"):
        env.reset(seed=0)
