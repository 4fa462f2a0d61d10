"""The only maker of random generators: (study seed, purpose, keys) → a stream.

Every random choice in a study names its purpose, so that no result depends on how many
workers there are, in which order they finish, or whether a run was interrupted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Purpose(IntEnum):
    """What a stream is used for. The numbers are part of the study format and never change."""

    RESET = 1  # the seed an episode's environment is reset with
    OPENING = 2  # length and actions of the random opening
    EPISODE_POLICY = 3  # sampled or ε-greedy action choice during an episode
    SELECTION = 4  # natural choice of steps, ties of the spread choice
    TRIAL_ACTIONS = 5  # the random actions of one trial, the same for every n
    TRIAL_ENVIRONMENT = 6  # what a stochastic environment draws during one trial
    TRIAL_POLICY = 7  # what a sampled policy draws during one trial
    DOCTOR = 8
    TRIAL_STRATA = 9  # the stratified random actions of all trials of a moment
    NATURAL_PROXIES = 10  # the decision of each game that drift is measured against, and its ties
    MONITOR = 11  # the live decisions that are compared with them, and their ties
    CRITIC_ACTIONS = 12  # the random actions that critic_advantage compares the agent's own with
    JITTER = 13  # the slips of an agent while what another first action is worth is measured
    FIDELITY = 14  # the steps of each episode that mistakes are placed at by lot
    ATTACK = 15  # the lots of a game under attack, and the actions taken at attacked steps
    MASK = 16  # the masks that are tried in a round of training one


def stream(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """Return the generator for one purpose and one sequence of non-negative keys."""
    # SeedSequence ignores trailing zeros and splits large numbers into words. Putting the number
    # of keys first and the seed, which may be large, last keeps different streams apart.
    numbers = [len(keys), int(purpose), *keys, seed]
    # An array of words is what SeedSequence makes of small numbers, but three times as fast.
    words = np.array(numbers, np.uint32) if max(numbers) < 2**32 else numbers
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def streams(
    seed: int, purpose: Purpose, keys: Sequence[int], last: Sequence[int]
) -> Iterator[np.random.Generator]:
    """Yield `stream(seed, purpose, *keys, number)` for each number, several times as fast.

    It is one generator, put into one state after another: draw from it before taking the next.
    """
    if not len(last):
        return
    first = [len(keys) + 1, int(purpose), *keys]
    if len(first) < 4 or max(*first, seed, *last) >= 2**32:  # split into several words
        yield from (stream(seed, purpose, *keys, number) for number in last)
        return
    generator = np.random.Generator(np.random.PCG64(0))
    for high, low, *odd in _seeds(first, np.array(last, np.uint32), seed).T.tolist():
        increment = ((odd[0] << 64 | odd[1]) << 1 | 1) & _ALL
        state = ((increment + (high << 64 | low)) * _MULTIPLIER + increment) & _ALL
        generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }
        yield generator


_ALL, _MULTIPLIER = 2**128 - 1, 0x2360ED051FC65DA44385DF649FCCF645
"""PCG64: its numbers have 128 bits, and each is this multiple of the last one and an increment."""


def _seeds(
    first: Sequence[int], numbers: npt.NDArray[np.uint32], seed: int
) -> npt.NDArray[np.uint64]:
    """Return what `SeedSequence([*first, number, seed])` gives PCG64, [4, numbers].

    It mixes one word after another into a pool of four, so the first ones are mixed once for all
    numbers.
    """
    multiplier, constant = 0x931E8875, 0x43B0D7E5

    def constants(count: int) -> list[int]:
        nonlocal constant
        found = [constant]
        for _ in range(count):
            found.append(found[-1] * multiplier & 0xFFFFFFFF)
        constant = found[-1]
        return found

    def hashed(value: int) -> int:
        before, after = constants(1)
        value = (value ^ before) * after & 0xFFFFFFFF
        return value ^ value >> 16

    def mixed(one: int, other: int) -> int:
        found = (one * 0xCA01F9DD - other * 0x4973F715) & 0xFFFFFFFF
        return found ^ found >> 16

    pool = [hashed(word) for word in first[:4]]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for word in first[4:]:
        pool = [mixed(each, hashed(word)) for each in pool]
    shift = np.uint32(16)
    every = np.array(pool, np.uint32)[:, np.newaxis]  # [4, numbers] from here on
    for words in (numbers, np.array([seed], np.uint32)):
        chain = np.array(constants(4), np.uint32)[:, np.newaxis]
        value = (words ^ chain[:4]) * chain[1:]
        value ^= value >> shift
        every = every * np.uint32(0xCA01F9DD) - value * np.uint32(0x4973F715)
        every ^= every >> shift
    multiplier, constant = 0x58F38DED, 0x8B51F9DD
    chain = np.array(constants(8), np.uint32)[:, np.newaxis]
    value = (np.concatenate([every, every]) ^ chain[:8]) * chain[1:]
    value = (value ^ value >> shift).astype(np.uint64)
    return np.asarray(value[::2] | value[1::2] << np.uint64(32))


def generator_from(uniforms: npt.NDArray[np.float64]) -> np.random.Generator:
    """Return a generator that depends on every bit of these numbers, which come from a stream."""
    words = np.ascontiguousarray(uniforms).view(np.uint32).tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([len(words), *words])))


def environment_seed(seed: int, *keys: int) -> int:
    """Return the seed that an episode's environment is reset with."""
    return int(stream(seed, Purpose.RESET, *keys).integers(2**31 - 1))


def plain_generator(seed: int | None) -> np.random.Generator:
    """Return a generator outside a study's streams; without a seed, different every time."""
    return np.random.default_rng(seed)


def plain_uniform(seed: int | None) -> Callable[[], float]:
    """Return a function that draws one number from [0, 1), ten times as fast as numpy does."""
    return random.Random(seed).random


def hashed_seed(*words: int) -> int:
    """Return a 32-bit seed that depends on every bit of these non-negative numbers."""
    return int(np.random.SeedSequence(words).generate_state(1)[0])
