"""Environments of JAX libraries keep the contract of functional environments."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import numpy as np
import pytest
from helpers.functional import action_at, shapes

from safemargin.environments import EnvironmentSpec
from safemargin.environments.functional import FunctionalEnvironment
from safemargin.environments.functional.adapters import libraries
from safemargin.environments.functional.naming import functional_environment
from safemargin.errors import InvalidInput, MissingExtra

jax = pytest.importorskip("jax", reason="needs safemargin[jax]")

WORLDS = ["pgx:minatar-breakout", "safemargin:rocket"]


@functools.cache
def world(name: str) -> FunctionalEnvironment:
    if name.startswith("pgx"):
        pytest.importorskip("pgx", reason="needs safemargin[pgx]")
    return functional_environment(name)


@functools.cache
def programs(name: str) -> tuple[Any, Any]:
    return jax.jit(world(name).reset), jax.jit(world(name).step)


def key(number: int) -> Any:
    return jax.random.PRNGKey(number)


@pytest.mark.parametrize("name", WORLDS)
def test_shapes_and_types_stay_the_same_to_the_end_of_an_episode(name: str) -> None:
    environment, (reset, step) = world(name), programs(name)
    start, seen = reset(key(3))
    state, steps, over = start, 0, False
    while not over:
        assert environment.observation_space.contains(np.asarray(seen))
        state, seen, reward, terminated, truncated = step(
            state, action_at(environment.action_space, steps), key(steps)
        )
        assert shapes(state) == shapes(start)
        assert reward.shape == terminated.shape == truncated.shape == ()
        assert terminated.dtype == truncated.dtype == bool
        assert np.isfinite(reward)
        over, steps = bool(terminated | truncated), steps + 1
    assert steps > 3


@pytest.mark.parametrize("name", WORLDS)
def test_steps_are_pure_and_their_programs_repeat_themselves(name: str) -> None:
    environment, (reset, step) = world(name), programs(name)
    state, _ = reset(key(5))
    before = jax.tree.map(np.array, state)
    first = step(state, action_at(environment.action_space, 1), key(6))
    again = step(state, action_at(environment.action_space, 1), key(6))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    jax.tree.map(np.testing.assert_array_equal, before, state)
    plain = environment.step(state, action_at(environment.action_space, 1), key(6))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), first, plain)


@pytest.mark.parametrize(
    ("name", "counter"),
    [("pgx:minatar-breakout", "_step_count"), ("safemargin:rocket", "steps")],
)
def test_an_episode_that_has_ended_does_not_begin_anew(name: str, counter: str) -> None:
    environment, (reset, step) = world(name), programs(name)
    state, _ = reset(key(3))
    steps, over = 0, False
    while not over:
        state, _, _, terminated, truncated = step(
            state, action_at(environment.action_space, 0), key(steps)
        )
        over, steps = bool(terminated | truncated), steps + 1
    assert getattr(state, counter) == steps


@pytest.mark.parametrize("name", WORLDS)
def test_pictures_are_drawn_of_any_state(name: str) -> None:
    environment, (reset, _) = world(name), programs(name)
    picture = environment.render(reset(key(3))[0])
    assert environment.draws
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 4  # of different things


def test_a_breakout_wall_is_drawn_red_and_the_paddle_blue() -> None:
    state, seen = programs("pgx:minatar-breakout")[0](key(1))
    picture = world("pgx:minatar-breakout").render(state)
    assert (picture[16, 0] == (255, 59, 48)).all()  # row 1, brick
    paddle = int(np.argmax(np.asarray(seen)[9, :, 0]))
    assert (picture[-1, 16 * paddle] == (90, 200, 250)).all()


def test_a_rocket_that_falls_crashes_and_one_set_down_softly_has_landed() -> None:
    from safemargin.environments.functional.rocket import CRASHED, LANDED

    _, step = programs("safemargin:rocket")
    state, _ = programs("safemargin:rocket")[0](key(0))
    off = np.array([-1, 0], np.float32)
    above = state._replace(x=0.5, y=0.03, speed_x=0.0, speed_y=-0.2, tilt=0.0, spin=0.0)
    above = jax.tree.map(lambda like, leaf: np.asarray(leaf, like.dtype), state, above)
    _, _, reward, terminated, _ = step(above, off, key(0))
    # By hand: it falls at 0.2 + 0.16 = 0.36 to 0.03 - 0.036 = -0.006; the distance stays 0.500.
    assert terminated
    assert reward == pytest.approx(LANDED - 0.16 + 0.0009, abs=1e-3)
    _, _, reward, terminated, _ = step(above._replace(speed_y=np.float32(-2)), off, key(0))
    assert terminated
    assert reward < CRASHED + 1
    _, _, reward, terminated, _ = step(above._replace(x=np.float32(1.5)), off, key(0))
    assert terminated
    assert reward < CRASHED + 1


def test_sticky_actions_make_breakout_random_and_their_absence_does_not() -> None:
    pytest.importorskip("pgx")
    assert world("pgx:minatar-breakout").deterministic is False
    plain = functional_environment("pgx:minatar-breakout", sticky_action_prob=0.0)
    assert plain.deterministic is True


def test_an_adapter_is_found_by_its_name() -> None:
    pytest.importorskip("pgx")
    with EnvironmentSpec.parse("jax:pgx:minatar-breakout").opened() as env:
        observation, _ = env.reset(seed=3)
        assert env.observation_space.contains(observation)
        assert env.render().shape == (160, 160, 3)


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("pqx:go", {}, "no library 'pqx' is known; did you mean 'pgx'"),
        ("pgx", {}, "name one of the library, as 'jax:pgx:NAME'"),
        ("pgx:minatar-brekout", {}, "pgx has no such game; did you mean 'minatar-breakout'"),
        ("pgx:tic_tac_toe", {}, "is a game of 2 players, and margins are about one agent"),
        ("pgx:minatar-breakout", {"sticky": 1}, "{'sticky': 1} do not fit: TypeError"),
        ("safemargin:racket", {}, "there is no such world; did you mean 'rocket'"),
        (
            "craftax:Craftax-Symbolic-AutoReset-v1",
            {},
            "resets itself, .* name it 'jax:craftax:Craftax-Symbolic-v1'",
        ),
        ("craftax:Crafter", {}, "Craftax has no such world; did you mean"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, arguments: Any, complaint: str) -> None:
    if name.startswith("pgx:"):
        pytest.importorskip("pgx")
    with pytest.raises(InvalidInput, match=complaint):
        functional_environment(name, **arguments)


def test_a_missing_library_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(MissingExtra, match=r"pip install 'safemargin\[gymnax\]'"):
        functional_environment("gymnax:CartPole-v1")


def test_versions_that_clash_are_named_with_the_line_that_mends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"gymnax": "1.0.1", "gymnasium": "1.4.0", "jax": "0.10.2"}
    wanted = ["jax<0.12,>=0.6; python_version < '3.14'", "gymnasium<1.4,>=1.1", "six"]
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    complaint = (
        "gymnax 1.0.1 wants gymnasium<1.4,>=1.1, and 1.4.0 is installed: "
        "pip install 'gymnax==1.0.1' 'gymnasium<1.4,>=1.1'"
    )
    with pytest.raises(InvalidInput, match=complaint):
        functional_environment("gymnax:CartPole-v1")
    versions["gymnasium"] = "1.3.0"
    assert list(libraries.clashes("gymnax")) == []


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (AttributeError("module 'jax' has no 'xla'"), "cannot be imported: AttributeError: module"),
        (
            ModuleNotFoundError("No module named 'six'", name="six"),
            "needs the module 'six', which is not installed: pip install 'safemargin.brax.'",
        ),
    ],
)
def test_a_library_that_cannot_be_imported_says_why(
    monkeypatch: pytest.MonkeyPatch, error: Exception, complaint: str
) -> None:
    def broken(name: str) -> Any:
        raise error

    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1")
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: None)
    monkeypatch.setattr(libraries.importlib, "import_module", broken)
    with pytest.raises(InvalidInput, match=f"brax 0.1 {complaint}"):
        libraries.library("brax", "brax.envs", "jax:brax:ant")
