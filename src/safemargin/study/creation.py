"""Makes the database of a study: what it records about its parts, once the doctor has seen them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from safemargin.core.measured import (
    RANDOM,
    parse_perturbation,
    parse_reference,
    without_folder,
)
from safemargin.core.progress import Progress, Silence
from safemargin.core.settings import Settings
from safemargin.core.version import versions_in_use
from safemargin.criticality import reference
from safemargin.criticality.estimation import NOT_RANDOM
from safemargin.criticality.perturbations import Perturbation, make_perturbation
from safemargin.criticality.reference import Reference, make_reference
from safemargin.criticality.signals import Signal
from safemargin.environments import EnvironmentSpec, Way, make_simulator
from safemargin.environments.doctor import examine
from safemargin.environments.doctor.returns import UnlikeTraining
from safemargin.errors import (
    InvalidInput,
    NotMeasurable,
    SafemarginError,
    StudyBusy,
    StudyExists,
    did_you_mean,
)
from safemargin.policies.actions import RandomActions
from safemargin.policies.base import Policy, ScoreKind
from safemargin.policies.loading import FORMS
from safemargin.policies.proxies import Proxy, default_proxy, proxies_for
from safemargin.study.folders import held
from safemargin.study.provenance import (
    describe_environment,
    describe_policy,
    refuse_mixing,
    refuse_other_perturbation,
    refuse_other_reference,
    source_text,
)
from safemargin.study.signing import SIGNATURE, kept_signed, signature
from safemargin.study.store import DATABASE, Store


def make_store(
    folder: Path,
    spec: EnvironmentSpec,
    policy: Policy,
    given_policy: Any,
    settings: Settings,
    proxies: Sequence[Proxy | str],
    *,
    way: Way | None,
    progress: Progress | None,
) -> tuple[Store, dict[str, Any]]:
    """Make the database of a study, or open the one that is there; return its entries, too.

    `given_policy` is what the user named the policy by.
    """
    entries = study_entries(
        spec,
        policy,
        given_policy,
        with_full_path(settings),
        proxies,
        diagnose=not (folder / DATABASE).exists(),
        way=way,
        progress=progress,
    )
    return new_or_same_store(folder, entries), entries


def study_entries(
    spec: EnvironmentSpec,
    policy: Policy,
    given_policy: Any,
    settings: Settings,
    proxies: Sequence[Proxy | str],
    *,
    diagnose: bool,
    way: Way | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """Return the entries of a study made of these parts.

    `given_policy` is what the user named the policy by. With `diagnose`, the doctor examines the
    environment; NotMeasurable if it cannot be measured.
    """
    recorded = proxies_for(policy.kind, proxies, policy.own_proxies())
    names = [proxy.name for proxy in recorded]
    selection_proxy = settings.selection_proxy or _first_proxy(policy.kind, recorded)
    if selection_proxy not in names:
        raise InvalidInput(
            f"proxy {selection_proxy!r} does not apply to scores of kind {policy.kind!r}; "
            + did_you_mean(selection_proxy, names)
        )
    mistakes = _perturbation(spec, settings)
    successor = _reference(spec, policy, settings)
    diagnosis: dict[str, Any] = {"asked_way": way}
    if diagnose:
        diagnosis = _diagnose(spec, policy, settings, way, progress)
        found = diagnosis["environment_deterministic"] and diagnosis["policy_deterministic"]
        if mistakes.worst and not found:
            raise InvalidInput(NOT_RANDOM.format(perturb=settings.perturb))
        if successor is not None and successor.looks_ahead and not found:
            raise InvalidInput(reference.NOT_RANDOM.format(reference=settings.reference))
    return {
        "diagnosis": diagnosis,
        "environment": describe_environment(spec, policy),
        "policy": describe_policy(policy, given_policy),
        "settings": asdict(settings),
        "proxies": names,
        "extra_proxies": [source_text(extra) for extra in proxies if isinstance(extra, str)],
        "selection_proxy": selection_proxy,
        "versions": versions_in_use(),
    } | {
        name: {"identity": part.identity}
        for name, part in (("perturbation", mistakes), ("reference", successor))
        if part is not None and part.identity
    }


def policy_for(spec: EnvironmentSpec, policy: Any) -> Any:
    """Return the policy that was given, or the one that the environment comes with."""
    found = spec.own_policy if policy is None else policy
    if found is None:
        raise InvalidInput(
            f"environment {spec.name!r} does not come with a policy, as 'rl-zoo:FOLDER' does; name "
            f"one, after the environment: {FORMS}"
        )
    return found


def with_full_path(settings: Settings) -> Settings:
    """Return settings whose perturbation and reference name their files by the full path."""
    if settings.reference is not None and parse_reference(settings.reference).kind == "policy":
        settings = replace(settings, reference=source_text(settings.reference))
    written = parse_perturbation(settings.perturb)
    if written.kind == "policy":
        return replace(settings, perturb=f"policy:{source_text(written.argument)}")
    return replace(settings, perturb=source_text(settings.perturb))


def _perturbation(spec: EnvironmentSpec, settings: Settings) -> Perturbation:
    """Load the perturbation; an error if it, or the signal, makes no sense in this environment."""
    found = make_perturbation(settings.perturb)
    signal = Signal.parse(settings.signal)
    if settings.perturb != RANDOM or signal.in_info:
        with spec.opened() as env:
            found.check(env.action_space, settings)
            if signal.in_info:
                random_actions, simulator = RandomActions(env.action_space), make_simulator(env)
                simulator.reset(settings.seed)
                first = random_actions(np.zeros(random_actions.width), simulator.mask)
                signal.value(simulator.step(first), simulator)
    return found


def _reference(spec: EnvironmentSpec, policy: Policy, settings: Settings) -> Reference | None:
    """Load the reference; an error if it cannot take over from the agent in this environment."""
    if settings.reference is None:
        return None
    found = make_reference(settings.reference)
    with spec.opened() as env:
        found.check(env, policy)
    return found


@contextlib.contextmanager
def nothing_left_if_refused(folder: Path) -> Iterator[None]:
    """Remove what was made of a new study if an error comes before its first episode is stored."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    there = set() if folder in made else set(folder.iterdir())
    try:
        yield
    except SafemarginError as error:
        new = folder.exists() and folder / DATABASE not in there
        if new and not isinstance(error, StudyBusy) and _without_episodes(folder):
            with held(folder):
                for path in set(folder.iterdir()) - there:
                    path.unlink()
            for each in made:
                each.rmdir()
        raise


