"""Agents that run beside the server: one thread each, at a steady pace."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.plain import finite_or_none
from safemargin.core.seeding import hashed_seed
from safemargin.environments import EnvironmentSpec
from safemargin.errors import NoPictures, SafemarginError, describe_error
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.overseen import Outcome, Question, oversee, state_of
from safemargin.monitor.overseers import action_names
from safemargin.monitor.pictures import as_picture
from safemargin.monitor.steering import Steering
from safemargin.policies.base import Features, Memory, Observations, Policy
from safemargin.replay.pictures import drawing_environment, render
from safemargin.web.fleet.agents import Agent, Status
from safemargin.web.fleet.fields import MOST_ACTIONS, MOST_SCORES
from safemargin.web.fleet.messages import Hello, Report
from safemargin.web.fleet.state import Fleet

Env = gym.Env[Any, Any]


@dataclass(frozen=True, slots=True)
class Crew:
    """The agents to run here, and their pace."""

    environment: EnvironmentSpec
    policy: Policy
    make_monitor: Callable[[], Monitor]
    agents: int
    speed: float
    """Decisions a second of each agent."""
    seed: int = 0
    wait: float = 0.0
    """Seconds that an agent that calls waits for somebody before it continues."""


class _Shared(Policy):
    """One policy for many threads, which use it one at a time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._turn = threading.Lock()
        self.kind, self.identity = policy.kind, policy.identity
        self.description, self.uses_mask = policy.description, policy.uses_mask

    def scores(
        self, observations: Observations, memory: Memory = None
    ) -> tuple[npt.NDArray[np.float32], Memory]:
        with self._turn:
            return self._policy.scores(observations, memory)

    def features(self, observations: Observations, memory: Memory = None) -> Features:
        with self._turn:
            return self._policy.features(observations, memory)

    def initial_memory(self, batch: int) -> Memory:
        return self._policy.initial_memory(batch)


class LocalAgents:
    """Starts the crew and stops it."""

    def __init__(self, fleet: Fleet, crew: Crew) -> None:
        self.fleet = fleet
        self.crew = crew
        self.policy = _Shared(crew.policy)
        """The one that all agents share."""
        self.closing = threading.Event()
        """Set once all are to end."""
        self._threads: list[threading.Thread] = []

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the agents, which report to the fleet on the loop."""
        digits = len(str(self.crew.agents))
        for number in range(1, self.crew.agents + 1):
            runner = _Runner(self, loop, number, f"agent {number:0{digits}}")
            thread = threading.Thread(target=runner.run, name=runner.name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop the agents; wait a few seconds for those that compute."""
        self.closing.set()
        deadline = time.monotonic() + 3
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


