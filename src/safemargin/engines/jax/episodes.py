"""Running episodes, a group of them at a time; each is a game of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from safemargin.core.records import Array, Episode, EpisodeKey
from safemargin.core.seeding import Purpose, environment_seed, stream
from safemargin.engines.jax.draws import PolicyDraws, Schedule, Schedules, schedule_of
from safemargin.engines.jax.parts import Parts
from safemargin.engines.jax.pool import Pool
from safemargin.engines.jax.program import ENDED, TERMINATED
from safemargin.engines.jax.runs import Finished, Runs, Taken
from safemargin.environments.functional.keys import key_of_seed
from safemargin.policies.proxies import proxy_values


class Games:
    """Some episodes that run together."""

    def __init__(self, parts: Parts, pool: Pool, keys: Sequence[EpisodeKey]) -> None:
        self._parts, self._keys, settings = parts, keys, parts.settings
        self._seeds = [environment_seed(settings.seed, *key.game_keys) for key in keys]
        openings = [self._opening(key) for key in keys]
        self._openings = [len(opening) for opening in openings]
        self._steps: list[list[tuple[Array, Array, Array]]] = [[] for _ in keys]
        """Rewards, scores and actions of each call, each [steps, …]."""
        self._over: list[Episode] = []
        self.runs = Runs(
            bank=pool.starts(self._seeds),
            slots=np.arange(len(keys), dtype=np.int32),
            limits=np.full(len(keys), settings.max_episode_steps),
            finished=self._finish,
            keys=np.stack([key_of_seed(seed) for seed in self._seeds]),
            schedule=Schedules.of(openings),
            draws=None if parts.policy_actions.deterministic else self._draws(),
            taken=self._keep,
            owner=self,
        )

    def finished(self) -> list[Episode]:
        """Return the episodes that are over since the last call."""
        over, self._over = self._over, []
        return over

    def _opening(self, key: EpisodeKey) -> Schedule:
        """Return the random actions that an episode begins with."""
        parts, count = self._parts, 0
        generator = stream(parts.settings.seed, Purpose.OPENING, *key.game_keys)
        if parts.settings.opening:
            count = int(generator.integers(parts.settings.opening + 1))
        uniforms = generator.random((count, parts.random_actions.width))
        return schedule_of(uniforms, parts.random_actions, masked=parts.masked)

    def _draws(self) -> list[PolicyDraws]:
        """Return what the policy draws in each episode, from the end of its opening on."""
        parts, seed = self._parts, self._parts.settings.seed
        return [
            PolicyDraws(
                lambda key=key: stream(  # type: ignore[misc]
                    seed, Purpose.EPISODE_POLICY, *key.stream_keys
                ),
                parts.policy_actions,
                parts.policy_masked,
                opening,
            )
            for key, opening in zip(self._keys, self._openings, strict=True)
        ]

    def _keep(self, taken: Taken) -> None:
        """Keep the steps of a call."""
        for row, number in enumerate(taken.numbers.tolist()):
            if not taken.since[row]:
                self._steps[number] = []
            steps = slice(int(taken.count[row]))
            self._steps[number].append(
                (
                    taken.rewards[row, steps].copy(),
                    taken.scores[row, steps].copy(),
                    taken.actions[row, steps].copy(),
                )
            )

    def _finish(self, over: Finished) -> None:
        for number, code in zip(over.numbers.tolist(), over.codes.tolist(), strict=True):
            self._over.append(self._episode(number, code))
            self._steps[number] = []

    def _episode(self, number: int, code: int) -> Episode:
        parts, key = self._parts, self._keys[number]
        parts.check(code, f"episode {key}")
        rewards, scores, actions = map(np.concatenate, zip(*self._steps[number], strict=True))
        terminated, ended = bool(code & TERMINATED), bool(code & ENDED)
        return Episode(
            key=key,
            seed=self._seeds[number],
            opening=min(self._openings[number], len(rewards)),
            actions=actions.astype(np.int64) if parts.program.discrete else actions,
            rewards=rewards.astype(np.float64),
            scores=scores,
            proxies={
                proxy.name: proxy_values(proxy, scores, action_space=parts.program.space)
                for proxy in parts.job.proxies
            },
            terminated=terminated,
            truncated=ended and not terminated,
            cut=not ended,
        )
