"""Where rollouts run: in this process, or in several worker processes."""

from __future__ import annotations

from safemargin.engines.base import Engine, EpisodeTask, Job, MomentTask, Piece, Task
from safemargin.engines.local import LocalEngine
from safemargin.engines.processes import ProcessEngine

__all__ = [
    "Engine",
    "EpisodeTask",
    "Job",
    "LocalEngine",
    "MomentTask",
    "Piece",
    "ProcessEngine",
    "Task",
    "make_engine",
]


def make_engine(job: Job, workers: int) -> Engine:
    """One worker runs here; more run in processes of their own."""
    return LocalEngine(job) if workers == 1 else ProcessEngine(job, workers)
