"""The proof that a functional environment is one: its functions depend on their arguments alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.jax_library import load_jax, on_processor
from safemargin.core.seeding import Purpose, stream
from safemargin.environments.functional.keys import key_of_step, key_of_stream
from safemargin.environments.functional.programs import Programs
from safemargin.environments.functional.protocol import FunctionalEnvironment
from safemargin.errors import EnvironmentFault
from safemargin.policies.actions import RandomActions

STEPS = 200
"""Random steps, in as many episodes as it takes, that are taken twice."""

PLAIN_STEPS = 2
"""Steps that are taken without compiling them: slow."""

FIRST_OBSERVATIONS = 64
"""An episode that ends in one of the first observations of this many others began again."""

ENOUGH_ENDS = 3
"""Fewer ends of episodes may all look like a start by chance."""

ENDED = "let step return the state in which the episode ended"

ROUNDING = 1e-3
"""Relative to the numbers compared: a compiled program rounds elsewhere than a plain one."""


def uses_key(functional: FunctionalEnvironment) -> bool:
    """Whether anything that `step` returns depends on its key, as far as its program says."""
    from jax.interpreters import partial_eval

    program = _program(functional).jaxpr
    return bool(partial_eval.dce_jaxpr(program, [True] * len(program.outvars))[1][-1])


def check_pure(functional: FunctionalEnvironment, seed: int) -> str:
    """Return what was proven; EnvironmentFault names what is not pure."""
    name = functional.name
    if _written(_program(functional)) != _written(_program(functional)):
        raise EnvironmentFault(
            f"{name}: step is not a pure function: what it does depends on how often it was "
            "called, or on something else outside it; keep all that changes in the state"
        )
    with on_processor():
        return _check_steps(functional, _Trial(functional, seed))


def _check_steps(functional: FunctionalEnvironment, trial: _Trial) -> str:
    """Take steps twice, and return what was proven."""
    name = functional.name
    first = list(trial.steps())
    for number, (step, again) in enumerate(zip(first, trial.steps(), strict=True)):
        if _bytes(step) != _bytes(again):
            raise EnvironmentFault(
                f"{name}: step is not a pure function: the same program gave something else for "
                f"the same state, action and key (step {number}); let it call nothing outside JAX"
            )
    for (state, action, key, taken), found in first[:PLAIN_STEPS]:
        now = key_of_step(load_jax("the doctor"), key, taken)
        _compare(name, functional.step(state, action, now), found)
    if functional.deterministic:
        trial.refuse_draws(first)
    trial.refuse_new_episodes(first)
    return (
        f"step is a pure function: {len(first)} steps came out the same twice, bit for bit, and "
        "uncompiled within rounding"
    )


_Step = tuple[tuple[Any, Any, Any, Any], tuple[Any, ...]]
"""State, action, the key of the episode and the steps so far, and what `step` returned."""


class _Trial:
    """Random steps of an environment."""

    def __init__(self, functional: FunctionalEnvironment, seed: int) -> None:
        self._jax, self._functional, self._seed = load_jax("the doctor"), functional, seed
        self._programs = Programs(functional)

    def steps(self) -> Iterator[_Step]:
        """Take the steps, the same ones at every call."""
        generator = stream(self._seed, Purpose.DOCTOR, 3)
        random_actions = RandomActions(self._functional.action_space)
        discrete = isinstance(self._functional.action_space, gym.spaces.Discrete)
        state, key, steps = None, None, 0
        for _ in range(STEPS):
            if state is None:
                key, steps = key_of_stream(generator), 0
                state, _ = self._programs.reset(key)
                kinds = self._kinds(state)
            legal = self._programs.legal(state)
            mask = None if legal is None else np.asarray(legal, bool)
            action = random_actions(generator.random(random_actions.width), mask)
            given = (state, np.int32(action) if discrete else action, key, np.int32(steps))
            found = self._programs.step(*given)
            if self._kinds(found[0]) != kinds:
                raise EnvironmentFault(
                    f"{self._functional.name}: step returns a state whose arrays have other shapes "
                    f"or types than those it was given: {self._kinds(found[0])}, not {kinds}"
                )
            yield given, found
            state, steps = (None if found[3] or found[4] else found[0]), steps + 1

    def refuse_draws(self, steps: list[_Step]) -> None:
        """Raise EnvironmentFault if steps that are called deterministic depend on their key."""
        for (state, action, key, taken), found in steps:
            other = key ^ np.uint32(0x9E3779B9)
            if _bytes(self._programs.step(state, action, other, taken)) != _bytes(found):
                raise EnvironmentFault(
                    f"{self._functional.name}: it calls itself deterministic, and yet a step came "
                    "out otherwise with another key; leave `deterministic` out"
                )

    def refuse_new_episodes(self, steps: list[_Step]) -> None:
        """Raise EnvironmentFault if the last step of an episode begins the next one."""
        last = [found for _, found in steps if found[3] or found[4]]
        generator = stream(self._seed, Purpose.DOCTOR, 4)
        starts = [self._programs.reset(key_of_stream(generator)) for _ in range(FIRST_OBSERVATIONS)]
        known = {_bytes(observation) for _, observation in starts}
        again = sum(_bytes(found[1]) in known for found in last)
        if last and again == len(last):
            raise EnvironmentFault(
                f"{self._functional.name}: it resets itself: the last observation of "
                f"{again} of {len(last)} episodes is the first one of another; {ENDED}"
            )
        if len(last) >= ENOUGH_ENDS and self._counts_anew(steps, starts, last):
            raise EnvironmentFault(
                f"{self._functional.name}: it resets itself: all that is the same at every start "
                f"is so again where {len(last)} episodes ended; {ENDED}"
            )

    def _counts_anew(self, steps: list[_Step], starts: list[Any], last: list[Any]) -> bool:
        """Whether arrays like a counter of steps, alike at all starts, are back when it ends."""
        first = [_arrays(state) for state, _ in starts]
        alike = [
            number
            for number, array in enumerate(first[0])
            if all(array.tobytes() == other[number].tobytes() for other in first)
        ]
        met = [_arrays(given[0]) for given, _ in steps]
        ends = [_arrays(found[0]) for found in last]

        def changed(number: int, states: list[Any]) -> bool:
            start = first[0][number].tobytes()
            return any(state[number].tobytes() != start for state in states)

        moving = [number for number in alike if changed(number, met)]
        return bool(moving) and not any(changed(number, ends) for number in moving)

    def _kinds(self, state: Any) -> list[str]:
        leaves = self._jax.tree.leaves(state)
        return [f"{leaf.dtype}{list(np.shape(leaf))}" for leaf in leaves]


def _program(functional: FunctionalEnvironment) -> Any:
    """Trace `step`."""
    jax = load_jax(f"environment {functional.name!r}")
    key = jax.ShapeDtypeStruct((2,), "uint32")
    state, _ = jax.eval_shape(functional.reset, key)
    return jax.make_jaxpr(lambda *given: functional.step(*given))(
        state, _some_action(functional), key
    )


def _written(program: Any) -> tuple[str, bytes]:
    """Return a program as text, without the addresses of objects, and its constants."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(program)), _bytes(program.consts)


def _some_action(functional: FunctionalEnvironment) -> Any:
    space = functional.action_space
    if isinstance(space, gym.spaces.Discrete):
        return np.int32(space.start)
    return np.zeros(space.shape or (), space.dtype)


def _arrays(values: Any) -> list[npt.NDArray[Any]]:
    jax = load_jax("the doctor")
    return [
        np.asarray(
            jax.random.key_data(leaf)
            if jax.dtypes.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)
            else leaf
        )
        for leaf in jax.tree.leaves(values)
    ]


def _bytes(values: Any) -> bytes:
    return b"".join(array.tobytes() for array in _arrays(values))


def _compare(name: str, plain: Any, compiled: Any) -> None:
    """Raise EnvironmentFault if a step that was not compiled differs by more than rounding."""
    for one, other in zip(_arrays(plain), _arrays(compiled), strict=True):
        if one.dtype.kind in "fc":
            same = np.allclose(one, other, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
        else:
            same = bool(np.all(one == other))
        if not same:
            raise EnvironmentFault(
                f"{name}: step is not a pure function: compiled it gives something else than "
                "without compiling it; let it depend on its arguments alone"
            )