@dataclass(eq=False)
class _Runner:
    """One agent: its environment, its monitor, and its link to the fleet."""

    team: LocalAgents
    loop: asyncio.AbstractEventLoop
    number: int
    name: str
    steering: Steering = field(default_factory=Steering)
    agent: Agent | None = None
    pictured: float = 0.0
    draws: bool = True

    # -- as a link: called from the server's thread ------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        if message["kind"] == "welcome":
            self.steering.team_calls = message.get("team_calls", False)
        self.steering.receive(message)

    def takes(self) -> bool:
        return not self._ended

    def close(self, why: str) -> None:
        self.steering.receive({"kind": "stop", "why": why})

    # -- the agent's own thread --------------------------------------------------------------------

    def run(self) -> None:
        """Run episodes until the end; a failure is reported and harms no other agent."""
        status: Status = "left"
        reason = ""
        try:
            with contextlib.closing(self._make()) as env:
                self._join(env)
                self._episodes(env)
        except Exception as error:  # noqa: BLE001  the user's environment or policy
            known = isinstance(error, SafemarginError)
            status, reason = "died", str(error) if known else describe_error(error)
        if self.agent is not None:
            self._post(partial(self.team.fleet.depart, self.agent, self, status, reason))

    def _make(self) -> Env:
        spec = self.team.crew.environment
        with contextlib.suppress(NoPictures):
            return drawing_environment(spec)
        self.draws = False
        return spec.make()

    def _join(self, env: Env) -> None:
        space, crew, fleet = env.action_space, self.team.crew, self.team.fleet
        count = first = dimensions = 0
        if isinstance(space, gym.spaces.Discrete):
            count, first = int(space.n), int(space.start)
        else:
            dimensions = int(np.prod(space.shape or (1,)))
        names = action_names(env, count)[:MOST_ACTIONS]
        hello = Hello(
            self.name,
            f"local {id(self.team)}",
            action_names=tuple(name or f"action {first + i}" for i, name in enumerate(names)),
            dimensions=dimensions,
            first_action=first,
            policy=crew.policy.identity,
            environment=crew.environment.name,
            on_lost=fleet.on_lost,
        )

        def join() -> None:
            self.agent = fleet.join(hello, self)

        self._post(join)
        while self.agent is None and not self.team.closing.wait(0.01):
            pass

    def _episodes(self, env: Env) -> None:
        crew = self.team.crew
        monitor = crew.make_monitor()
        seed: int | None = hashed_seed(crew.seed, self.number)
        for episode in itertools.count():
            if self._ended:
                return
            self._one(oversee(env, self.team.policy, monitor, seed=seed), env, episode)
            seed = None  # the environment chooses its next start itself

    @property
    def _ended(self) -> bool:
        return self.team.closing.is_set() or self.steering.stopped is not None

    def _one(self, run: Generator[Question, Any, Outcome], env: Env, episode: int) -> None:
        """Run one episode."""
        crew, given_up = self.team.crew, self.team.closing.is_set
        due = time.monotonic()
        try:
            question = next(run)
            while not self._ended:
                due = max(due + 1 / crew.speed, time.monotonic())
                self.team.closing.wait(due - time.monotonic())
                waits = self.steering.taken
                self._report(question, env, episode, waits=waits)
                began = question.decision.began
                if self.steering.team_calls:  # then a call is known one decision later
                    began = self.steering.take_call()
                if began and not waits:
                    waits = self.steering.wait_for_person(crew.wait, given_up=given_up)
                    if waits:
                        self._report(question, env, episode, waits=True)
                answer, space = None, env.action_space
                if waits:
                    _, answer = self.steering.wait(episode, question.step, given_up=given_up)
                    if answer is not None and not isinstance(space, gym.spaces.Discrete):
                        answer = np.array(answer, space.dtype).reshape(space.shape or ())
                if self._ended:
                    break  # stopped while it waited
                question = run.send(answer)
        except StopIteration:
            if self.agent is not None:
                self._post(partial(self.team.fleet.end_episode, self.agent))
        else:
            run.close()

    def _report(self, question: Question, env: Env, episode: int, *, waits: bool = False) -> None:
        scores, proposed = np.ravel(question.scores), question.proposed
        report = Report(
            episode,
            question.step,
            scores=tuple(scores.tolist()) if len(scores) <= MOST_SCORES else None,
            proposed=int(proposed) if np.ndim(proposed) == 0 else np.ravel(proposed).tolist(),
            waits=waits,
            reward=finite_or_none(question.reward) if question.reward is not None else None,
            state=f"{state_of(question.observation):x}",
            **question.decision.report(),
        )
        picture = self._picture(env, urgent=question.decision.began)
        fleet, agent = self.team.fleet, self.agent

        def tell() -> None:
            if agent is not None and agent.link is self:
                if picture is not None:
                    fleet.see(agent, question.step, picture)
                fleet.report(agent, report)

        self._post(tell)

    def _picture(self, env: Env, *, urgent: bool) -> bytes | None:
        """Return a picture if somebody wants one by now."""
        every, now = self.steering.picture_every, time.monotonic()
        wanted = urgent or (every is not None and now - self.pictured >= every)
        if not self.draws or not wanted:
            return None
        self.pictured = now
        with contextlib.suppress(NoPictures):
            return as_picture(render(env))
        self.draws = False
        return None

    def _post(self, function: Callable[[], Any]) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function)