def _without_episodes(folder: Path) -> bool:
    if not (folder / DATABASE).exists():
        return True
    with contextlib.closing(Store.open(folder)) as store:
        return not store.episode_outlines()


def new_or_same_store(folder: Path, entries: Mapping[str, Any]) -> Store:
    """Make the database of a study, or open the one that was made with the very same parts.

    StudyMismatch if it was made with others.
    """
    try:
        return Store.create(folder, {**entries, SIGNATURE: signature(entries)})
    except StudyExists:  # perhaps made by another process just now
        settings = entries["settings"]
        identity = entries.get("perturbation", {}).get("identity")
        wanted = settings["perturb"], settings["signal"]
        store = Store.open(folder)
        try:
            first = dict(zip(("perturb", "signal"), store.measured_pairs()[0], strict=True))
            refuse_mixing(store, {**entries, "settings": {**settings, **first}})
            if wanted not in store.measured_pairs():
                _refuse_random(store, wanted[0])
                with kept_signed(store):
                    store.add_pair(*wanted, identity)
            about = store.measured_pairs().index(wanted)
        except BaseException:
            store.close()
            raise
        if about:
            store.close()
            store = Store.open(folder, about)
        refuse_other_perturbation(store, identity)
        refuse_other_reference(store, entries.get("reference", {}).get("identity"))
        return store


