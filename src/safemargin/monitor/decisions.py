"""What a monitor returns: one decision, the decisions of many agents, and events for listeners."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from safemargin.core.plain import finite_or_none
from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.lookup import Margins

Booleans = npt.NDArray[np.bool_]
Kind = Literal["call", "release", "drift"]

VOID = "the guarantee is void: proxies no longer look as they did when the margins were fitted"


class Rule(NamedTuple):
    """When to call somebody; the same for all agents of a monitor."""

    proxy: str
    tolerance: float
    call_at: int
    """A call begins below this margin."""
    release_at: int
    """It ends at or above this margin."""
    pause: int
    """This many decisions must pass after a call before the same agent calls again."""
    lowest: float
    """The lowest measured proxy."""
    highest: float
    """The highest measured proxy."""
    about: str = ""
    """What a margin is about, where that is not random actions and discounted reward."""


def make_rule(
    margins: Margins, tolerance: float, call_at: int, release_at: int | None, pause: int
) -> Rule:
    """Return a checked rule; without `release_at`, a call ends at the next larger measured n."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, Real):
        raise InvalidInput(f"the tolerance must be a number, got {tolerance!r:.60}")
    given = 1 if release_at is None else release_at
    for name, value in (("call_at", call_at), ("release_at", given), ("pause", pause)):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InvalidInput(f"{name} must be a whole number, got {value!r:.60}")
    if not tolerance >= 0:
        raise InvalidInput(f"the tolerance must be at least 0, got {tolerance}")
    if call_at < 1:
        raise InvalidInput(f"call_at must be at least 1 (a call begins below it), got {call_at}")
    highest = margins.n_values[-1]
    if call_at > highest:
        raise InvalidInput(
            f"call_at={call_at} lies above {highest}, the largest n that was measured, so every "
            "decision would call"
        )
    if release_at is None:
        release_at = default_release(margins.n_values, call_at)
    if not call_at <= release_at <= highest:
        raise InvalidInput(
            f"release_at must lie between call_at ({call_at}) and the largest n that was measured "
            f"({highest}), got {release_at}"
        )
    if pause < 0:
        raise InvalidInput(f"pause must be at least 0 decisions, got {pause}")
    whole = int(call_at), int(release_at), int(pause)
    measured = margins.lowest_proxy, margins.highest_proxy
    return Rule(margins.proxy, float(tolerance), *whole, *measured, margins.measured.brief)


def default_release(n_values: Sequence[int], call_at: int) -> int:
    """Return the next measured n above call_at, or call_at itself where it is the largest."""
    return next((n for n in n_values if n > call_at), call_at)


class Decision(NamedTuple):
    """A monitor's verdict on one decision of one agent."""

    margin: int
    """How many mistakes the agent can afford now; 0 where nothing is known."""
    proxy: float
    call: bool
    """Somebody should look."""
    began: bool
    """The call begins with this decision."""
    outside: bool
    """The proxy lies outside the range that the margins were fitted on."""
    muted: bool
    """A call is due, but the last one is too recent."""
    void: bool
    """The live proxies have drifted: the margin no longer promises anything."""
    rule: Rule

    @property
    def why(self) -> str:
        """The reason in one sentence."""
        text = _why(self)
        return f"{text}; {VOID}" if self.void else text

    def report(self) -> dict[str, Any]:
        """Return the plain values that a watched fleet is sent; `why` only where it matters."""
        return {
            "margin": self.margin,
            "proxy": finite_or_none(self.proxy),
            "call": self.call,
            "outside": self.outside,
            "muted": self.muted,
            "void": self.void,
            "why": self.why if self.call or self.outside or self.void else "",
        }


def _why(decision: Decision) -> str:
    margin, rule = decision.margin, decision.rule
    if not np.isfinite(decision.proxy):
        return "the scores give no finite proxy, so nothing is known"
    text = f"margin {margin}" + (f" ({rule.about})" if rule.about else "")
    if decision.outside and decision.proxy > rule.highest:
        text = (
            f"{rule.proxy} {decision.proxy:.4g} lies above {rule.highest:.4g}, the highest the "
            "margins were fitted on, so nothing is known"
        )
    elif decision.outside:
        text = (
            f"{rule.proxy} {decision.proxy:.4g} lies below {rule.lowest:.4g}, the lowest the "
            f"margins were fitted on, which has margin {margin}"
        )
    if decision.muted:
        recent = f"the last call ended fewer than {rule.pause} decisions ago"
        text += f", below {rule.call_at}, but {recent}"
    elif decision.call and margin < rule.call_at:
        text += f", below {rule.call_at}"
    elif decision.call:
        text += f", not yet back at {rule.release_at}"
    return text


@dataclass(slots=True, eq=False)
class Decisions:
    """A monitor's verdict on one decision of each agent.

    The arrays belong to the monitor, and its next step overwrites them; use `copy` to keep them.
    """

    margin: npt.NDArray[np.int64]  # [agents]
    proxy: Floats  # [agents]
    call: Booleans  # [agents]
    began: Booleans  # [agents]
    outside: Booleans  # [agents]
    muted: Booleans  # [agents]
    void: bool
    rule: Rule

    @classmethod
    def of(cls, agents: int, rule: Rule) -> Decisions:
        """Make room for this many agents."""
        call, began, outside, muted = (np.zeros(agents, dtype=bool) for _ in range(4))
        margin, proxy = np.zeros(agents, dtype=np.int64), np.zeros(agents)
        return cls(margin, proxy, call, began, outside, muted, False, rule)

    def __len__(self) -> int:
        return len(self.margin)

    def __getitem__(self, agent: int) -> Decision:
        arrays = self.margin, self.proxy, self.call, self.began, self.outside, self.muted
        values = [array[agent].item() for array in arrays]
        return Decision._make([*values, self.void, self.rule])

    def copy(self) -> Decisions:
        """Return a copy that the monitor's next step leaves alone."""
        return deepcopy(self)

    @property
    def why(self) -> list[str]:
        """The reason for each agent in one sentence."""
        return [self[agent].why for agent in range(len(self))]


@dataclass(frozen=True, slots=True)
class Event:
    """What listeners receive: a call begins or ends, or the proxies have drifted."""

    kind: Kind
    agent: int
    """Its index in the batch; 0 for a single agent, −1 for all of them."""
    step: int
    """How many decisions the monitor had seen before this one."""
    margin: int | None
    proxy: float | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a proxy that is not finite is None."""
        proxy = None if self.proxy is None else finite_or_none(self.proxy)
        return {**asdict(self), "proxy": proxy}
