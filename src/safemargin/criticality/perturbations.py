"""What takes the place of the agent's actions for n steps: random actions, or another fault.

A perturbation is a function of random numbers, the action that the agent meant to take, and what
happened so far (`History`); it returns the action that is taken instead. Once the n steps are over,
nothing of it may remain: the agent goes on from the state it finds, so rollouts that reach the same
state still share their future, whatever brought them there.

To add one, write a `Perturbation`, add it to `_BUILT_IN`, and name it in `core.measured`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.importing import locate
from safemargin.core.measured import RANDOM, parse_perturbation
from safemargin.core.records import Array, Floats
from safemargin.core.seeding import generator_from
from safemargin.core.settings import Settings
from safemargin.criticality.replaying import native_action
from safemargin.errors import InvalidInput, errors_as
from safemargin.policies.actions import Mask, PolicyActions, RandomActions
from safemargin.policies.base import Policy, batch_of
from safemargin.policies.batching import ask
from safemargin.policies.identity import function_identity
from safemargin.policies.loading import load_policy

SMALLEST = 2.0**-54
"""Uniform numbers lie in [0, 1); half the distance between two of them keeps them above 0."""


@dataclass(slots=True, eq=False)
class History:
    """What a perturbation may look at: this step, and the actions before it in the episode."""

    random_actions: RandomActions
    earlier: Sequence[Any] | Array = ()
    """The recorded actions before the moment."""
    observation: Any = None
    mask: Mask = None
    """Which actions are legal at this step; None: all are."""
    taken_since: list[Any] = field(default_factory=list)
    intended_since: list[Any] = field(default_factory=list)

    @property
    def space(self) -> gym.Space[Any]:
        """The action space."""
        return self.random_actions.space

    @property
    def taken(self) -> list[Any]:
        """Every action taken before this step, mistakes included, oldest first."""
        return [*map(native_action, self.earlier), *self.taken_since]

    @property
    def intended(self) -> list[Any]:
        """Every action that the agent meant to take, that of this step included, oldest first."""
        return [*map(native_action, self.earlier), *self.intended_since]

    def no_action(self) -> Any:
        """Return the action that does nothing: the first one, or the zero of a box."""
        space = self.space
        if isinstance(space, gym.spaces.Discrete):
            return int(space.start)
        if isinstance(space, gym.spaces.Box):
            return np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
        first = getattr(space, "start", 0) + np.zeros(space.shape or ())
        return np.asarray(first, dtype=space.dtype)


class Perturbation(ABC):
    """Takes the place of the agent's actions for n steps."""

    draws: bool = False
    """Whether it uses random numbers. If not, one trial says all where nothing else is random."""
    uniform: bool = False
    """Whether all sequences of actions are equally likely, so that a few can be listed."""
    watches: bool = False
    """Whether it looks at the agent's own action or at the observation."""
    trusted: bool = True
    """Whether the actions it returns need no check."""
    worst: bool = False
    """Whether the trial that loses most counts, rather than the mean of all."""
    beam: int | None = None
    """Of how many sequences a beam search goes on; None: there is no such search."""
    identity: str | None = None
    """A hash of the policy or function behind it; None where its text says all."""

    def __init__(self, text: str) -> None:
        self.text = text
        """As it is written, e.g. 'stuck:3'."""

    def width(self, random_actions: RandomActions) -> int:
        """Return how many numbers in [0, 1) each step takes."""
        return 0

    def check(self, space: gym.Space[Any], settings: Settings) -> None:
        """Raise InvalidInput if it makes no sense with these actions or settings."""
        return

    @abstractmethod
    def action(self, uniforms: Floats, action: Any, history: History) -> Any:
        """Return what is taken instead of the agent's own action (None unless it `watches`)."""

    def checked(self, uniforms: Floats, action: Any, history: History) -> Any:
        """Return the same; InvalidInput if that is an illegal action."""
        found = self.action(uniforms, action, history)
        if self.trusted and history.mask is None:
            return found
        return self._legal(found, history)

    def _legal(self, found: Any, history: History) -> Any:
        space, mask = history.space, history.mask
        step = len(history.earlier) + len(history.taken_since)
        if isinstance(space, gym.spaces.Discrete):
            whole = isinstance(found, int | np.integer) and not isinstance(found, bool)
            if not whole or not space.contains(int(found)):
                raise InvalidInput(
                    f"perturbation {self.text!r} returned {found!r:.40} at step {step}, which is "
                    f"no action here; return a whole number from {space.start} to "
                    f"{space.start + space.n - 1}"
                )
            if mask is not None and not mask[int(found) - int(space.start)]:
                raise InvalidInput(
                    f"perturbation {self.text!r} returned {found!r} at step {step}, which the "
                    "environment's action mask does not allow there; look at history.mask in a "
                    "perturbation of your own"
                )
            return int(found)
        try:
            array = np.asarray(found, dtype=space.dtype).reshape(space.shape or ())
        except (TypeError, ValueError):
            array = None
        if array is None or not space.contains(array):
            raise InvalidInput(
                f"perturbation {self.text!r} returned {found!r:.40} at step {step}, which does not "
                f"lie in the action space {space}"
            )
        return array


