"""A gate between checkpoints: reads the studies or the baseline file, and compares them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from safemargin.core.measured import without_folder
from safemargin.core.records import Floats
from safemargin.core.settings import Settings
from safemargin.errors import (
    BaselineFileError,
    InvalidInput,
    StudyIncomplete,
    StudyMismatch,
    did_you_mean,
)
from safemargin.margins.learned.probe import LEARNED
from safemargin.study.creation import measured_in
from safemargin.study.lessons import refuse_labels
from safemargin.study.store import DATABASE
from safemargin.study.study import Study
from safemargin.validation.baseline import Baseline
from safemargin.validation.defaults import default_confidence
from safemargin.validation.gate import GateOptions, GateResult, compare_checkpoints

DIGITS = 7
"""Significant digits that a baseline keeps, so that the file stays small."""


About = tuple[str | None, str | None]
"""A perturbation and a signal as they were named; None: not named."""

Checkpoint = str | os.PathLike[str] | Study | Baseline
"""A study, its folder, or a file that `Baseline.save` wrote."""


def gate(
    candidate: Checkpoint,
    baseline: Checkpoint,
    *,
    proxy: str | None = None,
    perturb: str | None = None,
    signal: str | None = None,
    options: GateOptions | None = None,
    **more: Any,
) -> GateResult:
    """Compare a new checkpoint with an old one; the result has a verdict for every check.

    Each is a study, its folder, or a file that `Baseline.save` wrote. `proxy` is the one that both
    use for their margins (None: the baseline's, else each study's default). `perturb` and `signal`
    say which of the mistakes and losses that studies measure are compared (None: those of the
    baseline, or the first ones). Further arguments are fields of `GateOptions`, such as
    `tolerances` and `matters`.
    """
    about = perturb, signal
    return compared(candidate, baseline, proxy=proxy, about=about, options=options, **more)[0]


def compared(
    candidate: Checkpoint,
    baseline: Checkpoint,
    *,
    proxy: str | None = None,
    about: About = (None, None),
    options: GateOptions | None = None,
    **more: Any,
) -> tuple[GateResult, Baseline, Baseline]:
    """Return what `gate` returns, with what it knew of the old and the new checkpoint."""
    settings = replace(options or GateOptions(), **_plain(more))
    old = read_checkpoint(baseline, proxy, about=about)
    new = read_checkpoint(candidate, proxy, about=about, like=old)
    natural = min(int(each.natural.sum()) for each in (old, new))
    confidence = settings.confidence or default_confidence(natural)
    call_at = settings.call_at or next((n for n in old.n_values if n >= 2), old.n_values[-1])
    result = compare_checkpoints(
        old,
        new,
        tolerances=settings.tolerances or (typical_tolerance(old),),
        confidence=confidence,
        call_at=call_at,
        options=settings,
    )
    return result, old, new


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse unknown options with a suggestion, and make a tuple of the tolerances."""
    known = {field.name for field in fields(GateOptions)}
    for name in options:
        if name not in known:
            raise InvalidInput(f"gate has no option {name!r}; {did_you_mean(name, known)}")
    found = dict(options)
    if "tolerances" in found:
        found["tolerances"] = tuple(float(each) for each in found["tolerances"] or ())
    return found


def typical_tolerance(baseline: Baseline) -> float:
    """Return the median loss above 0, over all n, at the old agent's natural moments, rounded."""
    losses = np.maximum.accumulate(baseline.losses[baseline.natural], axis=1)
    above = losses[losses > 0]
    if not len(above):
        return 1.0
    return float(f"{float(np.median(above)):.1g}")


