"""The paper's tables from stored studies, with its values beside ours, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
from capture import Capture, capture, margin_rank
from paper_values import (
    AGENTS,
    BEFORE_DEATH,
    CAPTURED,
    MARGINS_BEFORE_DEATH,
    N_VALUES,
    PERCENTILE_ERRORS,
    SAMPLE_SIZES,
)
from scipy.stats import spearmanr
from stored import Life, StoredStudy

from safemargin.core.records import Floats
from safemargin.margins.lookup import Margins
from safemargin.study import plot_info
from safemargin.validation.validating import Validation, validate_tuples

METHODS = ("paper", "calibrated")
TOLERANCES = (0.5, 1.0)
MISSING = "not run"
BUDGET = 0.05
COUNTED = ("reported death", "last chance")
EARLIER = (0, 5, 10, 20, 40, 100)

Studies = Mapping[str, StoredStudy]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table as Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@cache
def validation(study: StoredStudy, method: str) -> Validation:
    """Tables I and III, and cross-validation."""
    return validate_tuples(
        study.tuples(),
        method=method,
        tolerances=TOLERANCES,
        minimum_bandwidth=study.about["minimum_bandwidth"],
    )


@cache
def margins_of(study: StoredStudy, method: str) -> Margins:
    """Return the fit of all moments."""
    return study.fit(method)


# -- Table I -----------------------------------------------------------------------------------


def table_one(studies: Studies) -> str:
    """Return percentile errors by agent and n: the paper's, ours by its method, and by default."""
    rows = []
    for agent in AGENTS:
        for place, n in enumerate(N_VALUES):
            cells = [MISSING] * 3
            if agent in studies:
                found = [validation(studies[agent], method).coverage[place] for method in METHODS]
                cells = [f"{row.percentile_error:+.3f}" for row in found]
                cells.append(f"± {found[0].standard_error:.3f} ({found[0].tested} tests)")
            paper = f"{PERCENTILE_ERRORS[agent][place]:+.3f}"
            rows.append([agent, str(n), paper, *cells])
    return markdown(
        ["agent", "n", "paper", "ours, its method", "ours, default", "binomial noise"], rows
    )


def cross_validated(studies: Studies) -> str:
    """On natural moments that a fit has not seen: how often its margins fail, and their mean."""
    rows = []
    for agent in AGENTS:
        for place, tolerance in enumerate(TOLERANCES):
            cells = [MISSING] * 4
            if agent in studies:
                cells = []
                for method in METHODS:
                    chain = validation(studies[agent], method).chain
                    row = [row for row in chain if row.phase == "natural"][place]
                    failed = row.failed
                    cells += [
                        f"{failed.share:.3f} ({failed.low:.3f} – {failed.high:.3f})",
                        f"{row.mean_margin:.2f}",
                    ]
            rows.append([agent, f"{tolerance:g}", *cells])
    header = ["agent", "ζ", "its method: fails", "mean margin", "default: fails", "mean margin"]
    return markdown(header, rows)


def association(studies: Studies) -> str:
    """Return rank correlation of proxy and true criticality, for each phase and n."""
    rows = []
    for agent in AGENTS:
        for phase in ("natural", "spread"):
            cells = [MISSING] * (len(N_VALUES) + 1)
            if agent in studies:
                tuples = studies[agent].tuples()
                chosen = tuples.phases == phase
                losses = tuples.criticalities[chosen].T  # [n, moments]
                found = [spearmanr(tuples.proxies[chosen], loss).statistic for loss in losses]
                noise = 1 / math.sqrt(chosen.sum() - 1)
                cells = [*(f"{value:+.2f}" for value in found), f"± {noise:.2f}"]
            rows.append([agent, phase, *cells])
    header = ["agent", "moments", *(f"n = {n}" for n in N_VALUES), "noise"]
    return markdown(header, rows)