class RandomPerturbation(Perturbation):
    """Uniformly random actions, as in the paper."""

    draws = True
    uniform = True

    def width(self, random_actions: RandomActions) -> int:
        return random_actions.width

    def action(self, uniforms: Floats, action: Any, history: History) -> Any:
        return history.random_actions(uniforms, history.mask)

    checked = action  # always legal, and made at every random step


class Worst(RandomPerturbation):
    """The sequence of actions that loses most, of all or of those that a beam search tries."""

    worst = True

    def __init__(self, text: str) -> None:
        super().__init__(text)
        written = parse_perturbation(text)
        self.beam = int(written.number) if written.argument else None

    def check(self, space: gym.Space[Any], settings: Settings) -> None:
        if not isinstance(space, gym.spaces.Discrete):
            raise InvalidInput(
                f"perturb {self.text!r} tries sequences of discrete actions, and the action space "
                f"here is {space}"
            )
        n, most = settings.n_values[-1], settings.max_enumerated
        if self.beam is None and int(space.n) ** n > most:
            raise InvalidInput(
                f"perturb 'worst' tries every sequence of actions: at n = {n} these are "
                f"{space.n}^{n} = {_amount(int(space.n) ** n)} rollouts of up to "
                f"{settings.horizon} steps for each moment, and max_enumerated allows {most:,}; "
                "use smaller n, raise --max-enumerated, or take worst:BEAM, a beam search, which "
                "may miss the worst"
            )


def _amount(number: int) -> str:
    return f"{number:,}" if number < 10**12 else f"{number:.1e}"


