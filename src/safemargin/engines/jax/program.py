"""The compiled program of a study: a group of lanes, each an episode of its own, for some steps.

One program serves episodes, replays and trials, for every n: which actions are given, for how many
steps a lane runs and where it starts are data. So a step has the same bits in all of them. Lanes
are computed in tiles of one fixed size, so that they do not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from safemargin.core.jax_library import SharedProgram, load_jax, tile
from safemargin.core.settings import Settings
from safemargin.environments.functional.keys import key_of_start, key_of_step
from safemargin.environments.functional.protocol import FunctionalEnvironment
from safemargin.policies.jax import JaxPolicy

TERMINATED, TRUNCATED, BAD_REWARD, BAD_OBSERVATION, BAD_SCORES = 1, 2, 4, 8, 16
"""Bits that say what a step was like."""

ENDED = TERMINATED | TRUNCATED

TILES_IN_GROUP = {"cpu": 8}
"""How many tiles one call of the program computes, one after another; 1 on accelerators."""

CHUNK = 64
"""Lanes are looked after at least every this many steps."""


class Start(NamedTuple):
    """Where lanes can begin; every array is [tiles, lanes of a tile, …]."""

    state: Any
    observation: Any
    memory: Any
    steps: Any
    """The steps of the episode so far."""


class Lanes(NamedTuple):
    """Where lanes are."""

    at: Start
    alive: Any


class Orders(NamedTuple):
    """What each lane is to do in one call: [tiles, lanes, …] or [tiles, steps, lanes]."""

    take: Any
    """Whether it begins anew, at …"""
    slot: Any
    """… this lane of the bank."""
    key: Any
    """The key that its steps draw from."""
    budget: Any
    """The steps to run."""
    given: Any
    """The actions of those steps in which …"""
    is_given: Any
    """… they replace the policy's."""
    ranked: Any
    """With legal actions alone: whether the action is one of those legal now, chosen by …"""
    words: Any
    """… a number in [0, 1), as 32 and 21 bits."""
    noise: Any
    """What a sampled policy draws."""


class Outcome(NamedTuple):
    """What happened in one call."""

    rewards: Any  # [tiles, lanes, steps]
    taken: Any  # [tiles, lanes] how many steps each lane took
    codes: Any  # [tiles, lanes] the bits above of all these steps
    first_scores: Any  # [tiles, lanes, …]
    scores: Any  # [tiles, steps, lanes, …]
    actions: Any  # [tiles, steps, lanes, …]


