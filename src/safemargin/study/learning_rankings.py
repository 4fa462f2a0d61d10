"""Learning where the agent itself is wrong: rankings of decisions by regret or stakes.

They are learned from the same inputs as a learned proxy, with the regret (or the stakes) of every
moment in place of its losses, and cross-fitted alike. No margins are fitted to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from safemargin.core.plain import plain_values
from safemargin.core.progress import Progress
from safemargin.core.records import EpisodeKey, Floats
from safemargin.core.seeding import hashed_seed
from safemargin.core.version import __version__
from safemargin.engines import Engine, Job
from safemargin.errors import InvalidInput, StudyIncomplete
from safemargin.margins.learned.choosing import make_probe
from safemargin.margins.learned.crossfit import (
    FEWEST,
    FOLDS,
    CrossFit,
    Fold,
    available_recipes,
    cross_fit,
    train,
)
from safemargin.margins.learned.models import Recipe
from safemargin.margins.learned.probe import RANKINGS
from safemargin.margins.learned.ranking import Ranking, check_target
from safemargin.policies.base import batch_of
from safemargin.policies.value_signals import value_signals
from safemargin.study.learning import known_proxies, stored_probe, trace_learned
from safemargin.study.lessons import (
    Material,
    OpenEngine,
    add_missing_features,
    collect_labels,
    lacks_features,
    open_labels,
    read_material,
)
from safemargin.study.provenance import keep_proof
from safemargin.study.regrets import Regrets, read_regrets
from safemargin.study.store import Store
from safemargin.study.tuples import read_tuples
from safemargin.validation.capture import SHARES, Captured, captured, captured_with_bands


@dataclass(frozen=True)
class LearnedRanking:
    """What came of learning a ranking."""

    target: str
    recipe: str | None
    """The model; None where none captures more than the proxies there were, or than lot."""
    moments: int
    labels: int
    natural: int
    """Natural moments, on which all this is judged."""
    mean: float
    """Of the target at natural moments."""
    captured: Mapping[str, tuple[Captured, ...]]
    """Ranking → the share of all of it in 1, 5 and 10 % of natural moments, and bands. `target`
    itself, which nobody can know, is what the best ranking captures."""
    best: str
    """The best of those that can be had."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        return asdict(self)

    def __str__(self) -> str:
        at = self.captured[self.best][1]
        text = (
            f"the 5 % of moments that {self.best} puts first hold {at.captured:.0%} of all "
            f"{self.target} ({at.low:.0%} to {at.high:.0%})"
        )
        if self.recipe is None:
            text = f"no model ranks {self.target} better than what there was; {text}"
            return text + "; nothing was stored"
        return text


def learn_ranking(
    store: Store,
    open_engine: OpenEngine,
    job: Callable[[], Job],
    target: str,
    *,
    labels: int,
    traces: bool,
    progress: Progress,
) -> LearnedRanking:
    """Collect labels and missing features, learn a ranking, and record it along the episodes."""
    check_target(target)
    if labels < 0:
        raise InvalidInput(f"labels must be at least 0, got {labels}")
    regrets = read_regrets(store)  # refused before anything is collected
    known = getattr(regrets, target)[regrets.natural]
    if len(known) and not (known > 0).any():
        raise StudyIncomplete(
            f"there is no {target} at any of the {len(known)} natural moments of the study in "
            f"{store.folder}, so nothing can be learned of it; collect more moments"
        )
    if labels:
        collect_labels(store, open_engine, labels, progress)
    with store.writing():
        if lacks_features(store):
            with open_engine(store) as engine:
                keep_proof(store, engine.proof())
                add_missing_features(store, engine, progress)
        found = _learn(store, target, regrets, progress)
        if traces and found.recipe is not None:
            with open_engine(store) as engine:
                keep_proof(store, engine.proof())
                trace_ranking(store, engine, target, shows_value(job()), progress)
    return found


