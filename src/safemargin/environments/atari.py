"""Atari games as the paper plays them: the DeepMind preprocessing in snapshottable wrappers."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from safemargin.environments.ale import EmulatorState
from safemargin.environments.simulator import Env
from safemargin.errors import InvalidInput, MissingExtra, did_you_mean

_TRIED_FRAMES = 200

Result = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class QuickReset(gym.Wrapper[Any, Any, Any, Any]):
    """Begins a seeded episode from the remembered first state of the game.

    ALE loads the ROM anew at every seeded reset, which costs as much as 200 steps; yet without
    native stickiness the seed decides nothing but the number of no-ops, drawn by the layer above.
    The screen is stale after a restore, so at least one no-op has to follow. The shortcut is tried
    once and taken only where it gives the same game.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._first_observation, _ = env.reset(seed=0)
        self._first_state = EmulatorState().content(self._base.ale)
        game = self._played()
        self._begin_again()
        self._exact = self._played() == game

    def _begin_again(self) -> None:
        EmulatorState().restore(self._base.ale, self._first_state)

    def _played(self) -> list[tuple[bytes, float]]:
        """What some actions lead to from here."""
        ale, actions = self._base.ale, self._base._action_set
        picks = np.random.Generator(np.random.PCG64(0)).integers(len(actions), size=_TRIED_FRAMES)
        return [(ale.getRAM().tobytes(), float(ale.act(actions[pick]))) for pick in picks]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is None or not self._exact:
            return self.env.reset(seed=seed, options=options)
        base = self._base
        self._begin_again()
        # As AtariEnv.seed_game does it.
        source = int(np.random.SeedSequence(seed).generate_state(n_words=2)[0])
        base._np_random, base._np_random_seed = seeding.np_random(source)
        return self._first_observation.copy(), base._get_info()

    @property
    def _base(self) -> Any:
        return self.env.unwrapped


class OneLife(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode when a life is lost."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._lives = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._lives = self._count()
        return observation, info

    def step(self, action: Any) -> Result:
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = self._count()
        # Some games show 0 lives for a few frames before the game is really over.
        if 0 < lives < self._lives:
            terminated = True
        self._lives = lives
        return observation, reward, terminated, truncated, info

    def _count(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]


class FireReset(gym.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE after a reset in the games that wait for it."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        for action in (1, 2):
            observation, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        return observation, info


class SignReward(gym.Wrapper[Any, Any, Any, Any]):
    """Clips rewards to −1, 0 or 1."""

    def step(self, action: Any) -> Result:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(np.sign(float(reward))), terminated, truncated, info


def games() -> dict[str, str]:
    """The known games: 'beam_rider' → 'ALE/BeamRider-v5'."""
    try:
        import ale_py
    except ImportError as error:
        raise MissingExtra("an Atari game", extra="atari") from error
    gym.register_envs(ale_py)
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
    fire_reset: bool = True,
    clip_rewards: bool = True,
    sticky: float = 0.0,
    render_mode: str | None = None,
) -> Env:
    """One game with the preprocessing of the paper's agents.

    `sticky` repeats the previous action with this chance at each frame, as ALE does it, but in a
    wrapper whose state can be saved.
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
    )
    if noop_max > 0:
        env = QuickReset(env)
    if sticky > 0:
        env = StickyAction(env, repeat_action_probability=sticky)
    env = AtariPreprocessing(
        env,
        noop_max=noop_max,
        frame_skip=frame_skip,
        screen_size=screen_size,
        grayscale_obs=True,
        scale_obs=False,
    )
    if one_life:
        env = OneLife(env)
    meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    if fire_reset and len(meanings) >= 3 and meanings[1] == "FIRE":
        env = FireReset(env)
    if clip_rewards:
        env = SignReward(env)
    return FrameStackObservation(env, frame_stack)
