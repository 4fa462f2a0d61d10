"""One agent of a PettingZoo game; the others play fixed policies and belong to the environment.

'pettingzoo:GAME/AGENT' names the agent that is measured. The partners' memory and random numbers
are attributes of the environment, so that a snapshot holds them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from safemargin.core.importing import locate
from safemargin.core.settings import Settings
from safemargin.environments.simulator import Env
from safemargin.errors import (
    EnvironmentFault,
    InvalidInput,
    SafemarginError,
    did_you_mean,
    errors_as,
)
from safemargin.policies.actions import PolicyActions
from safemargin.policies.base import Memory, Policy, batch_of
from safemargin.policies.batching import ask
from safemargin.policies.team import load_team

SCHEME = "pettingzoo"

FAMILIES = ("classic", "butterfly", "sisl", "atari")
"""The packages of PettingZoo in which a game is looked for by its name."""

GAMES_TRIED = 100
"""A game that ends before the measured agent acts is followed by another, up to this many."""

PartnersChoice = Literal["greedy", "sampled"]


class Seat(gym.Env[Any, Any]):
    """What one agent of a game sees and does; nobody runs it."""

    def __init__(self, game: Any, agent: str) -> None:
        self.observation_space = _without_mask(game.observation_space(agent))
        self.action_space = game.action_space(agent)


class Partners:
    """The fixed policies of all other agents: no part of any state."""

    def __init__(self, policies: Mapping[str, Policy], seats: Mapping[str, Seat], choice: Any):
        self.policies = policies
        self.actions = {}
        for agent, policy in policies.items():
            space, settings = seats[agent].action_space, Settings(action_choice=choice)
            policy.check(seats[agent])
            self.actions[agent] = PolicyActions(space, policy.kind, settings)

    def start(self) -> dict[str, Memory]:
        """Return the memory of each partner at the start of an episode."""
        return {agent: policy.initial_memory(1) for agent, policy in self.policies.items()}

    def act(
        self,
        agent: str,
        observation: Any,
        mask: Any,
        memory: dict[str, Memory],
        generator: np.random.Generator,
    ) -> Any:
        """Return a partner's action, a legal one, and change its memory."""
        policy = self.policies[agent]
        rows, memory[agent] = ask(policy, batch_of([observation]), memory[agent])
        return self.actions[agent](rows[0], generator, mask)

    def identity(self) -> str:
        """Return a hash of all the policies."""
        known = [f"{agent} {policy.identity}" for agent, policy in self.policies.items()]
        return hashlib.sha256("\n".join(known).encode()).hexdigest()


class MeasuredAgent(gym.Env[Any, Any]):
    """A game as one of its agents sees it: a step lasts until it is to act again."""

    def __init__(
        self,
        game: Any,
        agent: str,
        team: Any,
        *,
        partners: PartnersChoice = "greedy",
        name: str = "",
    ) -> None:
        """`game` is an AEC or a parallel environment; `team` names or holds all policies."""
        self.name = name or str(game)
        if agent not in game.possible_agents:
            known = did_you_mean(agent, game.possible_agents)
            raise InvalidInput(f"{self.name}: there is no agent {agent!r}; {known}")
        others = [one for one in game.possible_agents if one != agent]
        if team is None and others:
            raise InvalidInput(
                f"{self.name}: the other agents ({', '.join(others)}) need policies of their own; "
                "in place of the POLICY, name a function that returns one for each agent, as "
                "'agents.py:team'"
            )
        if partners not in ("greedy", "sampled"):
            raise InvalidInput(f"{self.name}: partners={partners!r} must be 'greedy' or 'sampled'")
        self.game, self.agent = game, agent
        self.in_turns = hasattr(game, "agent_iter")
        seats = {one: Seat(game, one) for one in game.possible_agents}
        policies = load_team(team, others) if others else {}
        self.partners = Partners(policies, seats, partners)
        self.memory: dict[str, Memory] = {}
        self.action_space = seats[agent].action_space
        self.observation_space = seats[agent].observation_space
        self.metadata = dict(game.metadata)
        self.render_mode = getattr(game.unwrapped, "render_mode", None)
        self.safemargin_identity = self.partners.identity()
        """Enters the identity of the environment: other partners make it another one."""
        self._seen: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.memory = self.partners.start()
        for _ in range(GAMES_TRIED):
            started = self.game.reset(seed=seed, options=options)
            if not self.in_turns:
                self._seen = started
                return _parted(started[0][self.agent], started[1].get(self.agent))
            self._let_others_act()
            if self.game.agents:
                observation, _, terminated, truncated, info = self.game.last()
                if not (terminated or truncated):
                    return _parted(observation, info)
            seed = int(self.np_random.integers(2**31))  # the others ended it: the next game
        raise EnvironmentFault(
            f"{self.name}: {GAMES_TRIED} games ended before {self.agent} was to act at all"
        )

    def step(self, action: Any) -> Any:
        if self.in_turns:
            self.game.step(action)
            self._let_others_act()
            if self.agent not in self.game.agents:
                raise EnvironmentFault(f"{self.name}: {self.agent} left the game unseen")
            observation, reward, terminated, truncated, info = self.game.last()
        else:
            observations, infos = self._seen
            actions = {
                one: action if one == self.agent else self._partner(one, observations, infos)
                for one in self.game.agents
            }
            results = self.game.step(actions)
            self._seen = (results[0], results[4])
            observation, reward, terminated, truncated, info = (
                result.get(self.agent) for result in results
            )
        seen, told = _parted(observation, info)
        return seen, float(reward), bool(terminated), bool(truncated), told

    def _partner(self, one: str, observations: Any, infos: Any) -> Any:
        seen, told = _parted(observations[one], infos.get(one))
        mask = told.get("action_mask")
        legal = None if mask is None else np.asarray(mask, bool)
        return self.partners.act(one, seen, legal, self.memory, self.np_random)

    def _let_others_act(self) -> None:
        """Let the game go on until the measured agent is to act, or has ended."""
        game = self.game
        while game.agents and game.agent_selection != self.agent:
            one = game.agent_selection
            if game.terminations[one] or game.truncations[one]:
                game.step(None)
            else:
                game.step(self._partner(one, {one: game.observe(one)}, game.infos))

    def render(self) -> Any:
        return self.game.render()

    def close(self) -> None:
        self.game.close()


