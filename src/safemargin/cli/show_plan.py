"""What a collection will cost, as a table."""

from __future__ import annotations

from safemargin.cli.console import print_table
from safemargin.core.measured import Measured, without_folder
from safemargin.core.records import PHASES
from safemargin.core.text import counted, duration
from safemargin.study.forecast import Range, StageCost
from safemargin.study.planning import CostPlan
from safemargin.study.planning_several import CostPlans

WIDE = 4.0
"""A range whose ends differ by more than this factor is called wide."""


def print_any_plan(plan: CostPlan | CostPlans) -> None:
    """Print the plan of one kind of mistake and loss, or of several."""
    if isinstance(plan, CostPlan):
        print_plan(plan)
    else:
        print_plans(plan)


def print_plans(found: CostPlans) -> None:
    """Print the cost of each kind of mistake and loss, and the total."""
    first, workers = found.first, found.workers

    def time(seconds: Range) -> str:
        return _time(seconds.through(lambda spent: spent / workers))

    rows = [["episodes", "", _count(found.episode_steps), time(found.episode_seconds)]]
    for pair in found.pairs:
        name = Measured(without_folder(pair.perturb), pair.signal)
        cells = [_count(pair.trials), _count(pair.steps), time(pair.worker_seconds)]
        shares = ["shares them", "", ""]
        rows.append([f"{name.mistakes}: {name.loss}", *(shares if pair.plan is None else cells)])
    print_table(_title(first), ["", "trials", "simulator steps", "time"], rows)
    print(
        f"time      {_time(found.seconds)} with {counted(workers, 'worker')}, "
        f"{duration(first.preparation_seconds)} of it to examine and to choose"
    )
    measured = sum(pair.plan.pilot_moments for pair in found.pairs if pair.plan is not None)
    print(
        f"measured  {counted(measured, 'moment')}, nothing is kept; name one --perturb for what "
        "each n costs and\n          what would be cheaper; in brackets what holds 9 times out of "
        "10"
    )


def print_plan(plan: CostPlan) -> None:
    """Print the cost of each stage, the total, and what would make it cheaper."""
    found = plan.forecast
    if not sum(stage.pieces for stage in found.stages):
        print(f"nothing is left to collect: the study in {plan.study} holds all of it")
        return
    capped = any(stage.capped for stage in found.stages)
    rows = [_row(stage, plan, capped=capped) for stage in found.stages]
    time = _time(found.worker_seconds.through(lambda spent: spent / plan.workers))
    rows.append(["all", _count(found.trials), _count(found.steps), time, "", *[""] * capped])
    print_table(
        _title(plan),
        ["", "trials", "simulator steps", "time", "share", *["at the cap"] * capped],
        rows,
    )
    workers = "one worker" if plan.workers == 1 else f"{plan.workers} workers"
    print(
        f"time      {_time(plan.seconds)} with {workers}, "
        f"{duration(plan.preparation_seconds)} of it to examine and to choose"
    )
    print(f"disk      about {_size(found.disk_bytes)} for the whole study")
    print(f"measured  {_measured(plan)}")
    if plan.worst is not None:
        trials, seconds = plan.worst
        print(
            f"at worst  {_round(trials)} trials and {duration(seconds)}, if every estimate ran to "
            "its cap; no range knows of\n          moments too rare to be among the measured ones"
        )
    width = max((len(saving.change) for saving in plan.savings), default=0)
    for number, saving in enumerate(plan.savings):
        print(
            f"{'cheaper' if number == 0 else '':<10}{saving.change:<{width}}  "
            f"{'at least' if saving.at_least else 'about'} {duration(saving.seconds)}; "
            f"{saving.remark}"
        )


def _row(stage: StageCost, plan: CostPlan, *, capped: bool) -> list[str]:
    whole = plan.forecast.worker_seconds.expected
    return [
        f"n = {stage.n}" if stage.n else "episodes",
        _count(stage.trials) if stage.n else "",
        _count(stage.steps),
        _time(stage.worker_seconds.through(lambda spent: spent / plan.workers)),
        f"{stage.worker_seconds.expected / whole:.0%}" if whole else "",
        *([f"{stage.capped:.0%}" if stage.n else ""] * capped),
    ]


def _title(plan: CostPlan) -> str:
    found = plan.forecast
    if plan.study is None:
        parts = [f"{found.wanted[phase]:,} {phase}" for phase in PHASES]
        return (
            f"What it will cost: {plan.policy} in {plan.environment}, {' + '.join(parts)} moments"
        )
    parts = [f"{found.left[phase]:,} of {found.wanted[phase]:,} {phase}" for phase in PHASES]
    return f"What is left of {plan.study}: {' and '.join(parts)} moments"


def _measured(plan: CostPlan) -> str:
    """Say what the forecast rests on."""
    found = plan.forecast
    counts = " + ".join(f"{found.sample[phase]:,} {phase}" for phase in PHASES)
    if plan.pilot_moments == 0:
        text = f"nothing more; the study's own {counts} moments suffice"
    else:
        measured = counted(plan.pilot_moments, "moment")
        text = f"{measured} in {duration(plan.pilot_seconds)}, nothing is kept"
        if plan.study is not None:
            text += f"; with the study's own {counts} moments"
    if plan.interrupted:
        text += "; stopped early"
    text += (
        "\n          in brackets what holds 9 times out of 10, if the machine stays as busy as now"
    )
    if plan.seconds.high > WIDE * plan.seconds.low:
        text += "\n          larger --plan-moments and --plan-seconds give a narrower range"
    return text


def _count(range_: Range) -> str:
    """Write exact numbers in full, others with three digits and their range."""
    if range_.low == range_.high:
        return f"{range_.expected:,.0f}"
    return f"{_round(range_.expected)} ({_round(range_.low)} – {_round(range_.high)})"


def _time(range_: Range) -> str:
    ends = [duration(range_.low), duration(range_.high)]
    expected = duration(range_.expected)
    return expected if ends == [expected] * 2 else f"{expected} ({' – '.join(ends)})"


def _round(value: float) -> str:
    """Write a number with three digits: 940, 26.8 k, 1.54 M."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * unit:
            scaled = value / unit
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}{name}"
    return f"{value:.0f}"


def _size(count: float) -> str:
    """Write a number of bytes with its unit."""
    return f"{_round(count)}B" if count >= 999.5 else f"{count:.0f} B"
