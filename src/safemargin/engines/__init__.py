"""Where rollouts run: in this process, in worker processes, on Ray, or in JAX on an accelerator.

`base` defines jobs, tasks, pieces and the worker that every engine uses. Each engine has its own
module: `local`, `processes`, `ray` and `jax`; `worker` is the program that processes and Ray run
elsewhere, and `tasks` repeats tasks whose worker died. `proof` compares what every worker does with
what the driver does, and `surroundings` names the reasons for a difference. Add a new engine to
`make_engine`.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, get_args

from safemargin.engines.base import (
    Engine,
    EpisodeTask,
    FeaturesTask,
    Job,
    MomentTask,
    Piece,
    Task,
    available_cores,
    in_jax,
)
from safemargin.engines.local import LocalEngine
from safemargin.engines.processes import ProcessEngine
from safemargin.errors import InvalidInput, did_you_mean

__all__ = [
    "Device",
    "Engine",
    "EngineName",
    "EpisodeTask",
    "FeaturesTask",
    "Job",
    "LocalEngine",
    "MomentTask",
    "Piece",
    "ProcessEngine",
    "Task",
    "available_cores",
    "check_engine",
    "make_engine",
]

Device = Literal["cpu", "gpu"]
EngineName = Literal["local", "processes", "ray", "jax"]


def check_engine(
    engine: EngineName | None = None,
    *,
    workers: int | None = None,
    address: str | None = None,
    gpus_per_worker: float = 0.0,
    device: Device | None = None,
) -> None:
    """Refuse options that no engine supports, before any work starts."""
    if engine is not None and engine not in get_args(EngineName):
        raise InvalidInput(
            f"engine {engine!r} is unknown; {did_you_mean(engine, get_args(EngineName))}"
        )
    if device is not None and engine not in (None, "jax"):
        raise InvalidInput(f"device is for engine 'jax', got engine {engine!r}")
    if "jax" in (engine, "jax" if device else None) and workers is not None:
        raise InvalidInput(
            f"engine 'jax' takes as many lanes as its device has room for, got workers={workers}; "
            "leave workers out"
        )
    if engine == "local" and workers not in (None, 1):
        raise InvalidInput(
            f"engine 'local' is one worker, got {workers}; leave engine or workers out"
        )
    if engine != "ray" and (address is not None or gpus_per_worker):
        option = "gpus_per_worker" if address is None else "address"
        raise InvalidInput(f"{option} is for engine 'ray', got engine {engine or 'processes'!r}")
    if not gpus_per_worker >= 0 or (gpus_per_worker > 1 and gpus_per_worker % 1):
        raise InvalidInput(
            f"gpus_per_worker must be a part of one GPU or a whole number, got {gpus_per_worker:g}"
        )
    if engine == "ray":
        importlib.import_module("safemargin.engines.ray")  # MissingExtra where there is no Ray
    if engine == "jax" or device is not None:
        from safemargin.core.jax_library import devices

        devices(device)  # MissingExtra where there is no JAX, EngineFault where no such device


def make_engine(
    job: Job,
    name: EngineName | None = None,
    *,
    workers: int | None = None,
    address: str | None = None,
    gpus_per_worker: float = 0.0,
    device: Device | None = None,
) -> Engine:
    """Make the named engine; by default one worker runs in this process, several in processes.

    Without a name and a number of workers, a study in JAX runs on engine 'jax'. `workers` defaults
    to one for each core of the machine or cluster. `address` (the cluster to join) and
    `gpus_per_worker` (each worker's share of a GPU) are for Ray only, `device` is for JAX.
    """
    on: Any = {"workers": workers, "address": address, "gpus_per_worker": gpus_per_worker}
    check_engine(name, **on, device=device)
    if name == "jax" or device is not None or (name is None and workers is None and in_jax(job)):
        from safemargin.engines.jax import JaxEngine

        return JaxEngine(job, device=device)
    if name == "ray":
        from safemargin.engines.ray import RayEngine

        return RayEngine(job, workers, address=address, gpus_per_worker=gpus_per_worker)
    workers = workers or available_cores()
    if name == "local" or (name is None and workers == 1):
        return LocalEngine(job)
    return ProcessEngine(job, workers)
