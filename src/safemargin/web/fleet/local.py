"""Agents that run beside the server: one thread each, at a steady pace."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.seeding import hashed_seed
from safemargin.environments import EnvironmentSpec
from safemargin.errors import NoPictures, SafemarginError, describe_error
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.overseen import Outcome, Question, oversee
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


class _Runner:
    """One agent: its environment, its monitor, and its link to the fleet."""

    def __init__(
        self, team: LocalAgents, loop: asyncio.AbstractEventLoop, number: int, name: str
    ) -> None:
        self.team, self.crew = team, team.crew
        self.name = name
        self.loop = loop
        self.number = number
        self.steering = Steering()
        self.agent: Agent | None = None
        self._pictured = 0.0
        self._draws = True

    # -- as a link: called from the server's thread ------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
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
            env = self._make()
            try:
                self._join(env)
                self._episodes(env)
            finally:
                env.close()
        except SafemarginError as error:
            status, reason = "died", str(error)
        except Exception as error:  # noqa: BLE001  the user's environment or policy
            status, reason = "died", describe_error(error)
        agent = self.agent
        if agent is not None:
            self._post(lambda: self.team.fleet.depart(agent, self, status, reason))

    def _make(self) -> Env:
        spec = self.crew.environment
        try:
            return drawing_environment(spec)
        except NoPictures:
            self._draws = False
            return spec.make()

    def _join(self, env: Env) -> None:
        space, crew = env.action_space, self.crew
        count = first = dimensions = 0
        if isinstance(space, gym.spaces.Discrete):
            count, first = int(space.n), int(space.start)
        else:
            dimensions = int(np.prod(space.shape or (1,)))
        names = action_names(env, count)
        hello = Hello(
            self.name,
            f"local {id(self.team)}",
            action_names=tuple(
                name or f"action {first + i}" for i, name in enumerate(names[:MOST_ACTIONS])
            ),
            dimensions=dimensions,
            first_action=first,
            policy=crew.policy.identity,
            environment=crew.environment.name,
            on_lost=self.team.fleet.on_lost,
        )
        done = threading.Event()

        def join() -> None:
            self.agent = self.team.fleet.join(hello, self)
            done.set()

        self._post(join)
        while not done.wait(0.1) and not self.team.closing.is_set():
            pass

    def _episodes(self, env: Env) -> None:
        crew = self.crew
        monitor = crew.make_monitor()
        seed = hashed_seed(crew.seed, self.number)
        episode = 0
        first: int | None = seed
        while not self._ended:
            run = oversee(env, self.team.policy, monitor, seed=first)
            self._one(run, env, episode)
            first = None  # the environment chooses its next start itself
            episode += 1

    @property
    def _ended(self) -> bool:
        return self.team.closing.is_set() or self.steering.stopped is not None

    def _one(self, run: Generator[Question, Any, Outcome], env: Env, episode: int) -> None:
        """Run one episode."""
        pause = 1 / self.crew.speed
        due = time.monotonic()
        answer: Any = None
        try:
            question = next(run)
            while not self._ended:
                due = max(due + pause, time.monotonic())
                self.team.closing.wait(due - time.monotonic())
                waits = self.steering.taken
                self._report(question, env, episode, waits=waits)
                if question.decision.began and not waits and self._somebody_comes():
                    waits = True
                    self._report(question, env, episode, waits=True)
                answer = None
                if waits:
                    _, answer = self.steering.wait(
                        episode, question.step, given_up=self.team.closing.is_set
                    )
                    if answer is not None and not isinstance(env.action_space, gym.spaces.Discrete):
                        space = env.action_space
                        answer = np.array(answer, space.dtype).reshape(space.shape or ())
                if self._ended:
                    break  # stopped while it waited
                question = run.send(answer)
        except StopIteration:
            if self.agent is not None:
                self._post(partial(self.team.fleet.end_episode, self.agent))
        else:
            run.close()

    def _somebody_comes(self) -> bool:
        wait = self.crew.wait
        return wait > 0 and self.steering.wait_for_person(wait, given_up=self.team.closing.is_set)

    def _report(self, question: Question, env: Env, episode: int, *, waits: bool = False) -> None:
        scores, proposed = np.ravel(question.scores), question.proposed
        report = Report(
            episode,
            question.step,
            scores=tuple(scores.tolist()) if len(scores) <= MOST_SCORES else None,
            proposed=int(proposed) if np.ndim(proposed) == 0 else np.ravel(proposed).tolist(),
            waits=waits,
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
        wanted = urgent or (every is not None and now - self._pictured >= every)
        if not self._draws or not wanted:
            return None
        self._pictured = now
        try:
            return as_picture(render(env))
        except NoPictures:
            self._draws = False
            return None

    def _post(self, function: Callable[[], Any]) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function)
