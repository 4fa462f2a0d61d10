"""What if the agent had erred at this step? Trials that are measured and played on demand."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np

from safemargin.core.plain import finite_or_none
from safemargin.core.records import Floats, Measurement, Moment
from safemargin.engines import Job, MomentTask, available_cores
from safemargin.engines.processes import ProcessEngine
from safemargin.errors import DiagnosisWrong, InvalidInput, NoPictures, SafemarginError
from safemargin.replay.pictures import Camera
from safemargin.replay.recordings import Recording, Recordings
from safemargin.replay.trials import PlayedTrial, TrialPlayer

KEPT = 8
"""This many sets of played trials are kept; each takes a few megabytes."""

ROLES = ("best", "median", "worst")
State = Literal["running", "done", "failed"]


@dataclass(eq=False, kw_only=True)
class Task:
    """Something done in the background that may fail."""

    state: State = "running"
    fault: str | None = None

    def fail(self, fault: str) -> None:
        """Give up, and say why."""
        self.state, self.fault = "failed", fault


AnyTask = TypeVar("AnyTask", bound=Task)


@dataclass(eq=False)
class WhatIf(Task):
    """The trials of one step: the study's, or measured on demand."""

    recording: Recording
    step: int
    stored: bool = False
    measured: dict[int, Measurement] = field(default_factory=dict)  # by n

    def add(self, measurement: Measurement) -> None:
        """Add the trials of one n."""
        n = measurement.estimate.n
        self.measured = {**self.measured, n: measurement}  # a new one: other threads read it

    def losses(self, n: int) -> Floats:
        """Compare each trial with its own unperturbed run, or with the only one there is."""
        return self.measured[n].unperturbed - self.measured[n].perturbed

    def roles(self, n: int) -> dict[str, int]:
        """Return the indices of the best, the median and the worst trial."""
        order = np.argsort(self.losses(n), kind="stable")
        chosen = order[0], order[(len(order) - 1) // 2], order[-1]
        return dict(zip(ROLES, map(int, chosen), strict=True))

    def to_dict(self, n_values: Sequence[int]) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "stored": self.stored,
            "state": self.state,
            "fault": self.fault,
            "n_values": list(n_values),
            "results": [
                {
                    **describe_estimate(found),
                    "losses": self.losses(n).tolist(),
                    "roles": self.roles(n),
                }
                for n, found in sorted(self.measured.items())
            ],
        }


def describe_estimate(measurement: Measurement) -> dict[str, Any]:
    """Return an estimate as plain values for JSON."""
    estimate = measurement.estimate
    return {
        "n": estimate.n,
        "mean": estimate.mean,
        "half_width": finite_or_none(estimate.half_width),
        "exact": estimate.exact,
    }


@dataclass(eq=False)
class Showing(Task):
    """The best, the median and the worst trial of one n, as far as they are played."""

    what_if: WhatIf
    n: int
    takes: dict[str, PlayedTrial] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        losses, returns = self.what_if.losses(self.n), self.what_if.measured[self.n].perturbed
        return {
            "state": self.state,
            "fault": self.fault,
            "takes": {
                role: {
                    "number": take.number,
                    "random_steps": take.random_steps,
                    "rewards": take.rewards.tolist(),
                    "frames": len(take.pictures),
                    "loss": float(losses[take.number]),
                    "repeats": take.discounted == float(returns[take.number]),
                }
                for role, take in self.takes.items()
            },
        }


