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

from safemargin.errors import InvalidInput, did_you_mean

ActionChoice = Literal["greedy", "sampled", "epsilon-greedy"]
TrialPlan = Literal["fixed", "paper", "rule-of-three", "anytime"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that changes a study's numbers; stored with it and never changed afterwards."""

    gamma: float = 0.99
    """Discount factor γ."""
    n_values: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """S: for how many steps actions are replaced by random ones."""
    horizon_error: float = 0.01
    """ε̂_horizon: the relative error accepted for cutting returns off at the horizon."""
    trial_plan: TrialPlan = "fixed"
    """Which trials a moment gets: a fixed number, or until the mean is known well enough."""
    trials: int = 48
    """Of the plan `fixed`: so many for each n, or every action sequence once where there are no
    more than these, or than 100."""
    sampling_error: float = 0.2
    """ε̂_sampling, in reward units: the other plans stop once the half-width is at most this."""
    sampling_confidence: float = 0.95
    """α: the two-sided confidence of the half-width."""
    min_trials: int = 10
    """N_min: the other plans never take fewer trials than this."""
    max_trials: int = 1000
    """A cap the paper does not have; an estimate that reaches it is marked `capped`."""
    largest_loss: float | None = None
    """R: what a single trial can lose at most; needed by `rule-of-three` and `anytime`."""
    smallest_loss: float = 0.0
    """What a single trial loses at least, below 0 where a mistake may gain; for `anytime`."""
    action_choice: ActionChoice = "greedy"
    """How the policy under test turns scores into actions."""
    epsilon: float = 0.0
    """The chance of a random action under `epsilon-greedy`."""
    opening: int = 0
    """Begin each episode with up to this many random actions, so that starts differ."""
    exclude_last: int | None = None
    """The last steps of an episode are never selected; None: as many as the largest n."""
    max_episode_steps: int = 30_000
    """Cut an episode that does not end by itself."""
    selection_proxy: str | None = None
    """The proxy that spreads the spread moments; None: the paper's for the policy's scores."""
    seed: int = 0

    def __post_init__(self) -> None:
        def require(condition: bool, text: str) -> None:
            if not condition:
                raise InvalidInput(f"settings: {text}")

        require(0 < self.gamma < 1, f"gamma must lie between 0 and 1, got {self.gamma}")
        given = list(self.n_values)
        whole = all(isinstance(n, Integral | float) and n % 1 == 0 for n in given)
        n_values = tuple(int(n) for n in given) if whole else ()
        object.__setattr__(self, "n_values", n_values)
        require(
            len(n_values) > 0 and n_values[0] >= 1 and list(n_values) == sorted(set(n_values)),
            f"n_values must be increasing whole numbers from 1 on, got {given}",
        )
        require(
            0 < self.horizon_error < 1,
            f"horizon_error must lie between 0 and 1, got {self.horizon_error}",
        )
        require(
            self.sampling_error > 0 and math.isfinite(self.sampling_error),
            f"sampling_error must be above 0 (reward units), got {self.sampling_error}",
        )
        require(
            0 < self.sampling_confidence < 1,
            f"sampling_confidence must lie between 0 and 1, got {self.sampling_confidence}",
        )
        require(self.min_trials >= 2, f"min_trials must be at least 2, got {self.min_trials}")
        require(
            self.max_trials >= self.min_trials,
            f"max_trials ({self.max_trials}) must not be below min_trials ({self.min_trials})",
        )
        require(
            self.trial_plan in get_args(TrialPlan),
            f"trial_plan {self.trial_plan!r} is unknown; "
            + did_you_mean(str(self.trial_plan), get_args(TrialPlan)),
        )
        require(self.trials >= 2, f"trials must be at least 2, got {self.trials}")
        if self.trial_plan == "fixed":
            for name in ("sampling_error", "min_trials", "max_trials"):
                require(
                    getattr(self, name) == getattr(Settings, name),
                    f"{name} has no meaning with trial_plan='fixed'; set trials, or take "
                    "trial_plan='paper'",
                )
        else:
            require(
                self.trials == Settings.trials,
                f"trials has a meaning only with trial_plan='fixed', not {self.trial_plan!r}",
            )
        if self.trial_plan in ("rule-of-three", "anytime"):
            require(
                self.largest_loss is not None,
                f"trial_plan {self.trial_plan!r} needs largest_loss, the most that one trial loses",
            )
        if self.trial_plan == "rule-of-three" and self.largest_loss is not None:
            needed = -math.log(1 - self.sampling_confidence)
            needed = math.ceil(needed * self.largest_loss / self.sampling_error)
            require(
                needed <= self.max_trials,
                f"trial_plan 'rule-of-three' needs {needed} trials for a largest_loss of "
                f"{self.largest_loss:g}, more than max_trials ({self.max_trials})",
            )
        if self.largest_loss is not None:
            require(
                math.isfinite(self.smallest_loss)
                and self.smallest_loss < self.largest_loss < math.inf,
                f"largest_loss ({self.largest_loss}) must be above smallest_loss "
                f"({self.smallest_loss})",
            )
        require(
            self.action_choice in get_args(ActionChoice),
            f"action_choice {self.action_choice!r} is unknown; "
            + did_you_mean(str(self.action_choice), get_args(ActionChoice)),
        )
        require(0 <= self.epsilon <= 1, f"epsilon must lie in [0, 1], got {self.epsilon}")
        require(
            self.epsilon == 0 or self.action_choice == "epsilon-greedy",
            "epsilon has a meaning only with action_choice='epsilon-greedy'",
        )
        require(self.opening >= 0, f"opening must be at least 0, got {self.opening}")
        require(
            self.exclude_last is None or self.exclude_last >= 0,
            f"exclude_last must be at least 0, got {self.exclude_last}",
        )
        require(
            self.max_episode_steps >= 1,
            f"max_episode_steps must be at least 1, got {self.max_episode_steps}",
        )
        require(
            n_values[-1] <= self.horizon,
            f"n = {n_values[-1]} is longer than the horizon of {self.horizon} steps that gamma and "
            "horizon_error give; take smaller n, or a gamma nearer to 1",
        )
        require(self.seed >= 0, f"seed must be at least 0, got {self.seed}")

    @property
    def horizon(self) -> int:
        """h = ⌈log_γ ε̂_horizon⌉: how many steps of a return are counted."""
        return math.ceil(math.log(self.horizon_error) / math.log(self.gamma))

    @property
    def excluded_steps(self) -> int:
        """How many steps at the end of an episode are never selected."""
        return max(self.n_values) if self.exclude_last is None else self.exclude_last

    def to_json(self) -> str:
        """A canonical text: equal settings give equal texts."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that `to_json` wrote."""
        return cls.from_mapping(json.loads(text))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from names and values; an unknown name is answered with the nearest one."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise InvalidInput(f"settings: {name!r} is unknown; {did_you_mean(name, known)}")
        return cls(**values)

    def differences(self, other: Settings) -> list[str]:
        """One 'name: ours, not theirs' for each field in which two settings differ."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{name}: {mine[name]}, not {theirs[name]}"
            for name in mine
            if mine[name] != theirs[name]
        ]
