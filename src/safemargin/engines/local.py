"""The local engine: tasks run one after another in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from safemargin.engines.base import Job, Piece, Task, Worker
from safemargin.engines.proof import Proof, prove


class LocalEngine:
    """Runs tasks in this process."""

    workers = 1

    def __init__(self, job: Job) -> None:
        self._job = job
        self._worker: Worker | None = None
        self._proof: Proof | None = None

    def proof(self) -> Proof:
        """Return what the environment and the policy do in this process."""
        if self._proof is None:
            self._proof = prove(self._job, driver=True)
        return self._proof

    def run(self, tasks: Iterable[Task]) -> Iterator[Piece]:
        """Yield the pieces in the order of the tasks."""
        if self._worker is None:
            self.proof()
            self._worker = Worker(self._job)
        for task in tasks:
            yield from self._worker.run(task)

    def close(self) -> None:
        """Close the environment."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