class WhatIfs:
    """Measures and plays trials in the background, one step and one showing at a time.

    Trials run in worker processes, like those of a collection, and are played in a thread that
    owns its environment. Nothing is written to the study.
    """

    def __init__(self, recordings: Recordings, make_camera: Callable[[], Camera]) -> None:
        self._recordings = recordings
        self._make_camera = make_camera
        self._lock = threading.Lock()
        self._what_ifs: dict[tuple[str, int], WhatIf] = {}
        self._showings: OrderedDict[tuple[str, int, int], Showing] = OrderedDict()
        self._to_measure: queue.Queue[WhatIf | None] = queue.Queue()  # None: stop
        self._to_play: queue.Queue[Showing | None] = queue.Queue()
        self._job = lru_cache(maxsize=1)(recordings.study.job)
        self._job_lock = threading.Lock()
        self._engine: ProcessEngine | None = None
        self._player: TrialPlayer | None = None  # of the thread that plays
        self._closed = threading.Event()
        works = self._measure_all, self._play_all
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def known(self, name: str, step: int) -> WhatIf:
        """Return an earlier question; InvalidInput where it was not asked."""
        with self._lock:
            found = self._what_ifs.get((name, step))
        if found is None:
            raise InvalidInput(f"nobody has asked what if at step {step} of {name} yet")
        return found

    def ask(self, recording: Recording, step: int) -> WhatIf:
        """Return what is known about a step; where that is nothing, or it failed, start trials."""
        with self._lock:
            found = self._what_ifs.get((recording.name, step))
            if found is not None and found.state != "failed":
                return found
            what_if = self._stored(recording, step) or WhatIf(recording, step)
            self._what_ifs[recording.name, step] = what_if
            if what_if.state == "running":
                self._to_measure.put(what_if)
            return what_if

    def known_showing(self, name: str, step: int, n: int) -> Showing:
        """Return an earlier showing; InvalidInput where it was not asked for."""
        with self._lock:
            found = self._showings.get((name, step, n))
        if found is None:
            raise InvalidInput(f"the trials with n = {n} at step {step} of {name} are not played")
        return found

    def show(self, what_if: WhatIf, n: int) -> Showing:
        """Return the trials of one n with pictures; start playing them where they are missing."""
        if n not in what_if.measured:
            raise InvalidInput(f"there are no trials with n = {n} at step {what_if.step} yet")
        key = what_if.recording.name, what_if.step, n
        with self._lock:
            showing = self._showings.get(key)
            if showing is None or showing.state == "failed":
                showing = self._showings[key] = Showing(what_if, n)
                while len(self._showings) > KEPT:
                    self._showings.popitem(last=False)
                self._to_play.put(showing)
            return showing

    def stop(self) -> None:
        """Start nothing more; trials under way are dropped."""
        self._closed.set()
        self._to_measure.put(None)
        self._to_play.put(None)
        with self._lock:
            if self._engine is not None:
                self._engine.interrupt()

    def close(self, *, seconds: float = 5.0) -> bool:
        """Stop; return whether all work has ended within this many seconds.

        Each thread frees what it made: no other may touch an engine or an environment in use.
        """
        self.stop()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _stored(self, recording: Recording, step: int) -> WhatIf | None:
        """Return what the study measured; None unless this is its moment, with all n."""
        if self._recordings.moment(recording.name) != step:
            return None
        measured = self._recordings.measured(recording.name)
        if len(measured) < len(self._recordings.study.settings.n_values):
            return None
        by_n = {measurement.estimate.n: measurement for measurement in measured}
        return WhatIf(recording, step, True, by_n, state="done")

    # -- in the background ---------------------------------------------------------------------

    def _work(self, tasks: queue.Queue[AnyTask | None], do: Callable[[AnyTask], None]) -> None:
        """Do one task after another until None comes; failures are for the page to show."""
        while (task := tasks.get()) is not None:
            if self._closed.is_set() or not tasks.empty():  # somebody looks at another step by now
                task.fail("dropped for a later question")
                continue
            try:
                do(task)
            except SafemarginError as error:
                task.fail(str(error))
            except Exception as error:  # noqa: BLE001 — for the page, not for the terminal
                task.fail(f"{type(error).__name__}: {error}")

    def _measure_all(self) -> None:
        self._work(self._to_measure, self._measure)
        self._drop_engine()

    def _measure(self, what_if: WhatIf) -> None:
        recording = what_if.recording
        moment = Moment(recording.episode.key, what_if.step)
        tasks = [
            MomentTask(recording.episode, moment, (n,), recording.earlier_lives)
            for n in self._recordings.study.settings.n_values
        ]
        engine = self._engine
        if engine is None:
            engine = ProcessEngine(self._the_job(), min(available_cores(), len(tasks)))
            with self._lock:
                self._engine = engine
        if not self._closed.is_set():  # while the policy was loaded
            try:
                for piece in engine.run(tasks):
                    if isinstance(piece.result, tuple):
                        if isinstance(piece.result[1], DiagnosisWrong):
                            raise piece.result[1]
                        what_if.add(piece.result[1])
            except BaseException:
                self._drop_engine()  # its workers may be busy
                raise
        what_if.state = "failed" if self._closed.is_set() else "done"

    def _drop_engine(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _play_all(self) -> None:
        self._work(self._to_play, self._play)
        if self._player is not None:
            self._player.close()

    def _play(self, showing: Showing) -> None:
        if self._player is None:
            camera = None
            with contextlib.suppress(NoPictures):  # the episode's own pictures already say why
                camera = self._make_camera()
            self._player = TrialPlayer(self._the_job(), camera)
        player, what_if = self._player, showing.what_if
        for role, number in what_if.roles(showing.n).items():
            take = player.play(
                what_if.recording,
                what_if.step,
                showing.n,
                number,
                exact=what_if.measured[showing.n].estimate.exact,
                stop=self._closed.is_set,
            )
            if self._closed.is_set():
                return
            showing.takes = {**showing.takes, role: take}
        showing.state = "done"

    def _the_job(self) -> Job:
        with self._job_lock:  # one thread at a time, so that it is made once
            return self._job()
