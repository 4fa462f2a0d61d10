"""Atari games as the paper plays them: the DeepMind preprocessing in snapshottable wrappers."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from safemargin.core.seeding import hashed_seed, plain_generator
from safemargin.environments.ale import EmulatorState
from safemargin.environments.simulator import Env
from safemargin.errors import InvalidInput, MissingExtra, did_you_mean

_TRIED_FRAMES = 200

NO_OP, FIRE = 0, 1
"""The emulator's numbers for these actions."""

VECTOR_OPTIONS: dict[str, Any] = {
    "repeat_action_probability": 0.0,
    "full_action_space": False,
    "frameskip": 4,
    "maxpool": True,
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "stack_num": 4,
    "noop_max": 30,
    "use_fire_reset": True,
    "life_loss_info": True,
    "episodic_life": False,
    "reward_clipping": True,
}
"""Options with which ale_py.AtariVectorEnv plays the same games as `make_atari`, for trainers."""

Result = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class GameStart(gym.Wrapper[Any, Any, Any, Any]):
    """Starts a game with one frame of FIRE, where the game has that action, then some no-ops.

    The order is that of ale_py's vector environment.

    ALE reloads the ROM at every seeded reset, which costs as much as 200 steps; but without
    native stickiness the seed decides only the number of no-ops. So the first state of the game
    is kept and restored instead. The shortcut is tried once and used only if it gives the same
    game.
    """

    def __init__(self, env: Env, *, noop_max: int, fire: bool) -> None:
        super().__init__(env)
        # What the layer above reads from the screen; observations from below are not used.
        self.observation_space = gym.spaces.Box(0, 255, self._base.ale.getScreenDims(), np.uint8)
        self._noop_max = noop_max
        self._fire = fire and "FIRE" in self._base.get_action_meanings()
        env.reset(seed=0)
        self._first_state = EmulatorState().content(self._base.ale)
        game = self._played()
        self._begin_again()
        # The screen is stale after a restore; if no frame followed, the old one would be seen.
        self._quick = (noop_max > 0 or self._fire) and self._played() == game

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        base = self._base
        if seed is not None and self._quick:
            self._begin_again()
            # As in AtariEnv.seed_game.
            source = hashed_seed(seed)
            base._np_random, base._np_random_seed = seeding.np_random(source)
        else:
            self.env.reset(seed=seed, options=options)
        waits = int(base.np_random.integers(1, self._noop_max + 1)) if self._noop_max else 0
        for action in [FIRE] * self._fire + [NO_OP] * waits:
            base.ale.act(action)
            if base.ale.game_over():
                base.ale.reset_game()
        return base._get_obs(), base._get_info()

    def _begin_again(self) -> None:
        EmulatorState().restore(self._base.ale, self._first_state)

    def _played(self) -> list[tuple[bytes, float]]:
        """Return what some fixed random actions lead to from here."""
        ale, actions = self._base.ale, self._base._action_set
        picks = plain_generator(0).integers(len(actions), size=_TRIED_FRAMES)
        return [(ale.getRAM().tobytes(), float(ale.act(actions[pick]))) for pick in picks]

    @property
    def _base(self) -> Any:
        return self.env.unwrapped


class OneLife(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode when a life is lost; a reset without a seed then continues the game."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._lives = 0
        self._last_observation: Any = None
        self.game_goes_on = False
        """The episode ended with a life, not with the game: the next reset starts the next life."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is None and self.game_goes_on:
            self.game_goes_on = False
            return self._last_observation, {"lives": self._lives}
        observation, info = self.env.reset(seed=seed, options=options)
        self.game_goes_on = False
        self._lives = info["lives"]
        return observation, info

    def step(self, action: Any) -> Result:
        observation, reward, terminated, truncated, info = self.env.step(action)
        lost = info["lives"] < self._lives
        self._lives = info["lives"]
        self.game_goes_on = lost and not (terminated or truncated)
        self._last_observation = observation
        return observation, reward, terminated or lost, truncated, info


class SignReward(gym.Wrapper[Any, Any, Any, Any]):
    """Clips rewards to −1, 0 or 1."""

    def step(self, action: Any) -> Result:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(np.sign(float(reward))), terminated, truncated, info


def games() -> dict[str, str]:
    """Return the known games: 'beam_rider' → 'ALE/BeamRider-v5'."""
    try:
        import ale_py
    except ImportError as error:
        raise MissingExtra("an Atari game", extra="atari") from error
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each emulator
    return {
        str(spec.kwargs["game"]): name
        for name, spec in gym.registry.items()
        if spec.namespace == "ALE" and spec.version == 5 and "game" in spec.kwargs
    }


def make_atari(
    game: str,
    *,
    noop_max: int = 30,
    frame_skip: int = 4,
    screen_size: int = 84,
    frame_stack: int = 4,
    one_life: bool = True,
    fire: bool = True,
    clip_rewards: bool = True,
    sticky: float = 0.0,
    render_mode: str | None = None,
) -> Env:
    """Make a game with the preprocessing of the paper's agents.

    An episode is one life; after it, `reset()` without a seed continues the same game. `sticky`
    is the probability of repeating the previous action at each frame, as in ALE, but in a wrapper
    whose state can be saved.
    """
    known = games()
    if game not in known:
        raise InvalidInput(f"environment 'atari:{game}' is unknown; {did_you_mean(game, known)}")
    try:
        import cv2  # noqa: F401
    except ImportError as error:
        raise MissingExtra("the preprocessing of Atari games", extra="atari") from error
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, StickyAction

    env: Env = gym.make(
        known[game],
        frameskip=1,
        repeat_action_probability=0.0,
        full_action_space=False,
        render_mode=render_mode,
        # The preprocessing reads the screen itself, twice in four frames; a colour picture of
        # every frame would cost more than the emulator.
        obs_type="ram",
        disable_env_checker=True,
    )
    env = GameStart(env, noop_max=noop_max, fire=fire)
    if sticky > 0:
        env = StickyAction(env, repeat_action_probability=sticky)
    env = AtariPreprocessing(
        env,
        noop_max=0,
        frame_skip=frame_skip,
        screen_size=screen_size,
        grayscale_obs=True,
        scale_obs=False,
    )
    if clip_rewards:
        env = SignReward(env)
    env = FrameStackObservation(env, frame_stack, padding_type="zero")
    return OneLife(env) if one_life else env
