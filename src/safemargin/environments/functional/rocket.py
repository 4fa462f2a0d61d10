"""A rocket that lands on a pad: a small world of continuous actions, and an example of one.

Everything that happens follows from the start and the actions. High above the ground most mistakes
can be mended; in the last second none can.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.core.jax_library import load_jax
from safemargin.environments.functional.protocol import FunctionalEnvironment, Key
from safemargin.errors import InvalidInput, did_you_mean

jax = load_jax("the environment 'jax:safemargin:rocket'")
jnp = jax.numpy

SECONDS = 0.1
"""What one step lasts."""
GRAVITY, THRUST, TORQUE, DRAG = 1.6, 4.0, 3.0, 0.5
PAD = 1.0
"""The pad reaches this far to both sides of x = 0."""
WALL, CEILING = 8.0, 12.0
SOFTEST, UPRIGHT = 0.8, 0.3
"""The greatest speed, in either direction, and the greatest tilt of a landing that succeeds."""
LANDED, CRASHED = 10.0, -10.0
LONGEST = 300
"""Steps after which an episode is truncated."""


class Flight(NamedTuple):
    """Where the rocket is and how it moves; y is the height of its foot, a tilt of 0 upright."""

    x: Any
    y: Any
    speed_x: Any
    speed_y: Any
    tilt: Any
    spin: Any
    throttle: Any  # the last one, for the picture
    steps: Any


class Rocket(FunctionalEnvironment):
    """Actions: throttle (−1 off, 1 full) and torque, both in [−1, 1]. Ground beside the pad kills.

    Rewards are how much nearer, slower and more upright a step brought the rocket, less a little
    for fuel, and ±10 at the end.
    """

    name = "rocket"
    deterministic = True
    observation_space = gym.spaces.Box(-np.inf, np.inf, (7,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, key: Key) -> tuple[Flight, Any]:
        low = jnp.array([-4.0, 6.0, -1.0, -1.0, -0.4, -0.3])
        high = jnp.array([4.0, 9.0, 1.0, 0.0, 0.4, 0.3])
        drawn = jax.random.uniform(key, (6,), minval=low, maxval=high)
        x, y, speed_x, speed_y, tilt, spin = drawn
        flight = Flight(x, y, speed_x, speed_y, tilt, spin, jnp.float32(0), jnp.int32(0))
        return flight, _observation(flight)

    def step(self, state: Flight, action: Any, key: Key) -> tuple[Flight, Any, Any, Any, Any]:
        throttle, torque = (jnp.clip(action, -1, 1) + jnp.array([1.0, 0.0])) * jnp.array([0.5, 1])
        push = THRUST * throttle
        spin = state.spin + SECONDS * (TORQUE * torque - DRAG * state.spin)
        speed_x = state.speed_x + SECONDS * push * jnp.sin(state.tilt)
        speed_y = state.speed_y + SECONDS * (push * jnp.cos(state.tilt) - GRAVITY)
        after = Flight(
            state.x + SECONDS * speed_x,
            state.y + SECONDS * speed_y,
            speed_x,
            speed_y,
            state.tilt + SECONDS * spin,
            spin,
            throttle,
            state.steps + 1,
        )
        down = after.y <= 0
        safe = (
            (jnp.abs(after.x) <= PAD)
            & (jnp.maximum(jnp.abs(speed_x), jnp.abs(speed_y)) <= SOFTEST)
            & (jnp.abs(after.tilt) <= UPRIGHT)
        )
        lost = (jnp.abs(after.x) > WALL) | (after.y > CEILING)
        reward = _trouble(state) - _trouble(after) - 0.01 * throttle
        reward += jnp.where(down & safe, LANDED, jnp.where(down | lost, CRASHED, 0.0))
        return after, _observation(after), reward, down | lost, after.steps >= LONGEST

    def render(self, state: Flight) -> npt.NDArray[np.uint8]:
        """Draw the rocket, its flame, the ground and the pad."""
        flight = Flight(*(float(each) for each in state))
        scale = 20  # pixels for one unit
        picture = np.full((int(scale * (CEILING + 1)), int(scale * 2 * WALL), 3), 24, np.uint8)
        rows, columns = np.mgrid[: picture.shape[0], : picture.shape[1]]
        across, up = columns / scale - WALL, CEILING - rows / scale
        picture[up < 0] = (110, 96, 80)
        picture[(up < 0) & (up > -0.25) & (np.abs(across) <= PAD)] = (76, 217, 100)
        side, along = across - flight.x, up - flight.y
        sine, cosine = np.sin(flight.tilt), np.cos(flight.tilt)
        side, along = side * cosine - along * sine, side * sine + along * cosine
        flame = (along < 0) & (along > -flight.throttle) & (np.abs(side) < 0.15 * (1 + along))
        picture[flame] = (255, 149, 0)
        body = (along >= 0) & (along < 1.4) & (np.abs(side) < np.minimum(0.3, 1.4 - along))
        picture[body] = (235, 235, 240)
        return picture


def _trouble(flight: Flight) -> Any:
    """How far the rocket is from standing still and upright on the pad."""
    return (
        jnp.hypot(flight.x, flight.y)
        + jnp.hypot(flight.speed_x, flight.speed_y)
        + 2 * jnp.abs(flight.tilt)
    )


def _observation(flight: Flight) -> Any:
    """Return position, speed, sine and cosine of the tilt, and spin, each of the order of 1."""
    place = (flight.x / 4, flight.y / 4, flight.speed_x, flight.speed_y)
    return jnp.stack([*place, jnp.sin(flight.tilt), jnp.cos(flight.tilt), flight.spin])


def make(name: str) -> FunctionalEnvironment:
    """Make the only world of our own."""
    worlds = {Rocket.name: Rocket}
    if name not in worlds:
        raise InvalidInput(
            f"environment 'jax:safemargin:{name}': there is no such world; "
            f"{did_you_mean(name, worlds)}"
        )
    return worlds[name]()
