"""Calls that people can answer: few enough, long enough, and none twice. Needs only numpy.

A monitor judges one decision at a time; a caller decides for a whole team which of its judgements
are worth a person's time. Time is an input, so that a team can also run faster than the clock.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, overload

from safemargin.core.budget import Budget
from safemargin.core.seeding import plain_uniform
from safemargin.errors import InvalidInput
from safemargin.monitor.bank import Bank, look_share
from safemargin.monitor.calls import LOOK, QUIET, Call, Cause, Line, Looks
from safemargin.monitor.decisions import Decision, Decisions
from safemargin.monitor.stuck import Stuck
from safemargin.monitor.threshold import LOWEST, Threshold, Urgency

LENGTH, GAP = 3.0, 2.0
LONGEST_STEP = 5.0
"""Seconds between two decisions of a team, from which on it counts as paused."""
LONG_CALL = 60.0
"""Seconds after which an open call must be as urgent as others are now, if that is more."""
REVIEW = 1.0
"""Seconds between two adaptations of the threshold."""
FAIR = 0.5
"""One agent of many gets at most this share of the calls."""
LEAST_OWN = 2.0
"""Calls that an agent may save up of its own share, at least."""
MOST_SLOTS = 20_000
"""Slots that are remembered; with very many agents, they are longer instead."""
PRESENT = 5.0
"""Seconds after its last decision for which an agent can be looked at."""


class Caller:
    """Turns the margins of a team of agents into calls that its people can answer.

    With a `budget`, the most urgent decisions call: those with the lowest margins, then with the
    highest proxies. How low is low adapts, so that the budget is spent, and no more than that. No
    agent of many gets more than half of the calls. A tenth of the budget goes to random looks (or
    `looks`), so that what no proxy sees is seen, too. Without a budget, a monitor's calls count.

    A call lasts at least `length` seconds, and ends when nothing has been urgent for `gap` seconds.
    `stuck` watches for agents that make no progress; None: nobody does.
    """

    def __init__(
        self,
        budget: str | float | Budget | None = None,
        *,
        looks: str | float | Budget | None = None,
        length: float = LENGTH,
        gap: float = GAP,
        stuck: Stuck | None = None,
        seed: int | None = None,
    ) -> None:
        """`seed`: for random looks, and lots between equally urgent decisions."""
        if not 0 <= length < math.inf or not 0 <= gap < math.inf:
            raise InvalidInput(f"length and gap must be at least 0 s, got {length} and {gap}")
        self.budget = None if budget is None else Budget.parse(budget)
        self.length, self.gap, self.stuck = float(length), float(gap), stuck
        self._bank: Bank | None = None
        if self.budget is None:
            if looks is not None:
                raise InvalidInput("random looks are a part of a budget; give one, like 20/hour")
        elif not self.budget.amount:
            raise InvalidInput("the budget must be above 0, or None for calls without one")
        else:
            share = look_share(self.budget, looks)
            self._bank = Bank(self.budget, share, max(self.length, self.gap, 1e-9))
        self._uniform = plain_uniform(seed)
        self._lines: dict[Hashable, Line] = {}
        self._looks = Looks(self._uniform)
        self._owed_looks = 0
        self._threshold = Threshold()
        self._heard = -math.inf
        self._passed = 0.0
        """The team's time: seconds in which somebody decided."""
        self._reviewed = 0.0

    def check(self, agents: int) -> None:
        """Raise InvalidInput for a budget that this many agents cannot keep."""
        longest = max(self.length, self.gap)
        if self.budget is None or self.budget.unit == "share" or not longest:
            return
        most = agents * 3600 / (longest + self.gap)
        if self.budget.amount > most:
            raise InvalidInput(
                f"a budget of {self.budget} cannot be spent: with calls of at least {longest:g} s "
                f"and {self.gap:g} s between them, {agents} agents make at most {most:,.0f} an "
                "hour; lower the budget or the length of calls"
            )

    @property
    def looks(self) -> float:
        """Share of the budget that goes to random looks."""
        return 0.0 if self._bank is None else self._bank.looks

    @property
    def level(self) -> Urgency | None:
        """What is called at or above now: −margin, proxy, lot; None without a budget."""
        return None if self._bank is None else self._threshold.level

    # -- decisions -----------------------------------------------------------------------------

    @overload
    def step(
        self, decided: Decision, now: float, rewards: Any = None, states: Any = None
    ) -> Call: ...

    @overload
    def step(
        self, decided: Decisions, now: float, rewards: Any = None, states: Any = None
    ) -> list[Call]: ...

    def step(
        self, decided: Decision | Decisions, now: float, rewards: Any = None, states: Any = None
    ) -> Call | list[Call]:
        """Return what to do about a monitor's verdict: one `Call`, or one for each agent.

        `now`: seconds, of any clock. `rewards` of the decisions before, and `states` (anything
        that is equal for equal states), of one agent or [agents], show who is stuck.
        """
        if isinstance(decided, Decision):
            return self.see(
                0, now, decided.margin, decided.proxy, wanted=decided.call, reward=rewards,
                state=states,
            )  # fmt: skip
        count = len(decided)
        rewards, states = _each(rewards, count), _each(states, count)
        rows = zip(decided.margin.tolist(), decided.proxy.tolist(), decided.call.tolist(),
                   rewards, states, strict=True)  # fmt: skip
        return [
            self.see(agent, now, margin, proxy, wanted=wanted, reward=reward, state=state)
            for agent, (margin, proxy, wanted, reward, state) in enumerate(rows)
        ]

    def see(
        self,
        agent: Hashable,
        now: float,
        margin: int,
        proxy: float | None,
        *,
        wanted: bool = False,
        reward: float | None = None,
        state: Hashable | None = None,
        quiet: bool = False,
    ) -> Call:
        """Take in one decision of one agent; return whether it calls.

        With margin 0, a proxy that is NaN or None means that nothing is known, which is most
        urgent. `wanted`: the monitor's own verdict, which counts without a budget. `reward`: what
        the decision before brought, None if that is unknown. `quiet`: no call is to begin, because
        somebody has the agent already or does not want to hear of it.
        """
        self._pass_time(now)
        line = self._lines.get(agent) or self._join(agent, now)
        line.heard, line.quiet = now, quiet
        why_stuck = "" if self.stuck is None else self.stuck.see(agent, now, reward, state)
        line.reported = line.reported and bool(why_stuck)
        proxy = proxy if proxy is not None or not margin else 0.0  # an agent need not report it
        known = proxy is not None and math.isfinite(proxy)
        urgency = (-float(margin), proxy or 0.0, line.lot) if known else (1.0, 0.0, line.lot)
        bank = self._bank
        if bank is not None:
            bank.decide(called=line.call.on and line.call.cause != "look")
            self._slot(line, urgency, now)
            wanted = urgency >= (line.level if line.call.on else self._threshold.level)
        if line.call.on:
            return self._go_on(line, now, wanted=wanted, stuck=bool(why_stuck))
        if quiet:
            return QUIET
        cause: Cause = ""
        if line.look:
            cause, why = "look", "a random look: no margin asks for it"
        elif why_stuck and not line.reported and self._may_call(line):
            cause, why, line.reported = "stuck", why_stuck, True
        elif wanted and self._may_call(line):
            cause, why = "margin", self._why(margin, proxy if known else None)
        if not cause:
            return QUIET
        return self._begin(line, now, Call(True, True, cause, why), urgency)

    def _begin(self, line: Line, now: float, call: Call, urgency: Urgency) -> Call:
        line.call = call._replace(began=False)
        line.began = line.urgent = now
        line.level, line.acknowledged, line.decisions = self._threshold.level, False, 0
        line.look = False
        if self._bank is not None and call.cause != "look":
            self._bank.pay()
            line.saved -= 1
            if call.cause == "margin":
                self._threshold.add(self._passed, urgency)
            self._adapt()
        return call

    def _go_on(self, line: Line, now: float, *, wanted: bool, stuck: bool) -> Call:
        """Return the open call, or none if it has ended."""
        call = line.call
        line.decisions += 1
        lasted = now - line.began
        if call.cause == "look":
            over = line.acknowledged or lasted >= max(LOOK, self.length)
        elif call.cause == "stuck":
            over = line.acknowledged or not stuck
        else:
            line.urgent = now if wanted else line.urgent
            over = now - line.urgent >= self.gap and not wanted
            over = over or (self._bank is not None and self._bank.saved < 0 < self._bank.per_call
                            and self._bank.budget.unit == "share")  # fmt: skip
        if not over or lasted < self.length:
            return call
        self._end(line)
        return QUIET

    def _end(self, line: Line) -> None:
        if self._bank is not None and line.call.cause == "margin":
            self._bank.end_call(line.decisions)
        line.call, line.high = QUIET, False
        line.peak, line.slot_ends = LOWEST, self._passed + self._slot_length()

    def _why(self, margin: int, proxy: float | None) -> str:
        text = f"margin {margin}" + ("" if proxy is None else f", proxy {proxy:.4g}")
        if self._bank is None:
            return ""
        if proxy is None:
            return "the scores give no finite proxy, so nothing is known"
        return f"{text}: among the most urgent, for a budget of {self._bank.budget.text}"

    # -- what people do ------------------------------------------------------------------------

    def acknowledge(self, agent: Hashable) -> None:
        """Somebody has seen the call. A random look ends with that, as does a call for being stuck.

        No call ends before it has lasted `length` seconds.
        """
        if agent in self._lines:
            self._lines[agent].acknowledged = True

    def end(self, agent: Hashable) -> None:
        """End the agent's call, if it has one, and forget a look that was due."""
        line = self._lines.get(agent)
        if line is not None:
            self._owed_looks += line.look
            line.look = False
            if line.call.on:
                self._end(line)

    def leave(self, agent: Hashable) -> None:
        """End the call of an agent that is gone; it may come back."""
        self.end(agent)
        if agent in self._lines:
            self._lines[agent].heard = -math.inf
        self.end_episode(agent)

    def end_episode(self, agent: Hashable) -> bool:
        """Report that the agent's next decision begins an episode; return whether that ends a call.

        It does once the call has lasted `length` seconds.
        """
        if self.stuck is not None:
            self.stuck.forget(agent)
        line = self._lines.get(agent)
        if line is None or not line.call.on or line.heard - line.began < self.length:
            return False
        self._end(line)
        return True

    def restore(self, calls: Iterable[float], now: float) -> None:
        """Spend what the calls before a restart cost; a budget of a share of decisions starts anew.

        `calls` began this many seconds after the start; `now` is the end of what is known.
        """
        bank = self._bank
        if bank is None or bank.budget.unit == "share":
            return
        bank.review(REVIEW, 1)
        before = 0.0
        for moment in sorted(calls):
            bank.pass_time(moment - before)
            bank.pay()
            before = moment
        bank.pass_time(now - before)

    # -- the budget ----------------------------------------------------------------------------

    def _join(self, agent: Hashable, now: float) -> Line:
        line = Line(len(self._lines), now, LEAST_OWN, self._passed, self._uniform(), 0.0)
        line.slot_ends = self._passed + self._slot_length()
        self._lines[agent] = line
        return line

    def _may_call(self, line: Line) -> bool:
        """Whether the budget allows the agent a call."""
        return self._bank is None or (line.saved >= 1 and self._bank.allows())

    def _pass_time(self, now: float) -> None:
        seconds = min(now - self._heard, LONGEST_STEP) if math.isfinite(self._heard) else 0.0
        if seconds <= 0:
            self._heard = max(self._heard, now)
            return
        self._heard = now
        self._passed += seconds
        bank = self._bank
        if bank is None:
            return
        bank.pass_time(seconds)
        if self._passed - self._reviewed >= REVIEW:
            bank.review(self._passed - self._reviewed, max(self._present(now), 1))
            self._reviewed = self._passed
            self._adapt()
        if bank.pace:
            self._look(now, seconds)

    def _adapt(self) -> None:
        bank = self._bank
        if bank is not None and bank.pace:
            self._threshold.adapt(self._passed, bank.rate, bank.filling)

    def _look(self, now: float, seconds: float) -> None:
        """Choose whom to look at, once that is due."""
        bank = self._bank
        assert bank is not None
        wanted = bank.budget.amount * bank.looks / 3600
        if bank.budget.unit == "share":
            wanted = bank.budget.amount * bank.looks * self._present(now) / max(LOOK, self.length)
        self._owed_looks += self._looks.due(wanted * seconds)
        while self._owed_looks:
            free = [
                line
                for line in self._lines.values()
                if not (line.call.on or line.quiet or line.look) and now - line.heard < PRESENT
            ]
            if not free:
                return
            free[int(self._uniform() * len(free))].look = True
            self._owed_looks -= 1

    def _present(self, now: float) -> int:
        return sum(now - line.heard < PRESENT for line in self._lines.values())

    def _slot_length(self) -> float:
        bank = self._bank
        own = max(self.length, self.gap) + self.gap
        if bank is None or not bank.pace:
            return own
        return max(own, 20.0 / bank.rate * len(self._lines) / MOST_SLOTS)

    def _slot(self, line: Line, urgency: Urgency, now: float) -> None:
        """Add the decision to the agent's slot, and begin another one when it has ended."""
        bank, level = self._bank, self._threshold.level
        assert bank is not None
        calls = line.call.on
        competes = not calls or now - line.began > LONG_CALL
        if calls and competes:
            line.level = max(line.level, level)
        line.peak = max(line.peak, urgency)
        if self._passed < line.slot_ends:
            return
        fair = max(FAIR, 2 / len(self._lines)) * bank.rate
        line.saved = min(
            line.saved + fair * (self._passed - line.at), max(LEAST_OWN, bank.most / 2)
        )
        line.at = self._passed
        high = line.peak >= level
        free = not line.quiet and line.saved >= 1
        if competes and free and (calls or not (high and line.high)):
            self._threshold.add(self._passed, line.peak)
        line.high, line.peak, line.lot = high, LOWEST, self._uniform()
        line.slot_ends = self._passed + self._slot_length()


def _each(given: Any, count: int) -> Sequence[Any]:
    """Return one value for each agent."""
    if given is None:
        return [None] * count
    values: list[Any] = given.tolist() if hasattr(given, "tolist") else list(given)
    if len(values) != count:
        raise InvalidInput(f"there must be a value for each of {count} agents, got {len(values)}")
    return values