def read_checkpoint(
    named: Checkpoint,
    proxy: str | None = None,
    *,
    about: About = (None, None),
    like: Baseline | None = None,
) -> Baseline:
    """Read a study or a baseline file.

    `about` says which of the mistakes and losses of a study it is; `like` is the other side, whose
    proxy, mistakes and loss are taken if they can.
    """
    if isinstance(named, Baseline):
        return _with(named, proxy, about)
    if isinstance(named, Study) and about == (None, None):
        return baseline_of(named, proxy, like=like)
    path = named.path if isinstance(named, Study) else Path(named)
    if path.is_file() and path.name != DATABASE:
        return _with(Baseline.load(path), proxy, about)
    if not path.exists():
        raise BaselineFileError(
            f"{path} does not exist; name a study's folder, or a file that "
            "`safemargin gate STUDY --save-baseline FILE` wrote"
        )
    perturb, signal = about
    if about == (None, None) and like is not None:
        theirs = _about(like)
        if theirs in {(without_folder(one), other) for one, other in measured_in(path)}:
            perturb, signal = theirs
    with Study.open(path, perturb=perturb, signal=signal) as study:
        return baseline_of(study, proxy, like=like)


def _about(baseline: Baseline) -> tuple[str, str]:
    """Return the mistakes and the loss that a checkpoint was measured with."""
    measured = Settings.from_mapping(baseline.settings).measured
    return measured.perturb, measured.signal


def _with(baseline: Baseline, proxy: str | None, about: About) -> Baseline:
    """Return a baseline; StudyMismatch if it holds something else than was named."""
    for name, asked, held in zip(("perturb", "signal"), about, _about(baseline), strict=True):
        if asked is not None and held != (without_folder(asked) if name == "perturb" else asked):
            raise StudyMismatch(
                f"{baseline.source} is about {name} {held!r}, not {asked!r}; write it again from "
                f"its study with --{name} {asked}, or leave --{name} out"
            )
    if proxy is not None and proxy != baseline.proxy:
        raise StudyMismatch(
            f"{baseline.source} holds the proxy {baseline.proxy!r}, not {proxy!r}; write it again "
            f"with --proxy {proxy}"
        )
    return baseline


def baseline_of(
    study: Study, proxy: str | None = None, *, like: Baseline | None = None
) -> Baseline:
    """Return what a gate knows of a finished study."""
    refuse_labels(study.store)
    status = study.status()
    if status.estimates_left or not status.wanted["natural"]:
        raise StudyIncomplete(
            f"the study in {study.path} is not finished ({status.estimates_left:,} estimates left, "
            f"{status.wanted['natural']} natural moments wanted); run `safemargin collect` on it "
            "first"
        )
    if proxy is None and like is not None and like.proxy in study.proxies:
        proxy = like.proxy
    if (proxy or study.default_proxy) == LEARNED:
        raise InvalidInput(
            "a learned proxy belongs to one study, so two checkpoints cannot be compared by it; "
            "name another proxy"
        )
    tuples = study.tuples(proxy)
    assert tuples.groups is not None
    natural = tuples.phases == "natural"
    returns: dict[int, float] = {}
    seeds: dict[int, int] = {}
    for trace in study.store.proxy_traces(tuples.proxy):
        if trace.key.phase == "natural":
            number = trace.key.index
            returns[number] = returns.get(number, 0.0) + trace.total_reward
            seeds.setdefault(number, trace.seed)
    policy, environment = study.policy, study.environment
    return Baseline(
        source=str(study.path),
        proxy=tuples.proxy,
        versions=dict(study.store.meta("versions") or {}),
        environment={name: environment[name] for name in ("name", "identity", "arguments")},
        policy={name: policy[name] for name in ("description", "identity", "kind")},
        settings=dict(study.store.meta("settings")),
        game_numbers=np.array(list(returns), dtype=np.int64),
        game_seeds=np.array(list(seeds.values()), dtype=np.int64),
        returns=_short(np.array(list(returns.values()), dtype=np.float64)),
        natural=natural,
        games=tuples.indices,
        lives=tuples.lives,
        steps=tuples.steps,
        groups=tuples.groups,
        proxies=_short(tuples.proxies),
        losses=_short(tuples.criticalities),
    )


def _short(values: Floats) -> Floats:
    """Round to the digits that a file keeps, so that a study equals the file made from it."""
    texts = [float(f"{value:.{DIGITS}g}") for value in values.ravel().tolist()]
    return np.array(texts, dtype=np.float64).reshape(values.shape)