class Program:
    """Compiles what a study does; each of several devices computes its share of the tiles."""

    def __init__(
        self,
        functional: FunctionalEnvironment,
        policy: JaxPolicy,
        settings: Settings,
        devices: Sequence[Any],
    ) -> None:
        jax = self.jax = load_jax("engine 'jax'")
        self.functional, self.policy, self.settings = functional, policy, settings
        self.space = functional.action_space
        self.discrete = isinstance(self.space, gym.spaces.Discrete)
        self.devices = devices
        mesh = jax.sharding.Mesh(np.array(devices), ("devices",))
        by_tile = jax.sharding.PartitionSpec("devices")
        everywhere = jax.sharding.PartitionSpec()
        self.split = jax.sharding.NamedSharding(mesh, by_tile)
        """Where arrays [tiles, …] are: each device has some of the tiles."""
        self.whole = jax.sharding.NamedSharding(mesh, everywhere)
        """Where arrays are that each device has a copy of."""
        self.tiles = TILES_IN_GROUP.get(devices[0].platform, 1) * len(devices)
        self.lanes = tile()
        calls = -(-settings.horizon // CHUNK)
        self.chunk = -(-settings.horizon // calls)
        key = jax.ShapeDtypeStruct((2,), "uint32")
        state, self._seen = jax.eval_shape(functional.reset, key)
        self._types = jax.tree.map(lambda leaf: leaf.dtype, state)
        self.masked = jax.eval_shape(functional.legal, state) is not None
        self.sampled = settings.action_choice == "sampled"
        self.starts = SharedProgram(self._starts)
        on_each = jax.shard_map(
            self._advance,
            mesh=mesh,
            in_specs=(everywhere, by_tile, everywhere, by_tile),
            out_specs=by_tile,
            check_vma=False,
        )
        self.advance = SharedProgram(self._advance if len(devices) == 1 else on_each, devices)
        self.legal = SharedProgram(jax.vmap(jax.vmap(functional.legal)))

    @property
    def size(self) -> int:
        """The number of lanes of a group."""
        return self.tiles * self.lanes

    def no_orders(self) -> Orders:
        """Return orders to stand still, as arrays to write into."""
        group, steps = (self.tiles, self.lanes), (self.tiles, self.chunk, self.lanes)
        action = () if self.discrete else (self.space.shape or ())
        width = int(np.prod(action)) if self.policy.kind == "gaussian" else 1
        return Orders(
            take=np.zeros(group, bool),
            slot=np.zeros(group, np.int32),
            key=np.zeros((*group, 2), np.uint32),
            budget=np.zeros(group, np.int32),
            given=np.zeros((*steps, *action), np.int32 if self.discrete else self.space.dtype),
            is_given=np.zeros(steps, bool),
            ranked=np.zeros(steps, bool) if self.masked else None,
            words=np.zeros((*steps, 2), np.uint32) if self.masked else None,
            noise=np.zeros((*steps, width), np.float32) if self.sampled else None,
        )

    def still(self, bank: Start) -> Lanes:
        """Return lanes that do nothing yet."""
        put = self.jax.device_put
        return Lanes(*put((bank, np.zeros((self.tiles, self.lanes), bool)), self.split))

    # -- what is compiled ----------------------------------------------------------------------

    def _starts(self, keys: Any) -> Start:
        """Begin episodes with these keys, [tiles, lanes, 2]."""
        jax = self.jax

        def one(key: Any) -> tuple[Any, Any]:
            found: tuple[Any, Any] = self.functional.reset(key_of_start(jax, key))
            return found

        state, observation = jax.lax.map(jax.vmap(one), keys)
        memory = None
        if self.policy.initial is not None:
            shape = keys.shape[:2]
            memory = tuple(
                jax.numpy.broadcast_to(part, (*shape, *part.shape)) for part in self.policy.initial
            )
        return Start(state, observation, memory, jax.numpy.zeros(keys.shape[:2], "int32"))

    def _advance(
        self, params: Any, lanes: Lanes, bank: Start, orders: Orders
    ) -> tuple[Lanes, Outcome]:
        """Let every lane do what it is ordered to."""
        jax = self.jax
        flat = jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), bank)

        def one_tile(given: tuple[Lanes, Orders]) -> tuple[Lanes, Outcome]:
            return self._advance_tile(params, given[0], flat, given[1])

        found: tuple[Lanes, Outcome] = jax.lax.map(one_tile, (lanes, orders))
        return found

    def _advance_tile(
        self, params: Any, lanes: Lanes, bank: Start, orders: Orders
    ) -> tuple[Lanes, Outcome]:
        jax, jnp = self.jax, self.jax.numpy
        at = self._where(orders.take, jax.tree.map(lambda leaf: leaf[orders.slot], bank), lanes.at)
        begun = Lanes(at, lanes.alive | orders.take)
        nothing = jnp.zeros(len(orders.take), "int32"), jnp.zeros(len(orders.take), "uint8")

        def step(carry: tuple[Lanes, Any, Any, Any], now: Orders) -> tuple[Any, Any]:
            here, number, taken, codes = carry
            after, active, code, seen = self._step(params, here, orders, now, number)
            return (after, number + 1, taken + active, codes | code), seen

        every = orders._replace(take=None, slot=None, key=None, budget=None)
        (after, _, taken, codes), seen = jax.lax.scan(step, (begun, jnp.int32(0), *nothing), every)
        rewards, scores, actions = seen
        return after, Outcome(rewards.T, taken, codes, scores[0], scores, actions)

    def _step(
        self, params: Any, lanes: Lanes, orders: Orders, now: Orders, number: Any
    ) -> tuple[Lanes, Any, Any, Any]:
        """Take one step in every lane of a tile that has not ended and may still run.

        Return where lanes are then, which of them took it, the bits above, and what is seen.
        """
        jax, jnp = self.jax, self.jax.numpy
        barrier = jax.lax.optimization_barrier
        at = lanes.at
        scores, memory = self.policy.apply(params, at.observation, at.memory)
        action = self._action(at.state, scores, now)
        keys = jax.vmap(lambda key, steps: key_of_step(jax, key, steps))(orders.key, at.steps)
        given = barrier((at.state, action, keys))
        state, observation, reward, terminated, truncated = barrier(
            jax.vmap(self.functional.step)(*given)
        )
        state = jax.tree.map(lambda leaf, kind: leaf.astype(kind), state, self._types)
        active = lanes.alive & (number < orders.budget)
        reward = jnp.asarray(reward, "float32")
        terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
        code = (
            TERMINATED * terminated
            + TRUNCATED * (truncated & ~terminated)
            + BAD_REWARD * ~jnp.isfinite(reward)
            + BAD_OBSERVATION * self._has_nan(at.observation)
            + BAD_SCORES * ~jnp.isfinite(scores.reshape(len(scores), -1)).all(axis=1)
        )
        after = Start(state, observation, memory, at.steps + 1)
        ended = terminated | truncated
        code = jnp.where(active, code, 0).astype("uint8")
        here = Lanes(self._where(active, after, at), lanes.alive & ~(active & ended))
        return here, active, code, (jnp.where(active, reward, 0), scores, action)

    def _action(self, state: Any, scores: Any, now: Orders) -> Any:
        """Return the given action, or else the policy's."""
        jax, jnp = self.jax, self.jax.numpy
        legal = jax.vmap(self.functional.legal)(state) if self.masked else None
        if not self.discrete:
            chosen = self._clipped(scores, now)
            return jnp.where(now.is_given.reshape(-1, *[1] * (chosen.ndim - 1)), now.given, chosen)
        first = int(self.space.start)  # type: ignore[attr-defined]
        allowed = legal if self.policy.uses_mask else None
        if allowed is not None:
            scores = jnp.where(allowed, scores, -jnp.inf)
        if self.sampled:
            weights = jnp.exp(scores - scores.max(axis=1, keepdims=True))
            cumulative = jnp.cumsum(weights, axis=1)
            drawn = now.noise[:, :1] * cumulative[:, -1:]
            last = scores.shape[1] - 1
            chosen = jnp.minimum((cumulative <= drawn).sum(axis=1), last).astype("int32") + first
        else:
            chosen = jnp.argmax(scores, axis=1).astype("int32") + first
        given = now.given
        if legal is not None:
            by_rank = _ranked(jnp, legal, now.words) + first
            given = jnp.where(now.ranked, by_rank, given)
        return jnp.where(now.is_given, given, chosen)

    def _clipped(self, scores: Any, now: Orders) -> Any:
        """Return the policy's action of a Box space."""
        jnp = self.jax.numpy
        space: Any = self.space
        if self.policy.kind == "gaussian":
            action = scores[:, 0]
            if self.sampled:
                action = action + jnp.exp(scores[:, 1]) * now.noise
        else:
            action = scores
        shaped = action.reshape(-1, *space.shape)
        return jnp.clip(shaped, space.low, space.high).astype(space.dtype)

    def _where(self, chosen: Any, new: Any, old: Any) -> Any:
        """Choose lane by lane between two trees of arrays."""
        jax, jnp = self.jax, self.jax.numpy

        def pick(first: Any, second: Any) -> Any:
            return jnp.where(chosen.reshape(-1, *[1] * (first.ndim - 1)), first, second)

        return jax.tree.map(pick, new, old)

    def _has_nan(self, observation: Any) -> Any:
        """Say for each lane whether its observation holds NaN."""
        jax, jnp = self.jax, self.jax.numpy
        found: Any = False
        for leaf in jax.tree.leaves(observation):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                found = found | jnp.isnan(leaf).reshape(len(leaf), -1).any(axis=1)
        return found


def _ranked(jnp: Any, legal: Any, words: Any) -> Any:
    """Return the legal action that a number u in [0, 1) stands for: the ⌊u · count⌋-th."""
    count = legal.sum(axis=1).astype("uint32")
    # ⌊(high · 2²¹ + low) · count / 2⁵³⌋ in 32 bits, for fewer than 2¹¹ actions.
    high, low = words[:, 0], words[:, 1]
    carry = (low * count) >> 21
    lower = (high & 0xFFFF) * count + carry
    rank = ((high >> 16) * count + (lower >> 16)) >> 16
    position = jnp.cumsum(legal, axis=1) - 1
    return jnp.argmax(legal & (position == rank[:, None].astype(position.dtype)), axis=1).astype(
        "int32"
    )