class Stuck(Perturbation):
    """Holds the last action before the moment, or a given one."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.held = parse_perturbation(text).argument

    def check(self, space: gym.Space[Any], settings: Settings) -> None:
        if self.held:
            self._given(space)

    def action(self, uniforms: Floats, action: Any, history: History) -> Any:
        if self.held:
            return self._given(history.space)
        before = history.taken_since or history.earlier
        return native_action(before[-1]) if len(before) else history.no_action()

    def _given(self, space: gym.Space[Any]) -> Any:
        try:
            numbers = [float(part) for part in self.held.split(",")]
        except ValueError:
            numbers = []
        shape = space.shape or ()
        if len(numbers) == int(np.prod(shape)):
            array = np.array(numbers).reshape(shape)
            exact = array.astype(space.dtype)
            if space.contains(exact if shape else exact[()]) and np.allclose(exact, array):
                return exact if shape or not isinstance(space, gym.spaces.Discrete) else int(exact)
        raise InvalidInput(
            f"perturb {self.text!r}: {self.held!r} is no action of {space}; give one of its "
            "actions, with commas between the numbers of a box"
        )


class Dropped(Perturbation):
    """Nothing is done: the first action, or the zero of a box."""

    def action(self, uniforms: Floats, action: Any, history: History) -> Any:
        return history.no_action()


class Delayed(Perturbation):
    """Each action arrives D steps late; nothing is done before the first one arrives."""

    watches = True

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.delay = int(parse_perturbation(text).number)

    def action(self, uniforms: Floats, action: Any, history: History) -> Any:
        late = self.delay - (len(history.intended_since) - 1)  # before the moment, if above 0
        if late <= 0:
            return history.intended_since[-1 - self.delay]
        if late <= len(history.earlier):
            return native_action(history.earlier[-late])
        return history.no_action()


class Noisy(Perturbation):
    """Random with probability ε; in a box, Gaussian noise of ε times half its range, clipped."""

    draws = True
    watches = True

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.epsilon = parse_perturbation(text).number

    def width(self, random_actions: RandomActions) -> int:
        gaussian = isinstance(random_actions.space, gym.spaces.Box)
        return random_actions.width + (not gaussian)

    def action(self, uniforms: Floats, action: Any, history: History) -> Any:
        space = history.space
        if not isinstance(space, gym.spaces.Box):
            if uniforms[0] >= self.epsilon:
                return action
            return history.random_actions(uniforms[1:], history.mask)
        deviation = self.epsilon * (space.high.astype(np.float64) - space.low) / 2
        normal = NormalDist().inv_cdf
        noise = np.array([normal(max(float(one), SMALLEST)) for one in uniforms])
        noisy = np.asarray(action, np.float64) + deviation * noise.reshape(space.shape)
        return np.clip(noisy, space.low, space.high).astype(space.dtype)


class OtherPolicy(Perturbation):
    """Another policy acts, always by its highest score."""

    watches = True

    def __init__(self, text: str, policy: Policy | None = None) -> None:
        super().__init__(text)
        self.policy = policy or load_policy(parse_perturbation(text).argument)
        self.identity = self.policy.identity
        if self.policy.initial_memory(1) is not None:
            raise InvalidInput(
                f"perturb {text!r}: this policy has a memory, which would have to follow the whole "
                "episode; name a policy without one"
            )

    def check(self, space: gym.Space[Any], settings: Settings) -> None:
        PolicyActions(space, self.policy.kind, Settings())

    def action(self, uniforms: Floats, action: Any, history: History) -> Any:
        rows, _ = ask(self.policy, batch_of([history.observation]), None)
        return PolicyActions(history.space, self.policy.kind, Settings())(
            rows[0], None, history.mask
        )


class Own(Perturbation):
    """A function of one's own: (generator, action, history) → action.

    It counts as random unless it has an attribute `draws` that is False.
    """

    watches = True
    trusted = False

    def __init__(self, text: str, function: Callable[..., Any] | None = None) -> None:
        super().__init__(text)
        self.function = function or locate(text, what="perturb")
        if not callable(self.function):
            raise InvalidInput(
                f"perturb {text!r}: expected a function (generator, action, history) → action, got "
                f"{type(self.function).__name__}"
            )
        self.draws = bool(getattr(self.function, "draws", True))
        self.identity = function_identity(self.function)

    def width(self, random_actions: RandomActions) -> int:
        return int(self.draws)

    def action(self, uniforms: Floats, action: Any, history: History) -> Any:
        generator = generator_from(uniforms)
        with errors_as(InvalidInput, f"perturbation {self.text!r} raised"):
            return self.function(generator, action, history)


_BUILT_IN: dict[str, Callable[[str], Perturbation]] = {
    RANDOM: RandomPerturbation,
    "stuck": Stuck,
    "delayed": Delayed,
    "noisy": Noisy,
    "dropped": Dropped,
    "policy": OtherPolicy,
    "worst": Worst,
    "own": Own,
}

UNIFORM = RandomPerturbation(RANDOM)


def make_perturbation(given: str | Perturbation | Callable[..., Any]) -> Perturbation:
    """Return the perturbation that a text or a function of one's own stands for."""
    if isinstance(given, Perturbation):
        return given
    if callable(given):
        return Own(getattr(given, "__qualname__", "your function"), given)
    return _BUILT_IN[parse_perturbation(given).kind](given)
