"""Everything that held-out moments say about a fit: the paper's tables and cross-validation."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.notebook import table_html
from safemargin.core.records import Floats, Tuples
from safemargin.errors import InvalidInput
from safemargin.margins.bounds.paper import keep_lowest
from safemargin.margins.bounds.sample import Booleans, Sample
from safemargin.margins.bounds.table import Estimand
from safemargin.margins.methods import DEFAULT_METHOD, GRANTED
from safemargin.validation.exchangeability import ExchangeabilityTest, exchangeability_test
from safemargin.validation.gaps import GapError, gap_error
from safemargin.validation.heldout import (
    ChainRow,
    CoverageRow,
    Relearn,
    chain_rows,
    coverage_rows,
    hold_out,
    moments_to_show,
    typical_tolerances,
)
from safemargin.validation.paper_tables import Coverage, SampleSize, sample_sizes, table_one


@dataclass(frozen=True)
class Validation:
    """What moments that a fit has not seen say about it."""

    confidence: float
    method: str
    estimand: Estimand
    train_share: float
    train_moments: int
    """Moments that Table I was fitted to, after dropping the highest proxies."""
    test_moments: int
    coverage: tuple[Coverage, ...]  # Table I: one per n
    sample_sizes: tuple[SampleSize, ...]  # Table III: per kernel (and n, if the proxy looks at n)
    held_out: tuple[CoverageRow, ...]
    """The cross-validated coverage per phase, part of the proxy's range and n."""
    chain: tuple[ChainRow, ...]
    """How often margins failed in cross-validation, per phase and tolerance."""
    above_range: float
    """The share of natural moments above the range of a fit that has not seen them: margin 0."""
    no_bound: float
    """The share of (natural moment, n) within the range for which the data allow no bound."""
    tests_for_one_point: int
    """How many tests it takes to notice coverage one percentage point below what is promised."""
    same_law: ExchangeabilityTest | None
    """Whether natural and spread moments lose alike given the proxy; None: nothing to compare."""
    gaps: GapError | None
    """What the powers of two miss; None if S itself has holes."""
    notes: tuple[str, ...]

    def _repr_html_(self) -> str:
        rows = [
            [
                f"{row.tolerance:g}",
                f"{row.failed.tested} {row.phase}",
                row.failed.count,
                row.failed.share,
                f"{row.failed.low:.3f} – {row.failed.high:.3f}",
                f"{row.mean_margin:.2f}",
            ]
            for row in self.chain
        ]
        return table_html(
            f"Margins on unseen moments (method {self.method!r}, confidence {self.confidence:g}): "
            f"how often some n' ≤ margin broke the tolerance; at most {1 - self.confidence:.3g} "
            "was promised",
            ["tolerance", "moments", "broken", "share", "95 % interval", "mean margin"],
            rows,
            notes=self.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data


def validate(
    natural_proxies: npt.ArrayLike,  # [natural moments] (or [natural moments, n])
    natural_criticalities: npt.ArrayLike,  # [natural moments, n] (or [natural moments, runs, n])
    spread_proxies: npt.ArrayLike,  # [spread moments] (or [spread moments, n])
    spread_criticalities: npt.ArrayLike,  # [spread moments, n] (or [spread moments, runs, n])
    n_values: Sequence[int],
    *,
    groups: npt.ArrayLike | None = None,  # [natural + spread moments] of labels, e.g. episodes
    estimand: Estimand = "mean",
    **options: Any,
) -> Validation:
    """Judge a method on moments that its fit has not seen; further options: `validate_sample`.

    The moments of each phase must be in collection order.
    """
    phases = (
        (np.asarray(natural_proxies), np.asarray(natural_criticalities)),
        (np.asarray(spread_proxies), np.asarray(spread_criticalities)),
    )
    parts = [part for part in phases if len(part[1])]
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
    whole = Sample.from_arrays(
        np.concatenate([values for values, _ in parts]),
        np.concatenate([losses for _, losses in parts]),
        n_values,
        natural=np.repeat([True, False], [len(losses) for _, losses in phases]),
        groups=groups,
        estimand=estimand,
    )
    return validate_sample(whole, **options)


def validate_sample(
    whole: Sample,
    *,
    confidence: float = 0.95,
    method: str = DEFAULT_METHOD,
    train_share: float = 0.8,
    tolerances: Sequence[float] | None = None,
    alpha: float = 0.95,
    relearn: Relearn | None = None,
    **options: Any,
) -> Validation:
    """Tables I and III as in the paper, and five-fold cross-validation of the whole fit.

    Table I fits on the first `train_share` of each phase, in collection order, without lift, and
    tests on the rest. `alpha` is the confidence of Table III. The options are those of `Options`.
    """
    if not 0 < train_share < 1:
        raise InvalidInput(f"train_share must lie between 0 and 1, got {train_share}")
    drop_highest = float(options.get("drop_highest", 0.05))
    if method == GRANTED:
        options["tolerances"] = tuple(tolerances or ())
    train = _first_share(whole, train_share)  # [rows]
    coverage = table_one(whole, train, confidence, method, options)
    found = hold_out(whole, method=method, confidence=confidence, relearn=relearn, **options)
    if tolerances is None:
        tolerances = typical_tolerances(found.upper)
    first = whole.first_runs
    inside = whole.natural & ~found.above
    return Validation(
        confidence=confidence,
        method=method,
        estimand=whole.estimand,
        train_share=train_share,
        train_moments=len(keep_lowest(whole.proxies[first & train, 0], drop_highest)),
        test_moments=int((first & ~train).sum()),
        coverage=coverage,
        sample_sizes=sample_sizes(whole, train, drop_highest, confidence, alpha),
        held_out=coverage_rows(found),
        chain=chain_rows(found, tolerances),
        above_range=float(found.above[whole.natural].mean()) if whole.natural.any() else 0.0,
        no_bound=float((~found.promised[inside]).mean()) if inside.any() else 0.0,
        tests_for_one_point=moments_to_show(min(0.01, confidence / 2), confidence),
        same_law=exchangeability_test(whole, confidence=confidence),
        gaps=None
        if method == GRANTED  # which bounds no loss between the n
        else gap_error(
            whole, confidence=confidence, method=method, tolerances=tolerances, **options
        ),
        notes=tuple(found.notes),
    )


def validate_tuples(
    tuples: Tuples,
    *,
    estimand: Estimand = "mean",
    relearn: Relearn | None = None,
    **options: Any,
) -> Validation:
    """`validate` for the moments of a study; the options are the same."""
    order = np.lexsort((tuples.lives, tuples.indices, tuples.phases))  # collection order

    def in_order(seen: Booleans) -> Floats:
        assert relearn is not None
        whole = np.zeros(len(order), dtype=bool)
        whole[order] = seen
        return relearn(whole)[order]

    return validate_sample(
        Sample.from_tuples(tuples, estimand, moments=order),
        relearn=None if relearn is None else in_order,
        **options,
    )


def _first_share(whole: Sample, train_share: float) -> Booleans:
    """Mark the first share of each phase's moments, [rows]."""
    train = np.zeros(len(whole), dtype=bool)
    for phase in (whole.natural, ~whole.natural):
        moments = np.unique(whole.moments[phase])
        first = moments[: math.floor(train_share * len(moments) + 1e-9)]
        train |= np.isin(whole.moments, first)
    if train.all():
        raise InvalidInput(
            f"nothing is left to test on: {whole.moment_count} moments with "
            f"train_share={train_share}"
        )
    return train
