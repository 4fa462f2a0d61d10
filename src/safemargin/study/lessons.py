"""What a proxy is learned from: a study's measured moments, and cheap labels beside them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from safemargin.core.progress import Progress
from safemargin.core.records import EpisodeKey, Floats, Moment
from safemargin.core.settings import Settings
from safemargin.engines import Engine
from safemargin.errors import InvalidInput, StudyIncomplete, StudyMismatch
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.learned.crossfit import FEWEST, Lessons
from safemargin.margins.learned.probe import LEARNED
from safemargin.policies.base import ScoreKind
from safemargin.policies.features import probe_inputs, recent
from safemargin.study.collection import collect
from safemargin.study.kinship import find_kin
from safemargin.study.passes import look_at_moments
from safemargin.study.schema import ENTRIES
from safemargin.study.signing import SIGNATURE, signature
from safemargin.study.store import DATABASE, Store
from safemargin.study.tuples import read_tuples

LABELS = "labels"
"""The folder of the cheap labels inside a study's, and their purpose in its table `meta`."""

PURPOSE = "purpose"

LABEL_TRIALS = 3
LABEL_SEQUENCES = 18
"""Up to this many action sequences are all taken once: for most environments, n = 1 is exact."""

LABEL_SEED = 2**31
"""Added to the study's seed: labels come from other games than the study's own."""

OpenEngine = Callable[[Store], AbstractContextManager[Engine]]
"""Starts workers for a study, or for its labels."""


# -- cheap labels ------------------------------------------------------------------------------


def label_settings(settings: Settings) -> Settings:
    """Return settings for cheap labels: n = 1 exact, a few nested trials for each larger n."""
    return replace(
        settings,
        trial_plan="fixed",
        trials=LABEL_TRIALS,
        max_enumerated=LABEL_SEQUENCES,
        largest_loss=None,
        sampling_error=Settings.sampling_error,
        min_trials=Settings.min_trials,
        max_trials=Settings.max_trials,
        seed=settings.seed + LABEL_SEED,
    )


def open_labels(store: Store, *, make: bool = False) -> Store | None:
    """Open a study's labels: a study of their own inside its folder; None if there are none.

    They are apart from the study, so that no bound can ever be calibrated on them.
    """
    folder = store.folder / LABELS
    if (folder / DATABASE).exists():
        return Store.open(folder)
    if not make:
        return None
    entries = {name: store.meta(name) for name in (*ENTRIES, "versions")}
    if (perturbation := store.meta("perturbation")) is not None:
        entries["perturbation"] = perturbation
    entries["proxies"] = [name for name in entries["proxies"] if name != LEARNED]
    settings = Settings.from_mapping(entries["settings"])
    entries |= {"settings": asdict(label_settings(settings)), PURPOSE: LABELS}
    return Store.create(folder, {**entries, SIGNATURE: signature(entries)})


def refuse_labels(store: Store) -> None:
    """Raise InvalidInput for a folder of labels, which are for training only."""
    if store.meta(PURPOSE) == LABELS:
        raise InvalidInput(
            f"{store.folder} holds cheap labels for learning, and no margins can be promised from "
            f"them; name the study {store.folder.parent}"
        )


def _refuse_foreign(labels: Store, store: Store, settings: Settings) -> None:
    """Raise StudyMismatch for labels that were not collected for this study as it is."""
    wanted, found = asdict(label_settings(settings)), asdict(labels.settings())
    other = [f"{name} {found[name]} instead of {wanted[name]}" for name in wanted
             if found[name] != wanted[name]]  # fmt: skip
    if labels.meta("policy")["identity"] != store.meta("policy")["identity"]:
        other.append("another policy")
    if other:
        raise StudyMismatch(
            f"the labels in {labels.folder} were collected with {', '.join(other)}; delete that "
            "folder, and collect labels for this study (`safemargin learn --labels`)"
        )


def collect_labels(store: Store, open_engine: OpenEngine, count: int, progress: Progress) -> None:
    """Collect labels until there are this many."""
    labels = open_labels(store, make=True)
    assert labels is not None
    try:
        with labels.writing():
            collect(
                [labels],
                lambda: open_engine(labels),
                natural=count,
                spread=0,
                progress=progress,
            )
    finally:
        labels.close()


# -- lessons -----------------------------------------------------------------------------------


def lacks_features(store: Store) -> bool:
    """Whether some measured moments lack features that the policy may expose."""
    return bool(_without_features(store)) and store.meta("no_features") is None


def _without_features(store: Store) -> list[Moment]:
    known, measured = store.features(), {key for key, _ in store.estimated()}
    return [
        moment
        for moment in store.moments()
        if moment.episode in measured and moment.episode not in known
    ]