def tails(studies: Studies) -> str:
    """Return the 95 % percentile of the loss at natural moments of low and of high proxies."""
    rows = []
    for agent in AGENTS:
        for place, name in ((0, "lowest fifth"), (-1, "highest fifth")):
            cells = [MISSING] * (len(N_VALUES) + 1)
            if agent in studies:
                tuples = studies[agent].tuples()
                natural = np.flatnonzero(tuples.phases == "natural")
                by_proxy = natural[np.argsort(tuples.proxies[natural], kind="stable")]
                chosen = np.array_split(by_proxy, 5)[place]
                found = np.quantile(tuples.criticalities[chosen], 0.95, axis=0)
                cells = [*(f"{value:.2f}" for value in found), str(len(chosen))]
            rows.append([agent, name, *cells])
    header = ["agent", "natural proxies", *(f"n = {n}" for n in N_VALUES), "moments"]
    return markdown(header, rows)


# -- Table II ----------------------------------------------------------------------------------


def margins_along(
    study: StoredStudy, lives: Sequence[Life], method: str, tolerance: float
) -> list[Floats]:
    """Return the margin at every decision of some lives."""
    margins = margins_of(study, method)
    # The paper's table ends below the highest proxies; above it, it takes the last column.
    above = "nearest" if method == "paper" else "zero"
    return [
        np.asarray(
            margins.lookup(life.proxies[study.default_proxy], tolerance, above=above).margin,
            dtype=float,
        )
        for life in lives
    ]


def before_death(lives: Sequence[Life], margins: Sequence[Floats]) -> list[tuple[float, float]]:
    """Return mean and sd of the margin at the last decisions before each death, and over all."""
    found = []
    for back in BEFORE_DEATH:
        at = [
            margin[-back]
            for life, margin in zip(lives, margins, strict=True)
            if life.died and len(margin) >= back
        ]
        found.append((float(np.mean(at)), float(np.std(at))) if at else (math.nan, math.nan))
    every = np.concatenate(margins)
    return [*found, (float(every.mean()), float(every.std()))]


def table_two(studies: Studies) -> str:
    """Return margins before death, the paper's and ours."""
    rows = []
    for (tolerance, agent), paper in MARGINS_BEFORE_DEATH.items():
        rows.append([f"{tolerance:g}", agent, "paper", *map(_mean_and_sd, paper)])
        if agent not in studies:
            rows.append(["", "", "ours", *[MISSING] * 4])
            continue
        study = studies[agent]
        for counted, lives in ends_of_lives(study).items():
            for method in METHODS:
                along = margins_along(study, lives, method, tolerance)
                name = "ours, its method" if method == "paper" else "ours, default"
                cells = map(_mean_and_sd, before_death(lives, along))
                rows.append(["", "", f"{name}; {counted}", *cells])
    header = ["ζ", "agent", "", *(f"{back} before death" for back in BEFORE_DEATH), "all steps"]
    return markdown(header, rows)


def ends_of_lives(study: StoredStudy) -> dict[str, list[Life]]:
    """Return the kept lives up to the reported death and, where it is known, to the last chance."""
    every = (study.lives, study.lives_in_play)
    return {name: lives for name, lives in zip(COUNTED, every, strict=True) if lives}


def _mean_and_sd(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.2f} ± {pair[1]:.2f}"


# -- loss capture ------------------------------------------------------------------------------


@cache
def captures(study: StoredStudy, counted: str) -> dict[str, Capture]:
    """Return loss capture by the margin at ζ = 0.5 and by every proxy."""
    lives = ends_of_lives(study)[counted]
    died = [life.died for life in lives]
    margins = margins_along(study, lives, "calibrated", 0.5)
    proxies = [life.proxies[study.default_proxy] for life in lives]
    every = np.sort(np.concatenate(proxies))
    ranks = [margin_rank(*pair, every) for pair in zip(margins, proxies, strict=True)]
    found = {"margin": capture(ranks, died)}
    for name in study.proxies:
        found[name] = capture([life.proxies[name] for life in lives], died)
    return found


