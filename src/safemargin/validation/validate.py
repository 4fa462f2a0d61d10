"""Does it hold: the paper's Tables I and III (§ IV-C), and cross-validation that can be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Tuples
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.paper import keep_lowest
from safemargin.margins.bounds.sample import Booleans, Estimand, Sample, check_sample
from safemargin.margins.methods import DEFAULT_METHOD
from safemargin.validation.exchangeability import LawTest, law_test
from safemargin.validation.gaps import GapError, gap_error
from safemargin.validation.heldout import (
    ChainRow,
    CoverageRow,
    chain_rows,
    coverage_rows,
    hold_out,
    moments_to_show,
    typical_tolerances,
)
from safemargin.validation.paper_tables import (
    Coverage,
    SampleSize,
    local_sample_size,
    percentile_error_bound,
    proxies_by_moment,
    sample_sizes,
    table_one,
)

__all__ = [
    "Coverage",
    "SampleSize",
    "Validation",
    "local_sample_size",
    "percentile_error_bound",
    "validate",
    "validate_tuples",
]


@dataclass(frozen=True)
class Validation:
    """What unseen moments say about a fit."""

    confidence: float
    method: str
    estimand: Estimand
    train_share: float
    train_moments: int
    """Kept for Table I's fit, after dropping the highest proxies."""
    test_moments: int
    coverage: tuple[Coverage, ...]  # Table I: one per n
    sample_sizes: tuple[SampleSize, ...]  # Table III: per kernel (and per n, if the proxy sees n)
    held_out: tuple[CoverageRow, ...]
    """Cross-validated: per phase, part of the proxy's range and n."""
    chain: tuple[ChainRow, ...]
    """Cross-validated: the promise that a margin makes, per phase and tolerance."""
    above_range: float
    """Share of natural moments above the range of a fit that has not seen them: margin 0."""
    no_bound: float
    """Share of (natural moment, n) within the range for which the data allow no bound."""
    tests_for_one_point: int
    """How many tests it takes to notice that a bound covers one point less than promised."""
    same_law: LawTest | None
    """Whether natural and spread moments follow the same law given the proxy; None: one phase."""
    gaps: GapError | None
    """What the powers of two miss; None where S has holes itself."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and texts."""
        data: dict[str, Any] = _plain(asdict(self))
        return data


def validate(
    natural_proxies: npt.ArrayLike,  # [natural moments] (or [natural moments, n])
    natural_criticalities: npt.ArrayLike,  # [natural moments, n] (or [natural moments, runs, n])
    spread_proxies: npt.ArrayLike,  # [spread moments] (or [spread moments, n])
    spread_criticalities: npt.ArrayLike,  # [spread moments, n] (or [spread moments, runs, n])
    n_values: Sequence[int],
    *,
    confidence: float = 0.95,
    method: str = DEFAULT_METHOD,
    groups: npt.ArrayLike | None = None,  # [natural + spread moments] of labels, e.g. episodes
    estimand: Estimand = "mean",
    train_share: float = 0.8,
    tolerances: Sequence[float] | None = None,
    alpha: float = 0.95,
    **options: Any,
) -> Validation:
    """Table I and III as in the paper, and five-fold cross-validation of the whole fit.

    Table I: fit on the first share of each phase, in collection order; test on the rest (no lift).
    """
    if not 0 < train_share < 1:
        raise InvalidInput(f"train_share must lie between 0 and 1, got {train_share}")
    whole, place = _join(
        (np.asarray(natural_proxies), np.asarray(natural_criticalities)),
        (np.asarray(spread_proxies), np.asarray(spread_criticalities)),
        n_values,
        groups,
        estimand,
    )
    drop_highest = float(options.get("drop_highest", 0.05))
    train = _first_share(whole, place, train_share)  # [rows]
    coverage = table_one(whole, train, confidence, method, options)
    found = hold_out(whole, method=method, confidence=confidence, **options)
    if tolerances is None:
        tolerances = typical_tolerances(found.upper)
    inside = whole.natural & ~found.above
    return Validation(
        confidence=confidence,
        method=method,
        estimand=estimand,
        train_share=train_share,
        train_moments=len(keep_lowest(proxies_by_moment(whole, train), drop_highest)),
        test_moments=len(np.unique(whole.moments[~train])),
        coverage=coverage,
        sample_sizes=sample_sizes(whole, train, drop_highest, confidence, alpha),
        held_out=coverage_rows(found),
        chain=chain_rows(found, tolerances),
        above_range=float(found.above[whole.natural].mean()) if whole.natural.any() else 0.0,
        no_bound=float((~found.promised[inside]).mean()) if inside.any() else 0.0,
        tests_for_one_point=moments_to_show(min(0.01, confidence / 2), confidence),
        same_law=law_test(whole, confidence=confidence),
        gaps=gap_error(
            whole, confidence=confidence, method=method, tolerances=tolerances, **options
        ),
        notes=tuple(found.notes),
    )


def validate_tuples(tuples: Tuples, *, estimand: Estimand = "mean", **options: Any) -> Validation:
    """`validate` for the moments of a study; the options are the same."""
    order = np.lexsort((tuples.lives, tuples.indices))  # collection order within a phase
    natural, spread = (order[tuples.phases[order] == phase] for phase in ("natural", "spread"))
    losses = tuples.losses(estimand)
    return validate(
        tuples.proxies[natural],
        losses[natural],
        tuples.proxies[spread],
        losses[spread],
        tuples.n_values,
        groups=(
            None if tuples.groups is None else tuples.groups[np.concatenate([natural, spread])]
        ),
        estimand=estimand,
        **options,
    )


Phased = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # proxies, criticalities


def _join(
    natural: Phased,
    spread: Phased,
    n_values: Sequence[int],
    groups: npt.ArrayLike | None,
    estimand: Estimand,
) -> tuple[Sample, npt.NDArray[np.int64]]:
    """Both phases as one sample, and each moment's place within its phase, [moments]."""
    parts = [part for part in (natural, spread) if len(part[1])]
    if not parts:
        raise InvalidInput("there is nothing to validate: no natural and no spread moments")
    for values, losses in parts:
        if len(losses) != len(values):
            raise InvalidInput(
                "a phase needs one proxy for each row of its criticalities, "
                f"got shapes {values.shape} and {losses.shape}"
            )
        if losses.shape[1:] != parts[0][1].shape[1:] or values.shape[1:] != parts[0][0].shape[1:]:
            raise InvalidInput(
                "natural and spread moments must have the same columns, got criticalities "
                f"{parts[0][1].shape} and {losses.shape}, proxies {parts[0][0].shape} and "
                f"{values.shape}"
            )
    sizes = len(natural[1]), len(spread[1])
    whole = check_sample(
        np.concatenate([values for values, _ in parts]),
        np.concatenate([losses for _, losses in parts]),
        n_values,
        natural=np.arange(sum(sizes)) < sizes[0],
        groups=groups,
        estimand=estimand,
    )
    return whole, np.concatenate([np.arange(size) for size in sizes])


def _first_share(whole: Sample, place: npt.NDArray[np.int64], train_share: float) -> Booleans:
    """The first share of each phase's moments, [rows]."""
    train = np.zeros(len(whole), dtype=bool)
    for phase in (whole.natural, ~whole.natural):
        size = len(np.unique(whole.moments[phase]))
        train |= phase & (place[whole.moments] < math.floor(train_share * size + 1e-9))
    if train.all():
        raise InvalidInput(
            f"nothing is left to test on: {whole.moment_count} moments with "
            f"train_share={train_share}"
        )
    return train


def _plain(value: Any) -> Any:
    """Tuples as lists, all the way down."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