def make_agent(
    rest: str,
    *,
    team: Any = None,
    partners: PartnersChoice = "greedy",
    api: Literal["parallel", "aec"] | None = None,
    **arguments: Any,
) -> Env:
    """Make the environment that 'pettingzoo:REST' names; other arguments are those of the game."""
    name, slash, agent = rest.rpartition("/")
    text = f"{SCHEME}:{rest}"
    if not slash:
        name = rest
    with errors_as(InvalidInput, f"environment {text!r} could not be made:"):
        game = _made(name, text, api, arguments)
        if not slash:
            known = ", ".join(f"'{text}/{one}'" for one in game.possible_agents[:4])
            raise InvalidInput(f"environment {text!r}: name the agent to measure, as {known}")
        try:
            return MeasuredAgent(game, agent, team, partners=partners, name=text)
        except SafemarginError:
            game.close()
            raise


def _made(name: str, text: str, api: str | None, arguments: Mapping[str, Any]) -> Any:
    if ":" in name:
        make = locate(name, what="environment")
    else:
        with warnings.catch_warnings():  # since 1.27 it prefers pettingzoo.make, which 1.24 lacks
            warnings.simplefilter("ignore", DeprecationWarning)
            module = _module(name, text)
        ways = {"parallel": "parallel_env", "aec": "env"}
        if api not in (None, *ways):
            raise InvalidInput(f"environment {text!r}: api={api!r} must be 'parallel' or 'aec'")
        found = [ways[api]] if api else list(ways.values())
        makers = [getattr(module, each) for each in found if hasattr(module, each)]
        if not makers:
            raise InvalidInput(f"environment {text!r}: the game has no {' or '.join(found)}()")
        make = makers[0]
    game = make(**arguments)
    if not hasattr(game, "possible_agents"):
        raise InvalidInput(
            f"environment {text!r}: expected a PettingZoo environment, got {type(game).__name__}"
        )
    return game


def _module(name: str, text: str) -> Any:
    """Import a game: 'tictactoe_v3' of one of PettingZoo's packages, or 'mpe2.simple_tag_v3'."""
    if importlib.util.find_spec("pettingzoo") is None:
        raise InvalidInput(
            f"environment {text!r} needs PettingZoo: pip install 'pettingzoo[classic]'"
        )
    if "." in name:
        return importlib.import_module(name)
    for family in FAMILIES:
        if importlib.util.find_spec(f"pettingzoo.{family}.{name}") is not None:
            return importlib.import_module(f"pettingzoo.{family}.{name}")
    packages = [importlib.import_module(f"pettingzoo.{family}") for family in FAMILIES]
    known = [each.name for one in packages for each in pkgutil.iter_modules(one.__path__)]
    raise InvalidInput(
        f"environment {text!r} is unknown; "
        + did_you_mean(name, [each for each in known if "_v" in each])
    )


def _without_mask(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of what an agent sees, where the game adds a mask of legal actions."""
    if isinstance(space, gym.spaces.Dict) and set(space.spaces) == {"observation", "action_mask"}:
        return space["observation"]
    return space


def _parted(observation: Any, info: Any) -> tuple[Any, dict[str, Any]]:
    """Return what an agent sees, and its info with the mask of legal actions in it."""
    told = dict(info or {})
    if isinstance(observation, dict) and observation.keys() == {"observation", "action_mask"}:
        told["action_mask"] = observation["action_mask"]
        return observation["observation"], told
    return observation, told
