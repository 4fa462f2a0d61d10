"""What a monitor says: one decision, the decisions of many agents, and what is worth telling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from safemargin.core.plain import finite_or_none
from safemargin.core.records import Floats
from safemargin.errors import InvalidInput
from safemargin.margins.lookup import Margins

Booleans = npt.NDArray[np.bool_]

VOID = "the guarantee is void: proxies no longer look as they did when the margins were fitted"


class Rule(NamedTuple):
    """When to call; the same for all agents of a monitor."""

    proxy: str
    tolerance: float
    call_at: int
    """Below this margin a call begins."""
    release_at: int
    """At or above this margin it ends."""
    pause: int
    """So many decisions must pass after a call before the next of the same agent."""
    lowest: float
    """Below this proxy nothing was measured."""
    highest: float
    """Above this proxy nothing was measured."""


def make_rule(
    margins: Margins, tolerance: float, call_at: int, release_at: int | None, pause: int
) -> Rule:
    """When to call, checked; without `release_at`, a call ends at the next larger n."""
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
            f"call_at={call_at} lies above {highest}, the largest n that was measured: it would "
            "always call"
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
    return Rule(
        margins.proxy,
        float(tolerance),
        int(call_at),
        int(release_at),
        int(pause),
        margins.lowest_proxy,
        margins.highest_proxy,
    )


def default_release(n_values: Sequence[int], call_at: int) -> int:
    """The next larger n than call_at that was measured; call_at itself where it is the largest."""
    return next((n for n in n_values if n > call_at), call_at)


class Decision(NamedTuple):
    """What a monitor says about one decision of one agent."""

    margin: int
    """How many mistakes can be afforded now; 0 where nothing is known."""
    proxy: float
    call: bool
    """Somebody should look."""
    began: bool
    """The call begins with this decision."""
    outside: bool
    """The proxy lies outside the range that the margins were fitted on."""
    muted: bool
    """There would be a call, but the last one is too recent."""
    void: bool
    """The live proxies have drifted: the margin promises nothing any longer."""
    rule: Rule

    @property
    def why(self) -> str:
        """One sentence."""
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
    text = f"margin {margin}"
    if decision.outside and decision.proxy > rule.highest:
        text = (
            f"{rule.proxy} {decision.proxy:.4g} lies above {rule.highest:.4g}, the highest the "
            "margins were fitted on, so nothing is known"
        )
    elif decision.outside:
        text = (
            f"{rule.proxy} {decision.proxy:.4g} lies below {rule.lowest:.4g}, the lowest the "
            f"margins were fitted on: margin {margin} as there"
        )
    if decision.muted:
        return f"{text}, below {rule.call_at}, but the last call is not {rule.pause} decisions ago"
    if not decision.call:
        return text
    if margin < rule.call_at:
        return f"{text}, below {rule.call_at}"
    return f"{text}, not yet {rule.release_at} again"


@dataclass(slots=True, eq=False)
class Decisions:
    """What a monitor says about one decision of each agent.

    The arrays are the monitor's own and are overwritten by its next step; `copy` what shall stay.
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
        """Room for so many agents."""
        call, began, outside, muted = (np.zeros(agents, dtype=bool) for _ in range(4))
        margin, proxy = np.zeros(agents, dtype=np.int64), np.zeros(agents)
        return cls(margin, proxy, call, began, outside, muted, False, rule)

    def __len__(self) -> int:
        return len(self.margin)

    def __getitem__(self, agent: int) -> Decision:
        return Decision(
            int(self.margin[agent]),
            float(self.proxy[agent]),
            bool(self.call[agent]),
            bool(self.began[agent]),
            bool(self.outside[agent]),
            bool(self.muted[agent]),
            self.void,
            self.rule,
        )

    def copy(self) -> Decisions:
        """The same in arrays of its own."""
        return Decisions(
            self.margin.copy(),
            self.proxy.copy(),
            self.call.copy(),
            self.began.copy(),
            self.outside.copy(),
            self.muted.copy(),
            self.void,
            self.rule,
        )

    @property
    def why(self) -> list[str]:
        """One sentence for each agent; made when asked for."""
        return [self[agent].why for agent in range(len(self))]


@dataclass(frozen=True, slots=True)
class Event:
    """What listeners are told: a call begins or ends, or the proxies have drifted."""

    kind: Literal["call", "release", "drift"]
    agent: int
    """Its place in the batch; 0 for a single one, −1 for what concerns all."""
    step: int
    """How many decisions the monitor had seen before."""
    margin: int | None
    proxy: float | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; what is not finite is null."""
        return {
            "kind": self.kind,
            "agent": self.agent,
            "step": self.step,
            "margin": self.margin,
            "proxy": None if self.proxy is None else finite_or_none(self.proxy),
            "why": self.why,
        }
