"""Environments of JAX libraries that do not install together: each where it is installed.

pip install -e '.[gymnax]' && SAFEMARGIN_SLOW=1 pytest tests/slow/test_jax_libraries.py
"""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pytest
from helpers.functional import action_at, shapes

from safemargin.environments.functional.naming import functional_environment

jax = pytest.importorskip("jax", reason="needs safemargin[jax]")

WORLDS = [
    "pgx:minatar-asterix",
    "pgx:minatar-freeway",
    "pgx:minatar-seaquest",
    "pgx:minatar-space_invaders",
    "pgx:2048",
    "gymnax:CartPole-v1",
    "gymnax:Pendulum-v1",
    "gymnax:MountainCarContinuous-v0",
    "gymnax:Breakout-MinAtar",
    "gymnax:Acrobot-v1",
    "brax:inverted_pendulum",
    "brax:reacher",
    "craftax:Craftax-Classic-Symbolic-v1",
    "jaxtari:pong",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("name", WORLDS)
def test_an_episode_keeps_the_contract(name: str, whole: bool) -> None:
    library = name.partition(":")[0]
    try:
        importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed: pip install 'safemargin[{library}]'")
    if library == "jaxtari":
        jaxtari = pytest.importorskip("jaxtari")
        if not jaxtari.ownership_or_alt_markers_present():
            pytest.skip("JAXtari's sprites are not installed")
    if library == "pgx" and not whole:
        pytest.skip("tests/environments has one game of pgx; make test-slow plays them all")
    limits = {"gymnax": {"max_steps_in_episode": 40}, "brax": {"episode_length": 40}}
    environment = functional_environment(name, **limits.get(library, {}))
    reset, step = jax.jit(environment.reset), jax.jit(environment.step)
    state, seen = reset(jax.random.PRNGKey(3))
    start, steps, over = state, 0, False
    while not over and steps < 60:
        assert environment.observation_space.contains(np.asarray(seen))
        number = jax.random.PRNGKey(steps)
        action = action_at(environment.action_space, steps)
        after = step(state, action, number)
        again = step(state, action, number)
        jax.tree.map(np.testing.assert_array_equal, after, again)
        state, seen, reward, terminated, truncated = after
        assert shapes(state) == shapes(start)
        assert reward.shape == terminated.shape == truncated.shape == ()
        assert terminated.dtype == truncated.dtype == bool
        over, steps = bool(terminated | truncated), steps + 1
    assert not (terminated and truncated)
    if library in limits:
        assert over
        assert steps <= 40
    legal = environment.legal(state)
    assert legal is None or (legal.dtype == bool and bool(legal.any()))
    if environment.draws:
        assert environment.render(state).dtype == np.uint8
