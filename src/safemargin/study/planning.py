"""What a study will cost, estimated by measuring a few moments before anyone waits a night.

Nothing is written. The pilot's moments could become the first ones of the study; but people plan
in order to change their settings, and a study refuses settings other than its own.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Phase
from safemargin.core.settings import Settings
from safemargin.engines import Device, EngineName, available_cores, check_engine
from safemargin.environments import Way
from safemargin.environments.doctor.diagnosis import corrected
from safemargin.errors import DiagnosisWrong, InvalidInput, StudyError
from safemargin.policies.base import ScoreKind
from safemargin.policies.proxies import Proxy
from safemargin.study.collection import check_collect, refuse_draws
from safemargin.study.costs import read_costs
from safemargin.study.creation import measured_in, with_full_path
from safemargin.study.forecast import Forecast, Range, forecast
from safemargin.study.pilot import Pilot
from safemargin.study.schema import ENTRIES
from safemargin.study.store import Store
from safemargin.study.study import MakeEnvironment, Study
from safemargin.study.suggestions import Saving, savings

MOMENTS = 12
"""How many moments are measured, or one for each worker if that is more."""

SECONDS = 60.0
"""After this time, no further moment is started."""


@dataclass(frozen=True, slots=True)
class CostPlan:
    """The cost of a collection: the forecast, and how long a person waits for it."""

    environment: str
    policy: str
    study: str | None
    """The folder of the study that would be resumed; None for a new one."""
    forecast: Forecast
    workers: int
    seconds: Range
    """From the start of the command to its end, with these workers."""
    preparation_seconds: float
    """The part of `seconds` for examining the environment and selecting moments."""
    worst: tuple[float, float] | None
    """Trials and seconds if every estimate ran to `max_trials`; None if trials are fixed."""
    savings: tuple[Saving, ...]
    pilot_moments: int
    """Moments measured for the plan, and then discarded."""
    pilot_seconds: float
    interrupted: bool
    """The pilot was stopped by Ctrl-C."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def plan_study(
    path: str | Path | None,
    env: str | MakeEnvironment,
    policy: Any = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    natural: int = 500,
    spread: int = 500,
    env_arguments: Mapping[str, Any] | None = None,
    scores: ScoreKind | None = None,
    proxies: Sequence[Proxy | str] = (),
    way: Way | None = None,
    workers: int | None = None,
    engine: EngineName | None = None,
    address: str | None = None,
    gpus_per_worker: float = 0.0,
    device: Device | None = None,
    moments: int | None = None,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> CostPlan:
    """Forecast `Study.create` and `Study.collect` with the same arguments; nothing is written.

    `moments` are measured (None: 12, or one for each worker), and none is started after `seconds`;
    Ctrl-C makes the plan from those finished by then. If `path` already holds a study, its own
    moments count, and the plan is for the rest of it.
    """
    check_collect(natural, spread, workers)
    options: dict[str, Any] = {"workers": workers, "address": address}
    options |= {"gpus_per_worker": gpus_per_worker, "device": device}
    check_engine(engine, **options)
    workers = workers or available_cores()
    if moments is not None and moments < 2:
        raise InvalidInput(f"a plan needs at least 2 moments, got {moments}")
    if not seconds > 0:
        raise InvalidInput(f"the seconds of a plan must be above 0, got {seconds:g}")
    progress = progress or Silence()
    existing, more = _existing(path, settings)
    with contextlib.ExitStack() as stack:
        temporary = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="safemargin-plan-"))
        )
        began = time.monotonic()
        study = stack.enter_context(
            Study.create(
                existing or temporary,
                env,
                policy,
                settings,
                env_arguments=env_arguments,
                scores=scores,
                proxies=proxies,
                way=way,
                progress=progress,
            )
        )
        examined = 0.0 if existing else time.monotonic() - began
        done = read_costs(study.store, study.settings)
        wanted: dict[Phase, int] = {"natural": natural, "spread": spread}
        scratch = study.store
        if existing is not None:
            entries = {name: study.store.meta(name) for name in ENTRIES}
            scratch = stack.enter_context(contextlib.closing(Store.create(temporary, entries)))
        most = max(MOMENTS, workers) if moments is None else moments
        pilot = Pilot(scratch, wanted, done, most)
        while pilot.todo:
            try:
                with study.open_engine(engine, **options) as started:
                    workers = started.workers
                    pilot.run(started, seconds=seconds, progress=progress)
                refuse_draws(scratch.drew(), study.diagnosis)
                break
            except DiagnosisWrong as wrong:
                pilot = _again(study, pilot, wrong, existing)
        found = forecast(pilot.sample(), study.settings, wanted, done=done)
        if more:
            found = found.without_episodes()
        return _cost_plan(study, pilot, found, workers, examined, existing)


def _existing(
    path: str | Path | None, settings: Settings | Mapping[str, Any] | None
) -> tuple[Path | None, bool]:
    """Return the study to resume, and whether there is one that would have to measure more.

    A study that does not measure what is planned would have to be told so; it is left as it is,
    and the plan is for a new one at as many moments, without the episodes, which are there.
    """
    known = [] if path is None else measured_in(Path(path))
    if path is None or not known:
        return None, False
    given = settings if isinstance(settings, Settings) else Settings.from_mapping(settings or {})
    full = with_full_path(given)
    more = (full.perturb, full.signal) not in known
    return (None if more else Path(path)), more


def _again(study: Study, pilot: Pilot, wrong: DiagnosisWrong, existing: Path | None) -> Pilot:
    """Correct the diagnosis of the temporary study, and return a pilot that starts afresh."""
    if existing is not None:
        raise StudyError(
            f"{wrong.cause}: `safemargin collect` will correct the study in {existing} and measure "
            "everything again, so plan a new one (another -o)"
        ) from None
    study.store.correct_diagnosis(corrected(study.diagnosis, wrong))
    return replace(pilot)


def _cost_plan(
    study: Study,
    pilot: Pilot,
    found: Forecast,
    workers: int,
    examined: float,
    existing: Path | None,
) -> CostPlan:
    """Turn a forecast into the time a person waits.

    `examined` are the seconds the doctor took; `existing` is the folder of a study to resume.
    """
    workers = found.useful_workers(workers)
    preparation = examined + pilot.selection_seconds * sum(found.wanted.values())

    def waiting(worker_seconds: float) -> float:
        return preparation + worker_seconds / workers

    return CostPlan(
        environment=study.environment["name"],
        policy=study.policy["description"],
        study=None if existing is None else str(existing),
        forecast=found,
        workers=workers,
        seconds=found.worker_seconds.through(waiting),
        preparation_seconds=preparation,
        worst=_worst(found, study.settings, waiting),
        savings=savings(found, study.settings, waiting=waiting, resumes=existing is not None),
        pilot_moments=len(pilot.measured),
        pilot_seconds=pilot.seconds,
        interrupted=pilot.interrupted,
    )


def _worst(
    found: Forecast, settings: Settings, waiting: Callable[[float], float]
) -> tuple[float, float] | None:
    """Return trials and seconds if every estimate ran to the cap."""
    if settings.trial_plan == "fixed":
        return None
    trials = seconds = 0.0
    for stage in found.stages:
        most = settings.max_trials * stage.pieces if stage.n else 0
        trials += most
        seconds += stage.worker_seconds.expected * (most / stage.trials.expected if most else 1.0)
    return trials, waiting(seconds)