def loss_capture(studies: Studies) -> str:
    """Return the share of deaths in the 5 % of decisions that look most dangerous."""
    rows = []
    for agent, paper in CAPTURED.items():
        if agent not in studies:
            rows.append([agent, "", f"{paper:.0%}", MISSING, MISSING])
            continue
        study = studies[agent]
        every = {counted: captures(study, counted) for counted in ends_of_lives(study)}
        for name in every[COUNTED[0]]:
            shares = [_share(every[end][name]) if end in every else MISSING for end in COUNTED]
            rows.append(
                [
                    agent,
                    "lowest margin (ζ = 0.5)" if name == "margin" else f"highest `{name}`",
                    f"{paper:.0%}" if name == study.default_proxy else "",
                    *shares,
                ]
            )
    header = ["agent", "looked at first", "paper", *(f"ours, {end}" for end in COUNTED)]
    return markdown(header, rows)


def _share(found: Capture) -> str:
    share, low, high = found.at(BUDGET)
    return f"{share:.0%} ({low:.0%} – {high:.0%}) of {found.deaths}"


def warning_time(studies: Studies) -> str:
    """Return the share of deaths that one of the highest proxies announces, by how early."""
    rows = []
    for agent in CAPTURED:
        lives = studies[agent].lives_in_play if agent in studies else []
        if not lives:
            rows.append([agent, *[MISSING] * len(EARLIER)])
            continue
        proxies = [life.proxies[studies[agent].default_proxy] for life in lives]
        level = np.quantile(np.concatenate(proxies), 1 - BUDGET)
        ends = [values for life, values in zip(lives, proxies, strict=True) if life.died]
        shares = [
            float(np.mean([values[-1 - back] > level for values in ends if len(values) > back]))
            for back in EARLIER
        ]
        rows.append([agent, *(f"{share:.0%}" for share in shares)])
    return markdown(["agent", *(f"{back} before it" for back in EARLIER)], rows)


def last_chance(studies: Studies) -> str:
    """Return how far before the reported end the deaths could last be put off."""
    rows = []
    for agent in CAPTURED:
        back = list(studies[agent].last_chances.values()) if agent in studies else []
        deaths = sum(life.died for life in studies[agent].lives) if agent in studies else 0
        low, middle, high = np.quantile(back, [0, 0.5, 1]) if back else (0, 0, 0)
        cells = [f"{len(back)} of {deaths}", f"{middle:g}", f"{low:g} – {high:g}"]
        rows.append([agent, *(cells if back else [MISSING] * 3)])
    header = ["agent", "deaths with a last chance", "decisions before the reported end, median",
              "range"]  # fmt: skip
    return markdown(header, rows)


# -- Table III ---------------------------------------------------------------------------------


def table_three(studies: Studies) -> str:
    """Bandwidth, sample size and the bound on the percentile error."""
    rows = []
    for agent in AGENTS:
        paper = SAMPLE_SIZES[agent]
        rows.append([agent, "paper", *_sizes(*paper), "not given"])
        cells = [MISSING] * 5
        if agent in studies:
            (size,) = [
                row
                for row in validation(studies[agent], "paper").sample_sizes
                if row.kernel == "gaussian"
            ]
            cells = _sizes(
                size.bandwidth, size.spread_moments, size.sample_size, size.tight_bound or math.nan
            )
            heights = densities_of(studies[agent]).panels
            of_kernel = [f"{panel.density.criticality_bandwidth:.2f}" for panel in heights]
            cells.append(f"{of_kernel[0]} … {of_kernel[-1]}")
        rows.append(["", "ours", *cells])
    header = ["agent", "", "H_p", "spread moments", "D", "bound", "kernel's height, n = 1 … 32"]
    return markdown(header, rows)


@cache
def densities_of(study: StoredStudy) -> plot_info.KdeInfo:
    """Return the paper's densities."""
    return plot_info.kde_info(study.tuples(), minimum_bandwidth=study.about["minimum_bandwidth"])


def _sizes(bandwidth: float, moments: int, size: float, bound: float) -> list[str]:
    return [f"{bandwidth:.3g}", str(moments), f"{size:.2f}", f"{bound:.2f}"]


# -- what was measured, and what it cost -------------------------------------------------------