def _learn(store: Store, target: str, regrets: Regrets, progress: Progress) -> LearnedRanking:
    settings = store.settings()
    material = read_material(store, settings)
    gains = _gains(store, material, target, regrets)
    natural = material.natural
    if natural.sum() < FEWEST:
        raise StudyIncomplete(
            f"the study in {store.folder} holds {int(natural.sum())} finished natural moments, and "
            f"it takes {FEWEST} to learn a ranking and show what it is worth; collect more"
        )
    lessons = replace(material.lessons, losses=gains[:, None])
    recipes = available_recipes()
    progress.stage("learn", total=len(recipes) * FOLDS + 1, done=0)
    fitted = cross_fit(
        lessons, recipes=recipes, seed=settings.seed, step=lambda: progress.advance(0)
    )

    def worth(values: Floats) -> float:
        """Return what a ranking captures, averaged over the shares of decisions."""
        found = [captured(values[natural], gains[natural], share) for share in SHARES]
        return float(np.mean(found))

    recipe = max(recipes, key=lambda each: worth(fitted.values[each]))
    name, others = RANKINGS[target], known_proxies(store, settings, material)
    best = max(others, key=lambda each: worth(others[each]))
    better = worth(fitted.values[recipe]) > max(worth(others[best]), float(np.mean(SHARES)))
    rankings = {name: fitted.values[recipe], **others}
    rankings |= {"lot": np.zeros(len(gains)), f"{target} itself": gains}
    found = LearnedRanking(
        target=target,
        recipe=str(recipe) if better else None,
        moments=int(material.own.sum()),
        labels=int(lessons.labels.sum()),
        natural=int(natural.sum()),
        mean=float(gains[natural].mean()),
        captured={
            each: captured_with_bands(values[natural], gains[natural], lessons.groups[natural])
            for each, values in rankings.items()
        },
        best=name if better else best,
    )
    if not better:
        store.set_learned(None, {}, name)
        return found
    seed = hashed_seed(settings.seed, 1)
    model = train(lessons, [recipe], seed=seed, step=lambda: progress.advance(0))
    _store(store, material, found, fitted, recipe, model)
    return found


def _store(
    store: Store,
    material: Material,
    found: LearnedRanking,
    fitted: CrossFit,
    recipe: Recipe,
    model: Fold,
) -> None:
    about = {name: getattr(found, name) for name in ("target", "moments", "labels")}
    probe = make_probe(
        recipe,
        model,
        fitted.distances[material.natural],
        kind=store.meta("policy")["kind"],
        policy=store.meta("policy")["identity"],
        hidden_width=material.hidden_width,
        **about,
    )
    own = material.own
    groups = zip(material.keys, material.lessons.groups[own].tolist(), strict=True)
    store.set_learned(
        {
            "probe": probe.to_dict(),
            "found": plain_values(found.to_dict()),
            "groups": {key.id: group for key, group in groups},
        },
        dict(zip(material.keys, fitted.values[recipe][own].tolist(), strict=True)),
        RANKINGS[found.target],
    )


def trace_ranking(
    store: Store, engine: Engine, target: str, shows_value: bool, progress: Progress
) -> None:
    """Record a ranking, and the signals of the policy's own value, along all episodes."""
    kind, gamma = store.meta("policy")["kind"], store.settings().gamma

    def record_signals(key: EpisodeKey, hidden: npt.NDArray[np.float32]) -> None:
        values = hidden[:, -1].astype(np.float64) if shows_value else None
        signals = value_signals(kind, store.scores(key), values, store.rewards(key), gamma)
        for name, along in signals.items():
            store.add_trace(key, name, along)

    trace_learned(store, engine, progress, RANKINGS[target], record_signals)


def shows_value(job: Job) -> bool:
    """Whether the policy estimates the return beside its scores."""
    with job.environment.opened() as env:
        observation, _ = env.reset(seed=0)
        memory = job.policy.initial_memory(1)
        return job.policy.features(batch_of([observation]), memory).value is not None


def ranking_of(store: Store, target: str) -> Ranking:
    """Return a study's learned ranking for use elsewhere."""
    check_target(target)
    name = RANKINGS[target]
    if store.meta(name) is None:
        raise InvalidInput(
            f"the study in {store.folder} has no {name} proxy; run `safemargin learn "
            f"{store.folder} --target {target}` on it first"
        )
    tuples = read_tuples(store, store.settings(), name)
    environment, policy = store.meta("environment"), store.meta("policy")
    return Ranking(
        target,
        stored_probe(store, name),
        np.sort(tuples.proxies[tuples.phases == "natural"]),
        {
            "environment": {part: environment[part] for part in ("name", "identity", "arguments")},
            "policy": {part: policy[part] for part in ("description", "identity", "kind")},
            "found": store.meta(name)["found"],
            "created_by": f"safemargin learn, safemargin {__version__}",
        },
    )


def _gains(store: Store, material: Material, target: str, regrets: Regrets) -> Floats:
    """Return the regret or stakes of every lesson, [lessons]."""
    found = dict(zip(regrets.keys, getattr(regrets, target).tolist(), strict=True))
    gains = [found.get(key) for key in material.keys]
    labels = open_labels(store)
    if labels is not None:
        try:
            if material.lessons.labels.any():
                known = read_regrets(labels)
                of = dict(zip(known.keys, getattr(known, target).tolist(), strict=True))
                gains += [of.get(key) for key in material.label_keys]
        finally:
            labels.close()
    lacking = sum(gain is None for gain in gains)
    if lacking:
        raise StudyIncomplete(
            f"{lacking} moments of the study in {store.folder} show no {target}; with something "
            "random, it takes more trials than twice the number of actions"
        )
    return np.array(gains, dtype=np.float64)
