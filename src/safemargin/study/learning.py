"""Learning a proxy from a study's own measurements, and what the study remembers of it.

Every moment of the study gets its value from models that have not seen its play; the model that
ships is trained on all lessons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.progress import Progress
from safemargin.core.records import EpisodeKey, Floats, Tuples
from safemargin.core.settings import Settings
from safemargin.engines import Engine
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.margins.learned.choosing import (
    Choice,
    Judge,
    choose,
    make_probe,
    mean_margin,
    telling_tolerances,
    values_for_fold,
    worth_of,
)
from safemargin.margins.learned.crossfit import FEWEST, FOLDS, available_recipes
from safemargin.margins.learned.probe import LEARNED, Probe
from safemargin.margins.methods import Promise, check_promise
from safemargin.policies.features import inputs_along
from safemargin.study.lessons import (
    Material,
    OpenEngine,
    add_missing_features,
    collect_labels,
    lacks_features,
    read_material,
)
from safemargin.study.passes import look_at_episodes
from safemargin.study.provenance import keep_proof
from safemargin.study.store import Store
from safemargin.study.tuples import read_tuples
from safemargin.validation.heldout import HeldOut, hold_out


@dataclass(frozen=True)
class Learned:
    """What came of learning a proxy."""

    recipe: str | None
    """The model and its target; None where no model grants more than the proxies there were."""
    moments: int
    labels: int
    tolerance: float
    granted: float
    """The mean margin on natural moments that neither model nor bound has seen."""
    granted_before: float
    """The same with the best proxy there was."""
    proxy_before: str
    affordable: float
    """The mean margin that perfect knowledge would grant."""
    shares: dict[str, float]
    """Recipe or proxy → mean share of the perfect margin, over several tolerances."""
    promise: Promise = "bound"
    """What models were compared by: the margins that this promise grants on their values."""
    tolerances: tuple[float, ...] = ()
    """The tolerances at which they were compared."""

    def __str__(self) -> str:
        if self.recipe is None:
            return (
                f"no model grants more than {self.proxy_before} does "
                f"({self.granted_before:.1f} of {self.affordable:.1f} affordable actions at a "
                f"tolerance of {self.tolerance:g}); nothing was stored, and margins stay with it"
            )
        return (
            f"at a tolerance of {self.tolerance:g} it grants {self.granted:.1f} of "
            f"{self.affordable:.1f} affordable actions; {self.proxy_before} grants "
            f"{self.granted_before:.1f}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        return asdict(self)


def trace_learned(
    store: Store,
    engine: Engine,
    progress: Progress,
    proxy: str = LEARNED,
    also: Callable[[EpisodeKey, npt.NDArray[np.float32]], object] = lambda key, hidden: None,
) -> None:
    """Record a learned proxy at every step of all episodes, for pictures and simulations.

    The model has seen the moments in them: these values are never fitted to.
    """
    probe = stored_probe(store, proxy)
    todo = store.untraced(proxy)
    progress.stage("traces", total=len(todo), done=0)
    if not probe.hidden_width:
        for key in todo:
            scores = store.scores(key)
            hidden = np.zeros((len(scores), 0), np.float32)
            also(key, hidden)
            store.add_trace(key, proxy, probe(inputs_along(probe.kind, scores, hidden))[0])
            progress.advance(0)
        return
    for found in look_at_episodes(engine, store, todo):
        also(found.key, found.hidden)
        inputs = inputs_along(probe.kind, store.scores(found.key), found.hidden)
        store.add_trace(found.key, proxy, probe(inputs)[0])
        progress.advance(len(found.hidden))


def learn(
    store: Store,
    open_engine: OpenEngine,
    *,
    labels: int,
    asked: tuple[float | None, Promise, float],
    traces: bool,
    progress: Progress,
) -> Learned:
    """Collect labels and missing features, learn a proxy, and record it along the episodes.

    `asked`: the tolerance (None: several), the promise and the confidence to compare models by.
    """
    tolerance, promise, _ = asked
    if labels < 0:
        raise InvalidInput(f"labels must be at least 0, got {labels}")
    if tolerance is not None and not 0 < tolerance < np.inf:
        raise InvalidInput(f"the tolerance must be above 0, got {tolerance:g}")
    check_promise(promise)
    settings = store.settings()
    if labels:
        collect_labels(store, open_engine, labels, progress)
    with store.writing():
        if lacks_features(store):
            with open_engine(store) as engine:
                keep_proof(store, engine.proof())
                add_missing_features(store, engine, progress)
        found = _learn(store, settings, asked, progress)
        if traces and found.recipe is not None:
            with open_engine(store) as engine:
                keep_proof(store, engine.proof())
                trace_learned(store, engine, progress)
    return found


def _learn(
    store: Store,
    settings: Settings,
    asked: tuple[float | None, Promise, float],
    progress: Progress,
) -> Learned:
    """Train and choose a model, and store its values, or nothing if no model is better."""
    tolerance, promise, confidence = asked
    material = read_material(store, settings)
    lessons, natural = material.lessons, material.natural
    if natural.sum() < FEWEST:
        raise StudyIncomplete(
            f"the study in {store.folder} holds {int(natural.sum())} finished natural moments, and "
            f"it takes {FEWEST} to learn a proxy and show what it is worth; collect more"
        )
    tolerances = telling_tolerances(lessons.losses[natural]) if tolerance is None else (tolerance,)
    judge = Judge(tolerances, promise, confidence)
    recipes = available_recipes()
    progress.stage("learn", total=len(recipes) * FOLDS + 1, done=0)
    choice = choose(
        lessons,
        natural,
        material.n_values,
        judge,
        seed=settings.seed,
        step=lambda: progress.advance(0),
    )
    known = known_proxies(store, settings, material)
    worth = {
        name: worth_of(values, lessons, natural, material.n_values, judge)
        for name, values in known.items()
    }
    before = max(worth, key=lambda name: worth[name])
    judged = {name: _held_out(material, values, judge) for name, values in known.items()}
    learned = _held_out(material, choice.values, judge)
    better = all(_share(learned, tolerances) > _share(one, tolerances) for one in judged.values())
    middle = tolerances[len(tolerances) // 2]
    found = Learned(
        recipe=str(choice.recipe) if better else None,
        moments=int(material.own.sum()),
        labels=int(lessons.labels.sum()),
        tolerance=middle,
        granted=_granted(learned, middle),
        granted_before=_granted(judged[before], middle),
        proxy_before=before,
        affordable=mean_margin(lessons.losses[natural], material.n_values, middle),
        shares={str(recipe): share for recipe, share in choice.worth.items()} | worth,
        promise=promise,
        tolerances=tolerances,
    )
    _store(store, material, choice, found if better else None)
    return found


def _held_out(material: Material, values: Floats, judge: Judge) -> HeldOut:
    return hold_out(material.sample(values), **judge.fit)


def _granted(judged: HeldOut, tolerance: float) -> float:
    return float(judged.margins(tolerance)[judged.sample.natural].mean())


def _share(judged: HeldOut, tolerances: Sequence[float]) -> float:
    """Return the mean share of the perfect margin that unseen natural moments are granted."""
    sample = judged.sample
    losses = sample.losses[sample.natural]
    shares = [
        _granted(judged, tolerance) / max(mean_margin(losses, sample.n_values, tolerance), 1e-9)
        for tolerance in tolerances
    ]
    return float(np.mean(shares))


def known_proxies(store: Store, settings: Settings, material: Material) -> dict[str, Floats]:
    """Return the values of every other proxy with one value per step, each [lessons]."""
    found = {}
    for name in store.meta("proxies"):
        if name == LEARNED or store.looks_at_n(name):
            continue
        values = np.full(len(material.lessons), np.nan)
        values[material.own] = read_tuples(store, settings, name).proxies
        found[name] = values
    return found


def _store(store: Store, material: Material, choice: Choice, found: Learned | None) -> None:
    if found is None:
        store.set_learned(None, {})
        return
    policy = store.meta("policy")
    probe = make_probe(
        choice.recipe,
        choice.model,
        choice.distances[material.natural],
        kind=policy["kind"],
        policy=policy["identity"],
        hidden_width=material.hidden_width,
        moments=found.moments,
        labels=found.labels,
    )
    own = material.own
    values = dict(zip(material.keys, choice.values[own].tolist(), strict=True))
    groups = {
        key.id: int(group)
        for key, group in zip(material.keys, material.lessons.groups[own], strict=True)
    }
    store.set_learned(
        {"probe": probe.to_dict(), "found": found.to_dict(), "groups": groups}, values
    )


def stored_probe(store: Store, proxy: str = LEARNED) -> Probe:
    """Return the probe behind a study's learned proxy."""
    learned = store.meta(proxy)
    if learned is None:
        raise InvalidInput(
            f"the study in {store.folder} has no {proxy} proxy; run `safemargin learn` on it first"
        )
    return Probe.from_dict(learned["probe"])


def relearner(
    store: Store, settings: Settings, tuples: Tuples, confidence: float
) -> Callable[[npt.NDArray[np.bool_]], Floats]:
    """Return what learns without some of the study's moments, for validation.

    It takes a mask of the moments that are seen, and returns the values of all, [moments].
    """
    material = read_material(store, settings)
    if material.keys != tuples.keys:
        raise StudyIncomplete(
            f"moments were added to the study in {store.folder} since its proxy was learned; run "
            "`safemargin learn` on it again"
        )
    own = material.own
    found = store.meta(LEARNED)["found"]
    tolerances = found.get("tolerances") or telling_tolerances(  # studies of version 1 lack them
        material.lessons.losses[material.natural]
    )
    judge = Judge(tuple(tolerances), found.get("promise", "bound"), confidence)

    def values(seen: npt.NDArray[np.bool_]) -> Floats:
        whole = np.zeros(len(own), bool)
        whole[own] = seen
        return values_for_fold(
            material.lessons,
            material.natural,
            material.n_values,
            whole,
            [judge],
            seed=settings.seed,
        )[0][own]

    return values