def measured(studies: Studies) -> str:
    """Moments, distinct ones, trials and half-widths of every study."""
    rows = []
    for name, study in studies.items():
        status, settings = study.about["status"], study.about["settings"]
        half_widths = study.tuples().half_widths
        plan = settings["trial_plan"]
        rows.append(
            [
                name,
                f"{status['moments']['natural']} + {status['moments']['spread']}",
                f"{status['distinct_moments']} of {status['chosen_moments']}",
                str(settings["opening"]),
                str(status["plays"]),
                "the paper's rule" if plan == "paper" else f"fixed, {settings['trials']}",
                f"{status['trials']:,}",
                str(status["capped"]),
                f"{np.median(half_widths):.2f} ({np.quantile(half_widths, 0.95):.2f})",
            ]
        )
    header = ["study", "natural + spread", "distinct", "random actions first, at most",
              "different plays", "trials of a moment and n", "trials",
              "at the cap", "half-width, median (95 %)"]  # fmt: skip
    return markdown(header, rows)


def cost(studies: Studies) -> str:
    """Return simulator steps, hours of one core, and the machine."""
    rows = []
    for name, study in studies.items():
        status = study.about["status"]
        rows.append(
            [
                name,
                f"{status['simulator_steps'] / 1e6:.1f} M",
                f"{status['worker_seconds'] / 3600:.2f}",
                study.about["machine"],
            ]
        )
    return markdown(["study", "simulator steps", "hours of one core", "machine"], rows)


# -- every n beside the powers of two ----------------------------------------------------------


def dense_gaps(studies: Studies) -> str:
    """Return what margins from the powers of two alone miss: judged by losses at every n."""
    study = studies.get("pong-apex-dense")
    if study is None:
        return "Not run."
    rows = []
    for method, title in zip(METHODS, ("its method", "default"), strict=True):
        gaps = validation(study, method).gaps
        assert gaps is not None
        rows += [
            [
                title,
                f"{row.tolerance:g}",
                f"{row.thin_margin:.2f}",
                f"{row.dense_margin:.2f}",
                f"{row.thin_larger:.0%}",
                f"{row.thin_failures:.0%}",
                f"{row.dense_failures:.0%}",
            ]
            for row in gaps.rows
        ]
    header = ["method", "ζ", "mean margin, powers of two", "every n", "powers of two grant more",
              "fails, powers of two", "fails, every n"]  # fmt: skip
    return markdown(header, rows)


# -- the paper's rule beside the fixed plan ----------------------------------------------------


def rule_beside_plan(studies: Studies) -> str:
    """Return the same moments under the paper's stopping rule and under 48 trials each."""
    rows = []
    for agent in ("beamrider-apex", "beamrider-a3c"):
        if agent not in studies or f"{agent}-rule" not in studies:
            rows.append([agent, *[MISSING] * 6])
            continue
        fixed, rule = (studies[name].tuples() for name in (agent, f"{agent}-rule"))
        place = {key: at for at, key in enumerate(_keys(fixed))}
        pairs = [(place[key], at) for at, key in enumerate(_keys(rule)) if key in place]
        left, right = (np.array(side) for side in zip(*pairs, strict=True))
        difference = rule.criticalities[right] - fixed.criticalities[left]  # [moments, n]
        rows.append(
            [
                agent,
                str(len(pairs)),
                f"{rule.trials[right].sum(axis=1).mean():.0f}",
                f"{fixed.trials[left].sum(axis=1).mean():.0f}",
                f"{difference.mean():+.3f}",
                f"{np.sqrt((difference**2).mean()):.3f}",
                f"{(rule.criticalities[right] == 0).mean():.0%} / "
                f"{(fixed.criticalities[left] == 0).mean():.0%}",
            ]
        )
    header = ["agent", "moments", "trials a moment, rule", "fixed", "mean difference",
              "root mean square", "exactly 0, rule / fixed"]  # fmt: skip
    return markdown(header, rows)


def _keys(tuples: object) -> list[tuple[object, ...]]:
    columns = (tuples.phases, tuples.indices, tuples.steps)  # type: ignore[attr-defined]
    return list(zip(*(column.tolist() for column in columns), strict=True))