def measured_in(folder: Path) -> list[tuple[str, str]]:
    """Return the perturbations and signals of the study in a folder; empty if there is none."""
    if not (folder / DATABASE).exists():
        return []
    with contextlib.closing(Store.open(folder)) as store:
        return store.measured_pairs()


def with_more(
    store: Store, more: Iterable[tuple[str, str]], spec: EnvironmentSpec
) -> list[contextlib.closing[Store]]:
    """Have a study measure other mistakes and losses, too; return its databases about them.

    Nothing is added if one of them makes no sense here.
    """
    settings, found = store.settings(), dict[tuple[str, str], Perturbation | None]()
    for perturb, signal in more:
        given = with_full_path(replace(settings, perturb=perturb, signal=signal))
        pair = given.perturb, given.signal
        if pair != (settings.perturb, settings.signal) and pair not in found:
            known = pair in store.measured_pairs()
            found[pair] = None if known else _perturbation(spec, given)
            _refuse_random(store, perturb)
    with kept_signed(store):
        for pair, perturbation in found.items():
            if perturbation is not None:
                store.add_pair(*pair, perturbation.identity)
    return [contextlib.closing(open_about(store.folder, *pair)) for pair in found]


def open_about(folder: Path, perturb: str | None = None, signal: str | None = None) -> Store:
    """Open a study about mistakes and a loss; InvalidInput if it does not measure them.

    What is not named is as in the first of them, or the only one there is.
    """
    store = Store.open(folder)
    pairs = store.measured_pairs()
    fitting = [
        pair
        for pair in pairs
        if perturb in (None, pair[0], without_folder(pair[0])) and signal in (None, pair[1])
    ]
    first = [
        pair
        for pair in fitting
        if (perturb is not None or pair[0] == pairs[0][0])
        and (signal is not None or pair[1] == pairs[0][1])
    ]
    chosen = first or fitting
    if len(chosen) == 1 and chosen[0] == pairs[0]:
        return store
    store.close()
    if len(chosen) != 1:
        asked = " and ".join(
            f"{name} {text!r}"
            for name, text in (("perturb", perturb), ("signal", signal))
            if text is not None
        )
        known = "; ".join(
            f"perturb {without_folder(one)!r} with signal {other!r}" for one, other in pairs
        )
        what = "measures several things with" if chosen else "does not measure"
        raise InvalidInput(
            f"the study in {folder} {what} {asked}; it measures {known}"
            + ("" if chosen else "; `safemargin collect` with --perturb and --signal adds more")
        )
    return Store.open(folder, pairs.index(chosen[0]))


def _refuse_random(store: Store, perturb: str) -> None:
    """Raise InvalidInput for a search of the worst sequence in a study where luck counts."""
    diagnosis = store.meta("diagnosis")
    found = diagnosis["environment_deterministic"] and diagnosis["policy_deterministic"]
    if parse_perturbation(perturb).kind == "worst" and not found:
        raise InvalidInput(NOT_RANDOM.format(perturb=perturb))


def _first_proxy(kind: ScoreKind, recorded: Sequence[Proxy]) -> str:
    """Return the paper's proxy for these scores, or the user's own where there is none."""
    if not recorded:
        raise InvalidInput(
            f"no built-in proxy applies to scores of kind {kind!r}; give your own with proxies="
        )
    return default_proxy(kind, recorded)


def _diagnose(
    spec: EnvironmentSpec,
    policy: Policy,
    settings: Settings,
    way: Way | None,
    progress: Progress | None,
) -> dict[str, Any]:
    progress = progress or Silence()
    progress.stage("doctor", total=1, done=0)
    diagnosis = examine(spec.make, policy, settings, way=way, returns=bool(policy.trained_returns))
    if not diagnosis.measurable:
        raise NotMeasurable(diagnosis.verdict)
    if diagnosis.unlike_training:
        warnings.warn(diagnosis.unlike_training, UnlikeTraining, stacklevel=4)
    progress.advance(0)
    return diagnosis.to_dict()
