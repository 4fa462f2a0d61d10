"""Live margins: scores → proxy → margin → call. Needs only numpy and a margins file."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats
from safemargin.errors import InvalidInput, StudyMismatch, did_you_mean
from safemargin.margins.lookup import Margins
from safemargin.monitor.decisions import Decision, Decisions, Event, make_rule
from safemargin.monitor.drift import FEWEST_EPISODES, Drift, DriftTest
from safemargin.monitor.live_proxy import LiveProxy
from safemargin.monitor.reservoir import FleetReservoir, Reservoir

Listener = Callable[[Event], Any]

_new: Any = tuple.__new__


class Monitor:
    """Says at every decision how many mistakes the agent can afford, and when to call somebody.

    A call begins when the margin falls below `call_at` and ends when it is back at `release_at`
    (None: the next larger measured n); the gap keeps calls from flickering. After a call, the same
    agent is silent for `pause` decisions; calls suppressed that way are marked `muted`. Scores
    without a finite proxy always call.

    `policy` and `environment` are what runs: a margins file made for others is refused.
    `listeners` are called with an `Event` when a call begins or ends and when the proxies drift.
    """

    def __init__(
        self,
        margins: str | os.PathLike[str] | Margins,
        *,
        tolerance: float,
        call_at: int = 1,
        release_at: int | None = None,
        pause: int = 0,
        below: Literal["lowest", "zero"] = "lowest",
        policy: Any = None,
        environment: str | None = None,
        action_space: Any = None,
        listeners: Sequence[Listener] = (),
        false_alarms: float = 0.01,
        block: int | None = None,
        seed: int | None = None,
    ) -> None:
        """`below`: what to grant below the lowest measured proxy, its margin or 0.

        `action_space`: anything with `low` and `high`; only for a Gaussian policy. `false_alarms`:
        the probability that drift is ever reported without a cause. `block`: where episodes never
        end, this many decisions count as one. `seed`: for the random choice of the decisions that
        drift is judged by.
        """
        self.margins = margins if isinstance(margins, Margins) else Margins.load(margins)
        self.rule = make_rule(self.margins, tolerance, call_at, release_at, pause)
        if below not in ("lowest", "zero"):
            raise InvalidInput(
                f"below={below!r} is unknown; {did_you_mean(str(below), ['lowest', 'zero'])}"
            )
        if block is not None and block < 1:
            raise InvalidInput(f"block must be at least 1 decision, got {block}")
        self.check(policy, environment)
        self.listeners = tuple(listeners)
        self.steps = 0
        """Decisions of each agent so far."""
        self._proxy = LiveProxy(self.margins, action_space)
        self._proxy_of_one = self._proxy.one
        self._plain = self._proxy.probe is None
        grid = self.margins.bound.grid[0]
        granted = self.margins.lookup(grid, tolerance).margin
        # One more entry at either end: below and above what was measured. NaN sorts above.
        self._table = np.array([0 if below == "zero" else granted[0], *granted, 0], dtype=np.int64)
        middles = (grid[:-1] + grid[1:]) / 2
        above = np.nextafter(grid[-1], np.inf)  # grid[−1] itself is inside
        self._edges: Floats = np.array([grid[0], *middles, above])
        self._last = len(grid)
        self._plain_table, self._plain_edges = self._table.tolist(), self._edges.tolist()
        self._block = block
        self._false_alarms = false_alarms
        natural = self.margins.natural_proxies
        self._drift: DriftTest | None = None
        if natural is not None and natural.count >= FEWEST_EPISODES:
            self._drift = DriftTest(natural, false_alarms=false_alarms, seed=seed)
        self._agents: int | None = None  # 0: a single agent, whose scores have no axis for agents
        self._on, self._silent, self._reservoir = False, 0, Reservoir(seed)  # the single agent's
        self._seed = seed

    def check(self, policy: Any = None, environment: str | None = None) -> None:
        """Raise StudyMismatch where the margins were made for another policy or environment.

        `policy` is a policy or its identity; `environment` an identity ('sha256:…') or a name.
        """
        if policy is not None:
            given = policy if isinstance(policy, str) else getattr(policy, "identity", None)
            if not isinstance(given, str):
                raise InvalidInput(f"policy must be a policy or its identity, got {policy!r:.60}")
            theirs = self.margins.policy
            self._compare("policy", given, theirs.get("identity"), theirs.get("description"))
        if environment is not None:
            theirs = self.margins.environment
            if environment != theirs.get("name"):
                self._compare(
                    "environment", environment, theirs.get("identity"), theirs.get("name")
                )

    def _compare(self, what: str, given: str, known: Any, name: Any) -> None:
        if known is None:
            raise StudyMismatch(
                f"the margins do not say which {what} they were made for; fit them from a study, "
                f"or leave {what}= out"
            )
        if given != known:
            raise StudyMismatch(
                f"the margins were made for another {what} ({name or 'unnamed'}, {known[:19]}…, "
                f"not {given[:19]}…); collect and fit for this one"
            )

    @property
    def drift(self) -> Drift:
        """The current state of the test for drift."""
        if self._drift is None:
            return Drift(False, False, 1.0, 0, self._false_alarms)
        return self._drift.state

    @property
    def calling(self) -> npt.NDArray[np.bool_]:
        """Which agents have an open call, [agents]."""
        if self._agents is None:
            return np.zeros(0, dtype=bool)
        return np.array([self._on]) if self._agents == 0 else self._calling.copy()

    # -- one decision --------------------------------------------------------------------------

    @property
    def needs_features(self) -> bool:
        """Whether the proxy is learned, so that `step` needs the policy's features, too."""
        return self._proxy.probe is not None

    def step(self, scores: npt.ArrayLike, features: npt.ArrayLike | None = None) -> Any:
        """Return a `Decision` for one agent's scores [actions], `Decisions` for [agents, actions].

        A monitor serves one or the other; its first step sets the number of agents. A learned proxy
        needs `features`, too: the last hidden layer (and the value, if the policy has one), [width]
        or [agents, width].
        """
        if (
            self._agents == 0
            and self._plain
            and type(scores) is np.ndarray
            and scores.shape == self._shape
            and scores.dtype is self._dtype
        ):
            return self._step_one(self._proxy_of_one(scores))  # the common case, kept short
        rows = _as_numbers(scores)
        if self._agents is None:
            self._begin(rows)
        if rows.shape != self._shape:
            raise InvalidInput(
                f"this monitor was given scores of shape {list(self._shape)} first, now "
                f"{list(rows.shape)}; make another monitor for other agents"
            )
        single = self._agents == 0
        if not self._plain:
            values = self._proxy.learned(rows, features, single=single)
            if single:
                return self._step_one(float(values[0]))
            self._decisions.proxy[:] = values
            return self._step_many()
        if single:
            return self._step_one(self._proxy_of_one(rows))
        self._decisions.proxy[:] = self._proxy.many(rows)
        return self._step_many()

    def _step_one(self, proxy: float) -> Decision:
        rule, on, drift = self.rule, self._on, self._drift
        usable = proxy - proxy == 0  # neither NaN nor infinite
        index = bisect_right(self._plain_edges, proxy) if usable else -1
        margin: int = self._plain_table[index]
        call = not usable or margin < (rule.release_at if on else rule.call_at)
        muted = ended = False
        if call is not on or self._silent:
            muted = call and not on and usable and self._silent > 0
            call = call and not muted
            ended = on and not call
            self._silent = rule.pause if ended else max(self._silent - 1, 0)
            self._on = call
        void = False
        if drift is not None:
            if usable and self._reservoir.see(proxy) == self._block:
                self._close([0], counted=True)
            void = drift.fired
        began = call and not on
        outside = index <= 0 or index > self._last
        # tuple.__new__ instead of Decision(…) saves half a microsecond.
        decision: Decision = _new(
            Decision, (margin, proxy, call, began, outside, muted, void, rule)
        )
        if (began or ended) and self.listeners:
            self._notify("call" if began else "release", 0, decision)
        self.steps += 1
        return decision

    def _step_many(self) -> Decisions:
        """Decide on the proxies in `_decisions`."""
        rule, out = self.rule, self._decisions
        on, silent = self._calling, self._silences
        usable = np.isfinite(out.proxy)
        out.proxy[~usable] = np.nan
        indices = np.searchsorted(self._edges, out.proxy, side="right")
        out.margin[:] = self._table[indices]
        out.outside[:] = (indices == 0) | (indices == len(self._edges))
        wanted = out.margin < np.where(on, rule.release_at, rule.call_at)
        out.muted[:] = wanted & usable & ~on & (silent > 0)
        out.call[:] = (wanted | ~usable) & ~out.muted
        out.began[:] = out.call & ~on
        ended = on & ~out.call
        if rule.pause:
            silent[:] = np.where(ended, rule.pause, np.maximum(silent - 1, 0))
        on[:] = out.call
        if self._drift is not None:
            self._reservoirs.see(out.proxy, usable)
            if self._block is not None and (self.steps + 1) % self._block == 0:
                self._close(range(len(out)), counted=True)
            out.void = self._drift.fired
        if self.listeners:
            for kind, agents in (("call", out.began), ("release", ended)):
                for agent in np.flatnonzero(agents):
                    self._notify(kind, int(agent), out[int(agent)])
        self.steps += 1
        return out

    def begin_episode(self, agents: Any = None) -> None:
        """Report that the next decisions are the first of an episode (or life); None: all agents'.

        Only a learned proxy, which looks back a few steps, needs to know; `end_episode` is enough.
        """
        if self._agents is not None:
            self._proxy.forget(_indices(agents, max(self._agents, 1)))

    # -- episodes and drift --------------------------------------------------------------------

    def end_episode(self, agents: Any = None, *, counted: bool = True) -> None:
        """Report that episodes (games, where lives are episodes) have ended; None: all agents'.

        `agents` are indices or a boolean mask. Open calls end, and the pause after them begins.
        `counted=False`: the episode was cut short from outside and says nothing about drift.
        """
        if self._agents is None:
            return
        chosen = _indices(agents, max(self._agents, 1))
        self._proxy.forget(chosen)
        calling = self.calling
        called = [agent for agent in chosen if calling[agent]]
        if called and self._agents == 0:
            self._on, self._silent = False, self.rule.pause
        elif called:
            self._calling[called] = False
            self._silences[called] = self.rule.pause
        for agent in called:
            self._send(Event("release", agent, self.steps, None, None, "the episode has ended"))
        self._close(chosen, counted=counted)

    def _close(self, agents: Sequence[int], *, counted: bool) -> None:
        """Hand one decision of each ended episode to the test for drift."""
        if self._drift is None:
            return
        reservoir = self._reservoir if self._agents == 0 else self._reservoirs
        for value in reservoir.end(agents, counted=counted):
            if not self._drift.fired and self._drift.add(value):
                self._send(Event("drift", -1, self.steps, None, None, self._drift.state.why))

    # -- inside --------------------------------------------------------------------------------

    def _begin(self, rows: npt.NDArray[Any]) -> None:
        """Make room for the state of as many agents as the first scores have."""
        single = rows.ndim == self._proxy.dimensions
        if not single and rows.ndim != self._proxy.dimensions + 1:
            raise InvalidInput(f"scores must be {self._proxy.shapes}, got shape {list(rows.shape)}")
        if 0 in rows.shape:
            raise InvalidInput(f"scores must not be empty, got shape {list(rows.shape)}")
        self._shape, self._dtype = rows.shape, rows.dtype
        agents = 0 if single else len(rows)
        self._calling, self._silences = np.zeros(agents, dtype=bool), np.zeros(agents, np.int64)
        self._reservoirs = FleetReservoir(agents, self._seed)
        self._decisions = Decisions.of(agents, self.rule)
        self._agents = agents

    def _notify(self, kind: Any, agent: int, decision: Decision) -> None:
        self._send(Event(kind, agent, self.steps, decision.margin, decision.proxy, decision.why))

    def _send(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)


def _indices(agents: Any, count: int) -> list[int]:
    """Return sorted, distinct indices from indices, a boolean mask or None (all)."""
    if agents is None:
        return list(range(count))
    try:
        given = np.atleast_1d(agents)
        found: list[int] = np.unique(np.arange(count)[given]).tolist() if given.size else []
        if given.dtype.kind != "b" and (given < 0).any():
            raise IndexError
    except (IndexError, ValueError):
        raise InvalidInput(
            f"agents must be indices 0–{count - 1} or a boolean mask of length {count}, "
            f"got {agents!r:.60}"
        ) from None
    return found


def _as_numbers(scores: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return an array of real numbers; InvalidInput for anything else."""
    try:
        rows = np.asarray(scores)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"scores must be numbers, equally many for each agent; NumPy says: {error}"
        ) from error
    if rows.dtype.kind not in "fiub":
        raise InvalidInput(f"scores must be real numbers, got {scores!s:.60}")
    return rows
