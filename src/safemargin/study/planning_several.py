"""What a study of several mistakes and losses will cost: a plan for each, and all together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safemargin.core.measured import parse_perturbation
from safemargin.core.settings import Settings
from safemargin.study.forecast import NOTHING, Range
from safemargin.study.passes import Pair
from safemargin.study.planning import CostPlan, plan_study


@dataclass(frozen=True, slots=True)
class PairPlan:
    """The cost of one kind of mistake with one loss."""

    perturb: str
    signal: str
    plan: CostPlan | None
    """None where its trials are those of another loss, so that it costs nothing more."""
    trials: Range
    steps: Range
    worker_seconds: Range
    """Those of its trials; the episodes are shared by all."""


@dataclass(frozen=True, slots=True)
class CostPlans:
    """The cost of a collection of several mistakes and losses at the same moments."""

    pairs: tuple[PairPlan, ...]
    episode_steps: Range
    episode_seconds: Range
    """Seconds of a single worker, for the episodes and the first moments' choice."""
    workers: int
    seconds: Range
    """From the start of the command to its end, with these workers."""

    @property
    def first(self) -> CostPlan:
        """The plan of the first pair, which says what is studied."""
        found = self.pairs[0].plan
        assert found is not None
        return found

    @property
    def interrupted(self) -> bool:
        """Whether a plan was stopped early."""
        return any(pair.plan is not None and pair.plan.interrupted for pair in self.pairs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "interrupted": self.interrupted}


def plan_several(
    pairs: Iterable[Pair],
    path: Path | None,
    env: Any,
    policy: Any,
    *,
    settings: Mapping[str, Any],
    **more: Any,
) -> CostPlans:
    """Plan each pair of mistakes and loss as `plan_study` does; nothing is written.

    Losses of the same mistakes share their trials: with a fixed number of them, a second loss costs
    nothing, and with another plan as much as the loss that takes most. Only a beam search is led by
    each loss to other trials.
    """
    found: list[PairPlan] = []
    fixed = Settings.from_mapping(settings).trial_plan == "fixed"
    dearest: dict[tuple[str, str], PairPlan] = {}  # of those that share their trials
    for perturb, signal in pairs:
        written = parse_perturbation(perturb)
        alone = written.kind == "worst" and bool(written.argument)
        sharing = perturb, signal if alone else ""
        if sharing in dearest and fixed:
            found.append(PairPlan(perturb, signal, None, NOTHING, NOTHING, NOTHING))
            continue
        about = {**settings, "perturb": perturb, "signal": signal}
        plan = plan_study(path, env, policy, about, **more)
        stages = [stage for stage in plan.forecast.stages if stage.n]
        one = PairPlan(
            perturb,
            signal,
            plan,
            sum((stage.trials for stage in stages), NOTHING),
            sum((stage.steps for stage in stages), NOTHING),
            sum((stage.worker_seconds for stage in stages), NOTHING),
        )
        found.append(one)
        other = dearest.get(sharing)
        if other is None or other.worker_seconds.expected < one.worker_seconds.expected:
            dearest[sharing] = one
    return _together(found, dearest.values())


def _together(found: list[PairPlan], counted: Iterable[PairPlan]) -> CostPlans:
    first = found[0].plan
    assert first is not None
    episodes = [stage for stage in first.forecast.stages if not stage.n]
    spent = sum((stage.worker_seconds for stage in episodes), NOTHING)
    whole = sum((one.worker_seconds for one in counted), spent)
    return CostPlans(
        pairs=tuple(found),
        episode_steps=sum((stage.steps for stage in episodes), NOTHING),
        episode_seconds=spent,
        workers=first.workers,
        seconds=whole.through(lambda seconds: first.preparation_seconds + seconds / first.workers),
    )
