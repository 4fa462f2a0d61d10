"""What a study measures: discounting, perturbation lengths, and when an estimate is good enough.

The names in the paper (§ III and appendix A) stand beside each field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral
from typing import Any, Literal, get_args

from safemargin.core.measured import (
    RANDOM,
    REWARD,
    Measured,
    parse_perturbation,
    parse_reference,
    parse_signal,
    reference_without_folder,
    without_folder,
)
from safemargin.errors import InvalidInput, did_you_mean

ActionChoice = Literal["greedy", "sampled", "epsilon-greedy"]
TrialPlan = Literal["fixed", "paper", "rule-of-three", "anytime"]

_LEAST = {
    "min_trials": 2,
    "trials": 2,
    "max_enumerated": 0,
    "opening": 0,
    "exclude_last": 0,
    "max_episode_steps": 1,
    "seed": 0,
}
"""The smallest value of each whole number."""

_CHOICES = {"trial_plan": get_args(TrialPlan), "action_choice": get_args(ActionChoice)}


DEFAULT_N_VALUES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that changes a study's numbers; stored with it and never changed afterwards."""

    gamma: float = 0.99
    """Discount factor γ."""
    n_values: tuple[int, ...] = DEFAULT_N_VALUES
    """S: the numbers of consecutive steps whose actions are replaced (see `perturb`); by default as
    far as the horizon reaches."""
    horizon_error: float = 0.01
    """ε̂_horizon: the relative error accepted for cutting off returns at the horizon."""
    trial_plan: TrialPlan = "fixed"
    """How many trials a moment gets: a fixed number, or until the mean is known well enough."""
    trials: int = 48
    """With the plan `fixed`: this many for each n, or every action sequence once where there are
    no more than this, or than `max_enumerated`."""
    max_enumerated: int = 100
    """With the plan `fixed`: up to this many action sequences are all taken once. Many of them soon
    reach the same states, so they often cost no more than ten random ones."""
    sampling_error: float = 0.2
    """ε̂_sampling, in reward units: the other plans stop once the half-width is at most this."""
    sampling_confidence: float = 0.95
    """α: the two-sided confidence of the half-width."""
    min_trials: int = 10
    """N_min: the other plans never take fewer trials than this."""
    max_trials: int = 1000
    """A cap that the paper does not have; an estimate that reaches it is marked `capped`."""
    largest_loss: float | None = None
    """R: the most that a single trial can lose; needed by `rule-of-three` and `anytime`."""
    smallest_loss: float = 0.0
    """The least that a single trial loses, below 0 where a mistake may gain; for `anytime`."""
    perturb: str = RANDOM
    """What the agent's actions are replaced by: random, stuck (the last action is held),
    stuck:ACTION, delayed:D, noisy:EPS, dropped (nothing is done), policy:FILE (another policy
    acts), worst (the sequence that loses most), worst:BEAM (the worst that a beam search finds), or
    file.py:function, your own (generator, action, history) → action."""
    signal: str = REWARD
    """What is lost: reward (discounted), undiscounted (reward), cost (discounted info["cost"]; a
    rise is a loss), cost:KEY or info:KEY (another name in info), termination (steps before the
    end), or failure (an end by termination)."""
    reference: str | None = None
    """Who acts after the mistakes, and in the run they are compared with, instead of the agent:
    another policy (by its highest score), or lookahead:STEPS, which tries every action and has the
    agent follow for that many steps (each of its steps costs that many for every action)."""
    action_choice: ActionChoice = "greedy"
    """How the policy under test turns scores into actions."""
    epsilon: float = 0.0
    """The probability of a random action under `epsilon-greedy`."""
    opening: int = 0
    """Start each episode with up to this many random actions, so that starts differ."""
    exclude_last: int | None = None
    """This many last steps of an episode are never selected; None: the largest n."""
    max_episode_steps: int = 30_000
    """An episode that does not end by itself is cut after this many steps."""
    selection_proxy: str | None = None
    """The proxy over which spread moments are spread; None: the paper's for the scores."""
    seed: int = 0
    """Random seed for the whole study."""

    def __post_init__(self) -> None:
        given, by_default = list(self.n_values), self.n_values is DEFAULT_N_VALUES
        whole = all(isinstance(n, Integral | float) and n % 1 == 0 for n in given)
        n_values = tuple(int(n) for n in given) if whole else ()
        _require(
            len(n_values) > 0 and n_values[0] >= 1 and list(n_values) == sorted(set(n_values)),
            f"n_values must be increasing whole numbers, starting at 1 or above, got {given}",
        )
        for name in ("gamma", "horizon_error", "sampling_confidence"):
            value = getattr(self, name)
            _require(0 < value < 1, f"{name} must lie between 0 and 1, got {value}")
        _require(
            self.sampling_error > 0 and math.isfinite(self.sampling_error),
            f"sampling_error must be above 0 (reward units), got {self.sampling_error}",
        )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            _require(
                value is None or value >= least, f"{name} must be at least {least}, got {value}"
            )
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            _require(
                value in known, f"{name} {value!r} is unknown; {did_you_mean(str(value), known)}"
            )
        self._check_trials()
        _require(0 <= self.epsilon <= 1, f"epsilon must lie in [0, 1], got {self.epsilon}")
        _require(
            self.epsilon == 0 or self.action_choice == "epsilon-greedy",
            "epsilon has a meaning only with action_choice='epsilon-greedy'",
        )
        if by_default:
            n_values = tuple(n for n in n_values if n <= self.horizon)
        object.__setattr__(self, "n_values", n_values)
        _require(
            n_values[-1] <= self.horizon,
            f"n = {n_values[-1]} is longer than the horizon of {self.horizon} steps that gamma and "
            "horizon_error give; take smaller n, or a gamma nearer to 1",
        )
        self._check_perturbation()

    def _check_perturbation(self) -> None:
        """Refuse a perturbation that is unknown, or that the horizon cannot show."""
        for name in ("perturb", "signal"):
            value = getattr(self, name)
            _require(isinstance(value, str), f"{name} must be a text, got {value!r:.40}")
        parse_signal(self.signal)
        if self.reference is not None:
            _require(
                isinstance(self.reference, str),
                f"reference must be a text, got {self.reference!r:.40}",
            )
            ahead = parse_reference(self.reference).number
            _require(
                not ahead > self.horizon,
                f"reference {self.reference!r} looks further ahead than the horizon of "
                f"{self.horizon} steps, behind which nothing counts; take at most that",
            )
        written = parse_perturbation(self.perturb)
        _require(
            written.kind != "delayed" or written.number < self.horizon,
            f"perturb {self.perturb!r} delays actions by as long as the horizon of {self.horizon} "
            "steps or longer, so that no loss could show; take a shorter delay",
        )
        _require(
            written.kind != "worst" or self.trial_plan == "fixed",
            f"perturb {self.perturb!r} lists sequences of actions, so trial_plan must be 'fixed', "
            f"not {self.trial_plan!r}",
        )

    def _check_trials(self) -> None:
        """Refuse options that do not fit the trial plan."""
        plan, largest = self.trial_plan, self.largest_loss
        _require(
            self.max_trials >= self.min_trials,
            f"max_trials ({self.max_trials}) must not be below min_trials ({self.min_trials})",
        )
        if plan == "fixed":
            for name in ("sampling_error", "min_trials", "max_trials"):
                _require(
                    getattr(self, name) == getattr(Settings, name),
                    f"{name} has no meaning with trial_plan='fixed'; set trials, or take "
                    "trial_plan='paper'",
                )
        else:
            for name in ("trials", "max_enumerated"):
                _require(
                    getattr(self, name) == getattr(Settings, name),
                    f"{name} has a meaning only with trial_plan='fixed', not {plan!r}",
                )
        if largest is None:
            _require(
                plan not in ("rule-of-three", "anytime"),
                f"trial_plan {plan!r} needs largest_loss, the most that one trial loses",
            )
            return
        if plan == "rule-of-three":
            needed = -math.log(1 - self.sampling_confidence)
            needed = math.ceil(needed * largest / self.sampling_error)
            _require(
                needed <= self.max_trials,
                f"trial_plan 'rule-of-three' needs {needed} trials for a largest_loss of "
                f"{largest:g}, more than max_trials ({self.max_trials})",
            )
        _require(
            math.isfinite(self.smallest_loss) and self.smallest_loss < largest < math.inf,
            f"largest_loss ({largest}) must be above smallest_loss ({self.smallest_loss})",
        )

    @property
    def horizon(self) -> int:
        """h = ⌈log_γ ε̂_horizon⌉: the number of steps that a return covers."""
        return math.ceil(math.log(self.horizon_error) / math.log(self.gamma))

    @property
    def measured(self) -> Measured:
        """What the losses are about, for people and for margins."""
        reference = None if self.reference is None else reference_without_folder(self.reference)
        return Measured(without_folder(self.perturb), self.signal, reference)

    @property
    def excluded_steps(self) -> int:
        """The number of steps at the end of an episode that are never selected."""
        return max(self.n_values) if self.exclude_last is None else self.exclude_last

    def to_json(self) -> str:
        """Return a canonical text: equal settings give equal texts."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read what `to_json` wrote."""
        return cls.from_mapping(json.loads(text))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Settings:
        """Make settings from names and values; the error for an unknown name suggests another."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise InvalidInput(f"settings: {name!r} is unknown; {did_you_mean(name, known)}")
        return cls(**values)

    def differences(self, other: Settings) -> list[str]:
        """Return 'name: ours, not theirs' for each field in which two settings differ."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{name}: {mine[name]}, not {theirs[name]}"
            for name in mine
            if mine[name] != theirs[name]
        ]


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise InvalidInput(f"settings: {text}")
