"""One policy in one simulator: whole episodes, and trials from a point within one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Array, Episode, EpisodeKey, Floats
from safemargin.core.seeding import Purpose, environment_seed, stream
from safemargin.core.settings import Settings
from safemargin.criticality.coalescing import Rollout, StateIndex
from safemargin.criticality.perturbations import History, Perturbation, make_perturbation
from safemargin.criticality.reference import Reference, make_reference
from safemargin.criticality.replaying import Replay, native_action
from safemargin.criticality.signals import Signal
from safemargin.environments import Simulator, Snapshot, Step
from safemargin.environments.simulator import Mask
from safemargin.errors import EnvironmentFault
from safemargin.policies.actions import PolicyActions, RandomActions
from safemargin.policies.base import Memory, Policy, batch_of
from safemargin.policies.batching import ask
from safemargin.policies.features import LAGS, with_value
from safemargin.policies.proxies import Proxy, proxy_at, proxy_values


@dataclass(frozen=True, slots=True)
class Point:
    """A saved step of an episode, from which any number of rollouts can start."""

    snapshot: Snapshot
    memory: Memory
    hidden: npt.NDArray[np.float32] | None = None  # [lags, width]
    """The policy's hidden layer here and a few steps before (`LAGS`); None if it exposes none."""
    random_state: bytes | None = None
    """The digest of all random generators; None if their use does not matter."""
    earlier: Sequence[Any] | Array = ()  # [steps]
    """The actions of the episode up to here."""

    def drew_in(self, simulator: Simulator) -> bool:
        """Whether a rollout from here has used a random generator of the environment."""
        return self.random_state is not None and simulator.random_state() != self.random_state


