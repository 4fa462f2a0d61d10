"""Oversight by a ranking: people look at the decisions that it puts first.

Any number along the episodes can rank them: a proxy, the lowest margins, a learned ranking. Beside
it stand `lot`, a random choice, and regret itself, which nobody can know and which is measured at
one moment of each episode.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from safemargin.core.budget import Budget
from safemargin.core.records import EpisodeKey, Floats
from safemargin.core.seeding import plain_generator
from safemargin.core.text import counted
from safemargin.errors import InvalidInput, StudyIncomplete, did_you_mean
from safemargin.margins.bounds.sample import Booleans
from safemargin.margins.learned.probe import RANKINGS, is_learned
from safemargin.margins.methods import DEFAULT_METHOD
from safemargin.monitor.attention import Caught, Hindsight, Tally, tally
from safemargin.monitor.caller import LENGTH
from safemargin.monitor.failures import find_failures
from safemargin.monitor.simulation import check_attention, hindsight_margins, parse_budget
from safemargin.policies.proxies import single_values
from safemargin.policies.value_signals import SIGNALS
from safemargin.study.grouping import group_labels
from safemargin.study.reading import ProxyTrace
from safemargin.study.regrets import Regrets, read_regrets
from safemargin.study.study import Study
from safemargin.study.tuples import read_tuples
from safemargin.validation.capture import Captured, captured_with_bands

MARGIN, PROXY, LOT, ORACLE = "margin", "proxy", "lot", "regret itself"


@dataclass(frozen=True)
class RankedRow:
    """What looking at the decisions that one ranking puts first costs and sees."""

    ranking: str
    looked: float | None
    """Share of decisions; None for what is known only at measured moments."""
    calls: int | None
    """Stretches of decisions looked at, in all episodes."""
    calls_per_hour: float | None
    """Of all agents together."""
    mean_length: float | None
    """Decisions in a call."""
    failures: Caught | None
    """Failures with a look shortly before."""
    lead: float | None
    """Median number of decisions from the start of a call to the failure that it caught."""
    regret: Captured | None
    """Share of the regret measured at natural moments that lies in as many of these."""
    attention: float | None
    """Share of calls that a person reviews well at this rate of calls; 1 without fatigue."""

    @property
    def failures_seen(self) -> float | None:
        """Share of failures that a person catches who tires."""
        if self.failures is None or self.attention is None or self.failures.share.share is None:
            return None
        return self.failures.share.share * self.attention


@dataclass(frozen=True, kw_only=True)
class RankedOversight(Hindsight):
    """One ranking beside a random choice and regret itself."""

    rows: tuple[RankedRow, ...]
    by: str
    budget: Budget
    length: float
    """Seconds that a call lasts at least, with a budget of calls an hour."""
    fatigue: float | None


def rank_oversight(
    study: Study,
    by: str,
    *,
    budget: str | float | Budget = 0.05,
    fail: str | None = None,
    within: int = 8,
    rate: float = 15.0,
    agents: int = 1,
    fatigue: float | None = None,
    tolerance: float | None = None,
    confidence: float = 0.95,
    method: str = DEFAULT_METHOD,
) -> RankedOversight:
    """Return what people see who look at the decisions that `by` puts first, within `budget`.

    With a share of decisions, they look at these decisions. With calls an hour ('20/hour', of all
    agents together), the decisions that come first call, and a call lasts at least three seconds.
    `by`: 'margin' (the lowest, at `tolerance`), 'proxy' (the study's default), 'regret' or 'stakes'
    (learned), or the name of any proxy along the episodes. `fatigue`: the calls an hour at which a
    person reviews only every second one well. The others are those of `simulate_oversight`.
    """
    limit = parse_budget(budget)
    check_attention(within, rate, agents)
    if fatigue is not None and not 0 < fatigue < np.inf:
        raise InvalidInput(f"fatigue is a number of calls an hour above 0, got {fatigue:g}")
    notes: list[str] = []
    traces = [
        trace
        for trace in study.store.proxy_traces(study.default_proxy)
        if trace.steps > trace.opening
    ]
    if not traces:
        raise StudyIncomplete(f"the study in {study.path} holds no episodes to look back on yet")
    name = _name(study, by, traces[0].key)
    failures = find_failures(study, fail)
    regrets = _regrets(study, notes)
    lots = plain_generator(1)
    values = {name: _along(study, name, traces, tolerance, confidence, method, notes)}
    values[LOT] = {trace.key: lots.random(trace.steps - trace.opening) for trace in traces}
    rows = []
    share = limit.amount
    for ranking, along in values.items():
        failed = [failures.after_opening(trace) for trace in traces]
        during = _during(along, limit, rate, agents)
        found = tally(list(during.values()), failed, within)
        if limit.unit == "hour" and ranking != LOT:
            share = found.called / found.decisions
        seen = _captured(study, ranking, along, regrets, traces, share)
        rows.append(_row(ranking, found, seen, rate * 3600 * agents, fatigue))
    if regrets is not None:
        known = _seen(study, regrets, None, share)
        rows.append(RankedRow(ORACLE, None, None, None, None, None, None, known, None))
    if name in RANKINGS.values():
        notes.append(
            f"{name} along the episodes comes from a model that has seen one moment of each; at "
            "the measured moments it comes from models that have not"
        )
    return RankedOversight(
        rows=tuple(rows),
        by=by,
        budget=limit,
        length=LENGTH,
        fail=failures.text,
        why=failures.why,
        rate=rate,
        agents=agents,
        within=within,
        fatigue=fatigue,
        episodes=len(traces),
        decisions=sum(trace.steps - trace.opening for trace in traces),
        notes=tuple(notes),
    )


def _row(
    ranking: str,
    found: Tally,
    seen: Captured | None,
    decisions_per_hour: float,
    fatigue: float | None,
) -> RankedRow:
    per_hour = found.calls / found.decisions * decisions_per_hour
    return RankedRow(
        ranking=ranking,
        looked=found.called / found.decisions,
        calls=found.calls,
        calls_per_hour=per_hour,
        mean_length=found.called / found.calls if found.calls else None,
        failures=found.caught,
        lead=found.lead,
        regret=seen,
        attention=reviewed_well(per_hour, fatigue),
    )


def reviewed_well(calls_per_hour: float, fatigue: float | None) -> float:
    """Return the share of calls that a person reviews well, 1 / (1 + calls / fatigue)."""
    return 1.0 if fatigue is None else 1 / (1 + calls_per_hour / fatigue)


def looks(along: Mapping[EpisodeKey, Floats], share: float) -> dict[EpisodeKey, Booleans]:
    """Return which decisions are looked at: the share of highest values, by lot among equals."""
    every = np.concatenate(list(along.values()))
    level = np.quantile(every, 1 - share, method="higher")
    above, beside = (every > level).mean(), (every == level).mean()
    chance, rng = (share - above) / beside, plain_generator(0)
    return {
        key: (values > level) | ((values == level) & (rng.random(len(values)) < chance))
        for key, values in along.items()
    }


def _during(
    along: Mapping[EpisodeKey, Floats], budget: Budget, rate: float, agents: int
) -> dict[EpisodeKey, Booleans]:
    """Return the decisions that a budget lets people look at."""
    if budget.unit == "share":
        return looks(along, budget.amount)
    hours = sum(map(len, along.values())) / rate / 3600
    allowed = int(budget.amount / agents * hours)
    if not allowed:
        raise InvalidInput(
            f"a budget of {budget} cannot be judged by this study: its episodes last "
            f"{hours:.2g} hours of one of {counted(agents, 'agent')}, which is less than a call; "
            "raise the budget, or collect more"
        )
    return calls(along, allowed, max(round(LENGTH * rate), 1))


def calls(
    along: Mapping[EpisodeKey, Floats], allowed: int, length: int
) -> dict[EpisodeKey, Booleans]:
    """Return which decisions are looked at if the highest values call, this many times at most.

    A call lasts `length` decisions or longer, while further ones of those highest values come.
    """
    keys, rng = list(along), plain_generator(0)
    every = np.concatenate(list(along.values()))
    ends = np.cumsum([len(values) for values in along.values()])
    picked: list[list[int]] = [[] for _ in keys]
    count = 0
    for at in np.lexsort([rng.random(len(every)), -every]).tolist():
        which = int(np.searchsorted(ends, at, side="right"))
        own = picked[which]
        place = bisect_left(own, at)
        after_one = place > 0 and at - own[place - 1] < length
        before_one = place < len(own) and own[place] - at < length
        joined = 0 < place < len(own) and own[place] - own[place - 1] < length
        count += 1 - after_one - before_one + joined
        if count > allowed:
            break
        own.insert(place, at)
    found = {}
    for key, own, end in zip(keys, picked, ends.tolist(), strict=True):
        begin = end - len(along[key])
        last = np.full(len(along[key]), -length)
        last[np.array(own, dtype=np.int64) - begin] = np.array(own, dtype=np.int64) - begin
        found[key] = np.arange(len(last)) - np.maximum.accumulate(last) < length
    return found


def _name(study: Study, by: str, first: EpisodeKey) -> str:
    """Return the name along the episodes of what the user calls a ranking."""
    if by in RANKINGS:
        name = RANKINGS[by]
        if study.store.meta(name) is None:
            raise StudyIncomplete(
                f"the study in {study.path} has learned no ranking by {by}; run `safemargin learn "
                f"{study.path} --target {by}` on it first, or if that found none worth storing, "
                "choose a proxy with --by"
            )
        return name
    if by == MARGIN:
        return by
    name = study.default_proxy if by == PROXY else by
    recorded = [
        *study.proxies,
        *(each for each in RANKINGS.values() if study.store.meta(each) is not None),
        *(each for each in SIGNALS if each in study.store.episode(first).proxies),
    ]
    if name not in recorded:
        choices = [MARGIN, PROXY, *RANKINGS, *recorded]
        raise InvalidInput(
            f"the study has nothing called {by!r} to rank by; {did_you_mean(by, choices)}"
        )
    return name


def _along(
    study: Study,
    name: str,
    traces: list[ProxyTrace],
    tolerance: float | None,
    confidence: float,
    method: str,
    notes: list[str],
) -> dict[EpisodeKey, Floats]:
    """Return a ranking's value at every decision after the openings; the highest come first."""
    if name != MARGIN:
        return {
            trace.key: single_values(trace.values)[trace.opening :].astype(np.float64)
            for trace in study.store.proxy_traces(name)
            if trace.steps > trace.opening
        }
    margins, level = hindsight_margins(
        study, tolerance, notes, confidence=confidence, method=method
    )
    notes.append(f"the lowest margins at a tolerance of {level:g}, the highest proxies first")
    highest = max(float(single_values(trace.values).max()) for trace in traces)
    lowest = min(float(single_values(trace.values).min()) for trace in traces)
    span = max(highest - lowest, 1e-300)
    return {
        trace.key: -margins[trace.key]
        + 0.5 * (single_values(trace.values)[trace.opening :] - lowest) / span
        for trace in traces
    }


def _regrets(study: Study, notes: list[str]) -> Regrets | None:
    try:
        found = read_regrets(study.store)
    except StudyIncomplete as error:
        notes.append(f"no share of regret: {error}")
        return None
    natural = found.natural
    if not natural.any() or found.regret[natural].sum() <= 0:
        notes.append("no share of regret: the agent is nowhere wrong at the natural moments")
        return None
    return found


def _captured(
    study: Study,
    ranking: str,
    along: Mapping[EpisodeKey, Floats],
    regrets: Regrets | None,
    traces: list[ProxyTrace],
    budget: float,
) -> Captured | None:
    """Return the share of measured regret in the natural moments that a ranking puts first."""
    if regrets is None:
        return None
    if is_learned(ranking):  # values of models that have not seen the moment
        tuples = read_tuples(study.store, study.settings, ranking)
        at = dict(zip(tuples.keys, tuples.proxies.tolist(), strict=True))
    else:
        opening = {trace.key: trace.opening for trace in traces}
        at = {
            key: float(along[key][step - opening[key]])
            for key, step in zip(regrets.keys, regrets.steps.tolist(), strict=True)
        }
    if not set(regrets.keys) <= at.keys():
        raise StudyIncomplete(
            f"moments were added to the study in {study.path} since {ranking} was learned; run "
            "`safemargin learn` on it again"
        )
    return _seen(study, regrets, at, budget)


def _seen(
    study: Study, regrets: Regrets, at: Mapping[EpisodeKey, float] | None, budget: float
) -> Captured:
    """Return what values at the natural moments capture; without values, regret itself."""
    natural = regrets.natural
    keys = [key for key, chosen in zip(regrets.keys, natural, strict=True) if chosen]
    gains = regrets.regret[natural]
    values = gains if at is None else np.array([at[key] for key in keys])
    groups = group_labels(study.store, keys)
    return captured_with_bands(values, gains, groups, (budget,))[0]
