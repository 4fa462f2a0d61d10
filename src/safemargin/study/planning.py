"""What a study will cost, found out by measuring a few moments before anyone waits a night.

Nothing is written. The pilot's moments could be made the first ones of the study; but a plan is
there to be argued with, and other settings after it would meet a study that refuses them.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safemargin.core.progress import Progress, Silence
from safemargin.core.records import Phase
from safemargin.core.settings import Settings
from safemargin.engines import EngineName, available_cores, check_engine
from safemargin.errors import InvalidInput
from safemargin.policies.base import ScoreKind
from safemargin.policies.proxies import Proxy
from safemargin.study.forecast import Forecast, Range, forecast, read_costs
from safemargin.study.pilot import Pilot
from safemargin.study.store import DATABASE, Store
from safemargin.study.study import MakeEnvironment, Study, check_collect
from safemargin.study.suggestions import Saving, savings

MOMENTS = 12
"""So many are measured, or one for each worker where that is more."""

SECONDS = 60.0
"""After so long no further moment is begun."""


@dataclass(frozen=True, slots=True)
class CostPlan:
    """What a collection will cost: the forecast, and how long a person waits for it."""

    environment: str
    policy: str
    study: str | None
    """The folder of the study that goes on; None for a new one."""
    forecast: Forecast
    workers: int
    seconds: Range
    """From the command to its end, with so many workers."""
    preparation_seconds: float
    """Of these: examining the environment, and choosing moments."""
    worst: tuple[float, float] | None
    """Trials and seconds if every estimate ran to `max_trials`; None where trials are fixed."""
    savings: tuple[Saving, ...]
    pilot_moments: int
    """Measured for the plan, and thrown away."""
    pilot_seconds: float
    interrupted: bool
    """The pilot was stopped by Ctrl-C."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def plan_study(
    path: str | Path | None,
    env: str | MakeEnvironment,
    policy: Any,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    natural: int = 500,
    spread: int = 500,
    env_arguments: Mapping[str, Any] | None = None,
    scores: ScoreKind | None = None,
    proxies: Sequence[Proxy | str] = (),
    workers: int | None = None,
    engine: EngineName | None = None,
    address: str | None = None,
    gpus_per_worker: float = 0.0,
    moments: int | None = None,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> CostPlan:
    """What `Study.create` and `Study.collect` with the same arguments would cost; writes nothing.

    A few moments are measured: `moments`, None for 12 or one for each worker, and none is begun
    after `seconds`; Ctrl-C gives the plan from what is there. Where `path` holds a study already,
    its own moments count, and the plan is for what is left of it.
    """
    check_collect(natural, spread, workers)
    place: dict[str, Any] = {
        "workers": workers,
        "address": address,
        "gpus_per_worker": gpus_per_worker,
    }
    check_engine(engine, **place)
    if moments is not None and moments < 2:
        raise InvalidInput(f"a plan takes 2 moments at least, got {moments}")
    if not seconds > 0:
        raise InvalidInput(f"the seconds of a plan must be above 0, got {seconds:g}")
    progress = progress or Silence()
    begun = Path(path) if path is not None and (Path(path) / DATABASE).exists() else None
    with contextlib.ExitStack() as stack:
        folder = begun or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="safemargin-plan-"))
        )
        began = time.monotonic()
        study = stack.enter_context(
            Study.create(
                folder,
                env,
                policy,
                settings,
                env_arguments=env_arguments,
                scores=scores,
                proxies=proxies,
                progress=progress,
            )
        )
        examined = 0.0 if begun else time.monotonic() - began
        with contextlib.closing(Store.open(folder)) as store:
            done = read_costs(store, study.settings)
        wanted: dict[Phase, int] = {"natural": natural, "spread": spread}
        hands = workers or available_cores()
        pilot = Pilot(
            study.settings,
            study.default_proxy,
            wanted,
            done,
            moments=max(MOMENTS, hands) if moments is None else moments,
        )
        if pilot.todo:
            with study.open_engine(engine, **place) as started:
                hands = started.workers
                pilot.run(started, seconds=seconds, progress=progress)
        found = forecast(pilot.sample(), study.settings, wanted, done=done)
        # One worker measures a moment, so more workers than moments are of no use.
        hands = max(1, min(hands, sum(found.left.values())))
        preparation = examined + pilot.choosing_seconds * (natural + spread)

        def waiting(worker_seconds: float) -> float:
            return preparation + worker_seconds / hands

        return CostPlan(
            environment=study.environment["name"],
            policy=study.policy["description"],
            study=None if begun is None else str(begun),
            forecast=found,
            workers=hands,
            seconds=found.worker_seconds.through(waiting),
            preparation_seconds=preparation,
            worst=_worst(found, study.settings, waiting),
            savings=savings(found, study.settings, waiting=waiting, begun=begun is not None),
            pilot_moments=len(pilot.measured),
            pilot_seconds=pilot.seconds,
            interrupted=pilot.interrupted,
        )


def _worst(
    found: Forecast, settings: Settings, waiting: Callable[[float], float]
) -> tuple[float, float] | None:
    """Trials and seconds if every estimate ran to the cap."""
    if settings.trial_plan == "fixed":
        return None
    trials = seconds = 0.0
    for stage in found.stages:
        most = settings.max_trials * stage.pieces if stage.n else 0
        trials += most
        seconds += stage.worker_seconds.expected * (most / stage.trials.expected if most else 1.0)
    return trials, waiting(seconds)