@dataclass(eq=False)
class Runner:
    """Runs a policy in a simulator, one environment step at a time.

    `siblings` are simulators of the same environment that can restore the first one's snapshots;
    trials run in all of them at once (see `batch`).
    """

    simulator: Simulator
    policy: Policy
    settings: Settings
    proxies: Sequence[Proxy] = ()
    siblings: Sequence[Simulator] = ()
    perturbation: Perturbation | None = None
    """The one that the settings name, where it is loaded already."""
    reference: Reference | None = None
    """The one that the settings name, where it is loaded already."""
    signals: tuple[str, ...] = ()
    """What trials add up, all at once; by default the signal of the settings alone."""

    def __post_init__(self) -> None:
        settings, space = self.settings, self.simulator.env.action_space
        self.simulators = (self.simulator, *self.siblings)
        self.random_actions = RandomActions(space)
        self.policy_actions = PolicyActions(space, self.policy.kind, settings)
        self.no_uniforms = np.empty((0, self.random_actions.width))  # for no random action
        self.gains = tuple(map(Signal.parse, self.signals or (settings.signal,)))
        steps = np.arange(settings.horizon)
        exponents = [steps if signal.discounted else 0 * steps for signal in self.gains]
        self.discounts = [np.asarray(settings.gamma**each, np.float64) for each in exponents]

    @cached_property
    def mistakes(self) -> Perturbation:
        """What takes the place of the agent's actions in trials."""
        found = self.perturbation or make_perturbation(self.settings.perturb)
        found.check(self.simulator.env.action_space, self.settings)
        return found

    @cached_property
    def successor(self) -> Reference | None:
        """Who acts after the mistakes; None: the agent itself."""
        if self.reference is None and self.settings.reference is None:
            return None
        found = make_reference(self.reference or self.settings.reference or "")
        found.check(self.simulator.env, self.policy)
        return found

    def run_game(self, key: EpisodeKey, *, seed: int | None = None) -> list[Episode]:
        """Run an episode, and the following ones of the same game where each life is an episode."""
        episodes = [self.run_episode(key, seed=seed)]
        while self.simulator.game_goes_on:
            last = episodes[-1]
            following = replace(last.key, life=last.key.life + 1)
            first = self.simulator.next_life()
            episodes.append(self._run(following, last.seed, first, self.no_uniforms))
        return episodes

    def run_episode(self, key: EpisodeKey, *, seed: int | None = None) -> Episode:
        """Run an episode under the policy, after a random opening if the settings ask for one."""
        if seed is None:
            seed = environment_seed(self.settings.seed, *key.game_keys)
        return self._run(key, seed, self.simulator.reset(seed), self.opening(*key.game_keys))

    def _run(self, key: EpisodeKey, seed: int, observation: Any, opening: Floats) -> Episode:
        settings, simulator = self.settings, self.simulator
        generator = None
        if not self.policy_actions.deterministic:
            generator = stream(settings.seed, Purpose.EPISODE_POLICY, *key.stream_keys)
        history: deque[Any] = deque(maxlen=max([1, *(proxy.history for proxy in self.proxies)]))
        stepwise = [proxy for proxy in self.proxies if not proxy.vectorised]
        stepwise_values: dict[str, list[Any]] = {proxy.name: [] for proxy in stepwise}
        actions: list[Any] = []
        rewards: list[float] = []
        scores: list[npt.NDArray[np.float32]] = []

        before = simulator.random_state()
        memory = self.policy.initial_memory(1)
        terminated = truncated = False
        while not (terminated or truncated) and len(rewards) < settings.max_episode_steps:
            row, memory = self._scores(observation, memory)
            if len(actions) < len(opening):
                action = self.random_actions(opening[len(actions)], simulator.mask)
            else:
                action = self.choose(row, generator, simulator.mask)
            if stepwise:
                history.append(observation)
                for proxy in stepwise:
                    stepwise_values[proxy.name].append(
                        proxy_at(
                            proxy,
                            row,
                            history=list(history)[-proxy.history :] if proxy.history else (),
                            n_values=settings.n_values,
                            action_space=simulator.env.action_space,
                            step=len(rewards),
                        )
                    )
            step = simulator.step(action)
            actions.append(action)
            rewards.append(step.reward)
            scores.append(row)
            observation = step.observation
            terminated, truncated = step.terminated, step.truncated
        all_scores = np.stack(scores)
        values = {
            proxy.name: (
                np.asarray(stepwise_values[proxy.name], dtype=np.float64)
                if proxy in stepwise
                else proxy_values(proxy, all_scores, action_space=simulator.env.action_space)
            )
            for proxy in self.proxies
        }
        return Episode(
            key=key,
            seed=seed,
            opening=min(len(opening), len(rewards)),
            actions=np.asarray(actions),
            rewards=np.asarray(rewards, dtype=np.float64),
            scores=all_scores,
            proxies=values,
            terminated=terminated,
            truncated=truncated and not terminated,
            cut=not (terminated or truncated),
            drew=simulator.random_state() != before,
        )

    def go_to(self, episode: Episode, step: int, earlier_lives: Sequence[Array] = ()) -> Point:
        """Replay recorded actions from the game's start up to a step and save the state there.

        `earlier_lives` are the actions of the lives before the episode's own. Raises
        EnvironmentFault if the replay does not give the recorded rewards and scores.
        """
        memory = self.policy.initial_memory(1)
        unwatched = sum(map(len, earlier_lives)) + step - self.simulator.looks_back - max(LAGS)
        replay = Replay(
            self.simulator,
            episode,
            earlier_lives,
            partial(_diverged, episode),
            unwatched=unwatched if memory is None else 0,
        )
        observation = replay.begin()
        at = [max(step - lag, 0) for lag in LAGS]
        hidden: dict[int, npt.NDArray[np.float32]] = {}
        for position in range(step):
            if position in at:
                hidden[position] = self._hidden(observation, memory)
            if memory is not None:
                _, memory = self._scores(observation, memory)
            observation = replay.advance().observation
        row, _ = self._scores(observation, memory)
        if not np.array_equal(row, episode.scores[step]):
            raise _diverged(episode, step)
        hidden[step] = self._hidden(observation, memory)
        seen = np.stack([hidden[position] for position in at])
        return Point(
            self.simulator.save(),
            memory,
            seen if seen.size else None,
            self.simulator.random_state(),
            episode.actions[:step],
        )

    def hidden_along(
        self, episode: Episode, earlier_lives: Sequence[Array] = ()
    ) -> npt.NDArray[np.float32]:
        """Replay an episode; return the policy's hidden layer (and value) at each step."""
        diverged = partial(_diverged, episode)
        replay = Replay(self.simulator, episode, earlier_lives, diverged, unwatched=0)
        observation, memory = replay.begin(), self.policy.initial_memory(1)
        rows = []
        for step in range(episode.steps):
            found = self.policy.features(batch_of([observation]), memory)
            if not np.array_equal(found.scores[0], episode.scores[step]):
                raise _diverged(episode, step)
            memory = found.memory
            rows.append(with_value(found)[0])
            observation = replay.advance().observation
        return np.stack(rows)

    def repeats(
        self,
        point: Point,
        episode: Episode,
        step: int,
        *,
        steps: int | None = None,
        state_index: StateIndex | None = None,
    ) -> Rollout | None:
        """Take the recorded actions from the restored point; None if they lead elsewhere.

        Compares rewards, ends and the policy's scores over `steps`, by default up to the horizon:
        the proof that the snapshot holds all of the state, whatever happened after it was taken.
        Adds the rollout to `state_index`, so that others can join it.
        """
        simulator = self.simulator
        last = min(episode.steps, step + (self.settings.horizon if steps is None else steps))
        simulator.restore(point.snapshot)
        memory = point.memory
        observation = simulator.observation
        rollout = Rollout()
        for position in range(step, last):
            if state_index is not None:
                state_index.match_or_add(position - step, simulator, memory, rollout)
            row, memory = self._scores(observation, memory)
            taken = simulator.step(native_action(episode.actions[position]))
            rollout.rewards.append(self.gained(taken))
            ended = taken.terminated or taken.truncated
            should_end = position == episode.steps - 1 and not episode.cut
            if (
                taken.reward != episode.rewards[position]
                or ended != should_end
                or not np.array_equal(row, episode.scores[position])
            ):
                return None
            observation = taken.observation
        rollout.finished = True
        rollout.drew = point.drew_in(simulator)
        return rollout

    def leave(self, point: Point, uniforms: Floats) -> int:
        """Take random actions from the point, to disturb hidden state; return their number."""
        self.simulator.restore(point.snapshot)
        for taken, row in enumerate(uniforms):
            if self.simulator.ended:
                return taken
            self.simulator.step(self.random_actions(row, self.simulator.mask))
        return len(uniforms)

    def gained(self, step: Step, simulator: Simulator | None = None) -> tuple[float, ...]:
        """Return what the step just taken (in the first simulator) adds to each signal."""
        where = simulator or self.simulator
        return tuple(signal.value(step, where) for signal in self.gains)

    def returns(self, gained: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        """Return Σ γ^k r_k up to the horizon for each signal; `gained` has a tuple for each step.

        It is exactly rounded, whatever the order of adding. Signals that are not discounted have
        γ = 1.
        """
        horizon, signals = self.settings.horizon, len(self.gains)
        counted = np.array(gained[:horizon], dtype=np.float64).reshape(-1, signals)
        return tuple(
            self._added(column, discounts[: len(counted)])
            for column, discounts in zip(counted.T, self.discounts, strict=True)
        )

    def _added(self, counted: Floats, discounts: Floats) -> float:
        try:
            return math.fsum(counted * discounts)
        except OverflowError:
            raise EnvironmentFault(
                f"the rewards of a rollout (up to {np.abs(counted).max():g}) add up to more than "
                "a floating-point number holds; scale them down"
            ) from None

    def opening(self, *game_keys: int) -> Floats:
        """Draw the uniform numbers behind a game's random opening, [length, width]."""
        limit = self.settings.opening
        if limit == 0:
            return self.no_uniforms
        generator = stream(self.settings.seed, Purpose.OPENING, *game_keys)
        return generator.random((int(generator.integers(limit + 1)), self.random_actions.width))

    def scores(
        self, observations: Sequence[Any], memories: Sequence[Memory]
    ) -> tuple[npt.NDArray[np.float32], list[Memory]]:
        """Ask the policy for the scores of several observations in one call."""
        if memories[0] is None:
            rows, _ = ask(self.policy, batch_of(observations), None)
            return rows, [None] * len(observations)
        memory = tuple(
            np.concatenate(parts)
            for parts in zip(*(each for each in memories if each is not None), strict=True)
        )
        rows, after = ask(self.policy, batch_of(observations), memory)
        return rows, [
            tuple(part[row : row + 1] for part in after or ()) for row in range(len(observations))
        ]

    def choose(
        self,
        row: npt.NDArray[np.float32],
        generator: np.random.Generator | None,
        mask: Mask | None,
    ) -> Any:
        """Choose the policy's action for one row of scores."""
        return self.policy_actions(row, generator, mask if self.policy.uses_mask else None)

    def err(
        self,
        mistakes: Perturbation,
        uniforms: Floats,
        history: History,
        row: npt.NDArray[np.float32] | None,
        generator: np.random.Generator | None,
    ) -> Any:
        """Choose the action of a perturbed step, given the policy's scores if they are known.

        Draws what the policy would have drawn, so its later draws are those without mistakes.
        """
        intended = None
        if mistakes.watches and row is not None:
            intended = self.choose(row, generator, history.mask)
        else:
            self.skip_draw(generator)
        history.intended_since.append(intended)
        action = mistakes.checked(uniforms, intended, history)
        history.taken_since.append(action)
        return action

    def skip_draw(self, generator: np.random.Generator | None) -> None:
        """Draw what the policy would have drawn where a random action replaces its own.

        Its later draws are then the same as without the random action. Without a generator, it
        draws nothing later.
        """
        if generator is not None:
            self.policy_actions.draw(generator)

    def _scores(self, observation: Any, memory: Memory) -> tuple[npt.NDArray[np.float32], Memory]:
        scores, memory = ask(self.policy, batch_of([observation]), memory)
        return scores[0], memory

    def _hidden(self, observation: Any, memory: Memory) -> npt.NDArray[np.float32]:
        return np.asarray(with_value(self.policy.features(batch_of([observation]), memory))[0])


def _diverged(episode: Episode, step: int) -> EnvironmentFault:
    return EnvironmentFault(
        f"replaying episode {episode.key} (seed {episode.seed}) did not give what was recorded "
        f"at step {step}; the environment or the policy is not reproducible, run the doctor on it"
    )