def add_missing_features(store: Store, engine: Engine, progress: Progress) -> None:
    """Record the features of moments that were measured by a version without them.

    A policy that exposes no hidden layer is asked only once.
    """
    todo = _without_features(store)
    if not list(look_at_moments(engine, store, todo[:1])):
        store.set_meta("no_features", True)
        return
    progress.stage("features", total=len(todo), done=0)
    for found in look_at_moments(engine, store, todo):
        store.add_features(found)
        progress.advance(0)


def inputs_at_moments(
    store: Store, settings: Settings
) -> tuple[list[EpisodeKey], npt.NDArray[np.float32]]:
    """Return the finished moments, and what a learned proxy sees there, [moments, inputs]."""
    part = _read_part(store, settings)
    return part.keys, probe_inputs(store.meta("policy")["kind"], part.recent, part.hidden)


@dataclass(frozen=True, eq=False)
class Material:
    """A study's lessons, in the order of its tuples, with its labels after them."""

    lessons: Lessons
    natural: npt.NDArray[np.bool_]  # [lessons] natural moments of the study itself
    keys: list[EpisodeKey]  # of the study's own moments
    label_keys: list[EpisodeKey]  # of its labels, which are a study of their own
    n_values: tuple[int, ...]
    hidden_width: int

    @property
    def own(self) -> npt.NDArray[np.bool_]:
        """Marks the study's own moments, [lessons]."""
        return ~self.lessons.labels

    def sample(self, values: Floats) -> Sample:
        """Return the study's own moments with these values, [lessons], as proxies."""
        own = self.own
        return Sample.from_arrays(
            values[own],
            self.lessons.losses[own],
            self.n_values,
            natural=self.natural[own],
            groups=self.lessons.groups[own],
        )


def read_material(store: Store, settings: Settings) -> Material:
    """Read the lessons of a study and of its labels."""
    kind: ScoreKind = store.meta("policy")["kind"]
    own = _read_part(store, settings)
    labels_store = open_labels(store)
    if labels_store is None:
        parts = [own]
    else:
        try:
            _refuse_foreign(labels_store, store, settings)
            found = _read_part(labels_store, labels_store.settings())
        finally:
            labels_store.close()
        parts = [own, found] if found.keys else [own]
    if len(own.keys) < FEWEST:
        raise StudyIncomplete(
            f"the study in {store.folder} holds {len(own.keys)} finished moments, too few to learn "
            f"from; collect {FEWEST} or more"
        )
    widths = {part.hidden.shape[2] for part in parts}
    if len(widths) > 1:
        raise StudyIncomplete(
            f"the labels in {store.folder / LABELS} show another hidden layer than the study's "
            "moments; delete that folder, and collect labels again"
        )
    keys = [key for part in parts for key in part.keys]
    label = np.arange(len(keys)) >= len(own.keys)
    kinship = find_kin(
        [scores for part in parts for scores in part.traces],
        [step for part in parts for step in part.steps],
        [game for part in parts for game in part.games],
        label,
        settings.horizon,
    )
    return Material(
        lessons=Lessons(
            inputs=np.concatenate([probe_inputs(kind, part.recent, part.hidden) for part in parts]),
            losses=np.concatenate([part.losses for part in parts]),
            groups=kinship.groups,
            kin=kinship.kin,
        ),
        natural=~label & np.array([key.phase == "natural" for key in keys]),
        keys=own.keys,
        label_keys=keys[len(own.keys) :],
        n_values=settings.n_values,
        hidden_width=widths.pop(),
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """The finished moments of one database."""

    keys: list[EpisodeKey]
    steps: list[int]
    games: list[object]
    losses: Floats  # [moments, n]
    recent: npt.NDArray[np.float32]  # [moments, window, …]
    hidden: npt.NDArray[np.float32]  # [moments, lags, width]
    traces: list[npt.NDArray[np.float32]]


def _read_part(store: Store, settings: Settings) -> _Part:
    tuples = read_tuples(store, settings, str(store.meta("selection_proxy")))
    keys, steps = tuples.keys, tuples.steps.tolist()
    features = store.features()
    lacking = [key for key in keys if key not in features] if features else []
    if lacking:
        raise StudyIncomplete(
            f"{len(lacking)} moments of the study in {store.folder} have no features yet; run "
            "`safemargin learn` on it"
        )
    traces = [store.scores(key) for key in keys]
    empty = np.zeros((len(keys), 1, 0), np.float32)
    return _Part(
        keys=keys,
        steps=steps,
        games=[(settings.seed, *key.game_keys) for key in keys],
        losses=tuples.criticalities,
        recent=np.stack([recent(rows, step) for rows, step in zip(traces, steps, strict=True)])
        if keys
        else np.zeros((0, 1, 0), np.float32),
        hidden=np.stack([features[key] for key in keys]) if features and keys else empty,
        traces=traces,
    )
