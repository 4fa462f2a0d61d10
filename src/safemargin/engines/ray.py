"""The engine on Ray: workers on this machine, or on all machines of a cluster.

Each worker is an actor with its own environment and policy. It gets one task at a time (in JAX, one
bundle), and only once it has started. One that dies, alone or with its node, is replaced and its
task repeated. Only the driver writes the study.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from safemargin.core.version import versions_in_use
from safemargin.engines.base import Job, Piece, Task, available_cores, in_jax
from safemargin.engines.processes import ADVICE
from safemargin.engines.proof import Proof, Witness
from safemargin.engines.tasks import ATTEMPTS, Attempt, TaskQueue
from safemargin.errors import EngineFault, InvalidInput, MissingExtra, errors_as

# Read when Ray is imported: otherwise `uv run` would ship the working directory to the nodes.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
try:
    import ray
    import ray._private.worker
except ImportError as error:
    raise MissingExtra("the Ray engine", extra="ray") from error

CONNECT_SECONDS = 15.0
"""How long an address may take to answer; Ray would keep trying for minutes."""
JOIN_SECONDS = 60.0
"""How long joining a cluster may take; most of it is importing Ray, on a busy machine."""
LISTEN_SECONDS = 5.0
"""How long to wait for answers of workers before asking whether the head node still lives."""
HEAD_SECONDS = 30.0
"""How long the head node may be away. After 60 s, Ray ends this process without a word of ours."""
START_SECONDS = 120.0
"""How long to wait for the cluster to start the first worker."""
OBJECT_STORE_BYTES = 256 * 2**20
"""Object store of a local Ray: it holds only the job; the default is a third of the memory."""
CLUSTER_ADVICE = (
    "a cluster keeps the variables, the folder and the files that it was started with: start it "
    "again with those of this process, or set them in a script by "
    "ray.init(address, runtime_env={'env_vars': {...}}) before it collects"
)
"""What to do if a worker in a cluster does something else."""
PROBE = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); ray.shutdown()"


@dataclass(eq=False)
class _Actor:
    """One worker in the cluster, seen from the driver."""

    handle: Any
    answer: Any
    """The pending answer to its last call; None while idle."""
    node: str = ""
    """Where it runs; empty until the cluster has found room for it."""
    attempt: Attempt | None = None
    failed_starts: int = 0
    """How many of its predecessors died while starting."""


class RayEngine:
    """Runs tasks in actors: on its own local Ray, on a cluster, or on the Ray already in use."""

    def __init__(
        self,
        job: Job,
        workers: int | None = None,
        *,
        address: str | None = None,
        gpus_per_worker: float = 0.0,
    ) -> None:
        self._actors: list[_Actor] = []
        self._in_jax = in_jax(job)
        joins = ray.is_initialized() or address is not None
        self._witness = Witness(job, advice=CLUSTER_ADVICE if joins else ADVICE)
        self._connection = contextlib.ExitStack()
        if not ray.is_initialized():
            self._connection.enter_context(_connected(address, workers))
        try:
            capacity = _capacity(gpus_per_worker)
            if capacity == 0:
                needed = f"1 CPU and {gpus_per_worker:g} GPU" if gpus_per_worker else "1 CPU"
                raise EngineFault(
                    f"no node of the Ray cluster has {needed} for a worker; it has "
                    f"{_resources(ray.cluster_resources())} in all"
                )
            self.workers = workers or capacity
            self._head: str = ray.get_runtime_context().gcs_address
            self._job = ray.put(cloudpickle.dumps(job))
            self._class = ray.remote(_actor_class()).options(
                num_cpus=1, num_gpus=gpus_per_worker, max_restarts=0, max_task_retries=0
            )
        except BaseException:
            self.close()
            raise

    def proof(self) -> Proof:
        """Return what the environment and the policy do in the driver."""
        return self._witness.own

    def run(self, tasks: Iterable[Task]) -> Iterator[Piece]:
        """Yield the pieces as their tasks finish."""
        queue = TaskQueue(tasks, together=self._in_jax)
        pieces: list[Piece] = []
        while True:
            self._hand_out(queue)  # first, so that no actor is idle while pieces are stored
            yield from pieces
            if not any(actor.attempt for actor in self._actors) and not queue.has(1):
                return
            pieces = self._listen(self._next_answer(), queue)

    def _hand_out(self, queue: TaskQueue) -> None:
        """Give every idle actor a task, and start actors while there are more tasks."""
        for actor in self._actors:
            if actor.answer is None:
                actor.attempt = queue.next()
                if actor.attempt is None:
                    return
                # Bytes, because Ray would pass arrays as read-only views.
                actor.answer = actor.handle.work.remote(pickle.dumps(actor.attempt.task))
        starting = sum(actor.attempt is None for actor in self._actors)
        while len(self._actors) < self.workers and queue.has(starting + 1):
            self._start()
            starting += 1

    def _start(self, failed_starts: int = 0) -> None:
        _refuse_without_head(self._head)  # Ray would wait for it, and end this process
        handle = self._class.remote()
        answer = handle.arrive.remote([path or os.getcwd() for path in sys.path])
        self._actors.append(_Actor(handle, answer, failed_starts=failed_starts))

    def _next_answer(self) -> _Actor:
        """Return the first actor to answer; raise EngineFault if none finds room in time."""
        asked = {actor.answer: actor for actor in self._actors if actor.answer is not None}
        any_started = any(actor.node for actor in asked.values())
        deadline = math.inf if any_started else time.monotonic() + START_SECONDS
        ready: list[Any] = []
        while not ready and (left := deadline - time.monotonic()) > 0:
            ready, _ = ray.wait(list(asked), timeout=min(left, LISTEN_SECONDS))
            if not ready:
                _refuse_without_head(self._head)
        if not ready:
            has, free = _resources(ray.cluster_resources()), _resources(ray.available_resources())
            raise EngineFault(
                f"no Ray worker could start within {START_SECONDS:g} s: the cluster has {has}, of "
                f"which {free} are free; try again when others are done"
            )
        actor = asked[ready[0]]
        self._actors.remove(actor)  # and to the end: Ray checks the first ones first, and the
        self._actors.append(actor)  # others must not starve
        return actor

    def _listen(self, actor: _Actor, queue: TaskQueue) -> list[Piece]:
        """Return the pieces of a finished task; none if the actor is still starting, or died."""
        try:
            answer = ray.get(actor.answer)
        except ray.exceptions.RayError as error:
            self._replace(actor, queue, _cause_of_death(error))
            return []
        if not actor.node:
            actor.node, found = answer
            _check_versions(actor.node, found)
            actor.answer = actor.handle.work.remote(self._job)
            return []
        worker = f"the Ray worker on node {actor.node}"
        pieces = [piece for each in answer for piece in self._witness.read(each, worker=worker)]
        actor.answer = actor.attempt = None
        actor.failed_starts = 0
        return pieces

    def _replace(self, actor: _Actor, queue: TaskQueue, reason: str) -> None:
        self._actors.remove(actor)
        _kill(actor)
        if actor.attempt is not None:
            queue.retry(
                actor.attempt,
                worker="a Ray worker",
                reason=reason,
                advice="running in this process (--engine local)",
            )
        elif actor.failed_starts + 1 < ATTEMPTS:
            self._start(actor.failed_starts + 1)
        elif self.workers > 1:
            self.workers -= 1  # its node may be at fault; the others continue
        else:
            raise EngineFault(
                f"no Ray worker lives until its first task ({reason}); running in this process "
                "(--engine local) shows more"
            )

    def close(self) -> None:
        """Stop the workers; a Ray started here ends, a cluster keeps running."""
        for actor in self._actors:
            _kill(actor)
        self._actors.clear()
        self._connection.close()


# -- in the worker -----------------------------------------------------------------------------


def _actor_class() -> type:
    """Make the class of the actors in a function, so that it is pickled by value.

    A node without safemargin could not load a class of this module, and Ray's error for that is a
    page long.
    """

    class SafemarginWorker:
        def arrive(self, path: list[str]) -> tuple[str, dict[str, str] | str]:
            """Return the node, and its versions or why safemargin cannot be imported there."""
            sys.path += [folder for folder in path if folder not in sys.path]
            node = ray.util.get_node_ip_address()
            try:
                from safemargin.core.version import versions_in_use
                from safemargin.engines.worker import Servant
            except ImportError as error:
                return node, str(error)
            self.servant = Servant(f"the Ray node {node}")
            return node, versions_in_use()

        def work(self, message: bytes) -> list[bytes]:
            return list(self.servant.answers(message))

    return SafemarginWorker


def _check_versions(node: str, found: Mapping[str, str] | str) -> None:
    """Raise EngineFault if a node lacks safemargin or has other versions of the libraries."""
    if isinstance(found, str):
        raise EngineFault(
            f"safemargin cannot be imported on the Ray node {node} ({found}); install the same "
            "versions on all nodes"
        )
    differences = version_differences(versions_in_use(), found)
    if differences:
        raise EngineFault(
            f"the Ray node {node} would give different results from this machine "
            f"({'; '.join(differences)}); install the same versions on all nodes"
        )


def version_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """List the libraries that driver and node have in different versions."""
    # Ray itself checks the Python version; its last digit does not affect results.
    return [
        f"{name} {theirs[name]} there, {version} here"
        for name, version in ours.items()
        if name != "python" and theirs.get(name, version) != version
    ]


# -- the cluster -------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(address: str | None, workers: int | None) -> Iterator[None]:
    """Connect to Ray silently, and undo all side effects in the end."""
    options: dict[str, Any] = {}
    if address is not None:
        _refuse_unreachable(address)
    else:
        options["num_cpus"] = workers or available_cores()
        options["object_store_memory"] = OBJECT_STORE_BYTES
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    # Ray prints deaths of workers to standard output, whatever log_to_driver says.
    ray._private.worker._worker_logs_enabled = False
    try:
        with (
            errors_as(EngineFault, "Ray could not be started:"),
            _environment_and_signals_kept(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", FutureWarning)  # of Ray, about its own plans
            # For a Ray started here: its workers would otherwise yield to all other programs.
            os.environ.setdefault("RAY_worker_niceness", "0")
            ray.init(
                address or "local",
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                **options,
            )
        yield
    finally:
        ray.shutdown()
        ray._private.worker._worker_logs_enabled = True
        logger.setLevel(level)


@contextlib.contextmanager
def _environment_and_signals_kept() -> Iterator[None]:
    """Undo the side effects of ray.init on environment variables and the SIGTERM handler."""
    before = dict(os.environ)
    on_terminate = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_terminate)


def _refuse_unreachable(address: str) -> None:
    """Raise EngineFault if no Ray cluster answers; ray.init itself cannot be interrupted."""
    if address != "auto":
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdigit()) or "://" in address:
            raise InvalidInput(
                f"address must be HOST:PORT of a Ray cluster, or auto, got {address!r}"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except OSError as error:
            raise EngineFault(
                f"there is no Ray cluster at {address}: {error.strerror or error}"
            ) from error
    try:
        subprocess.run(
            [sys.executable, "-c", PROBE, address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=JOIN_SECONDS,
            check=True,
        )
        return
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        said: bytes = error.stderr or b""
    lines = said.decode(errors="replace").strip().splitlines() or ["it did not answer"]
    reason = re.sub(r"^\[.*?\] (\S+:\d+: )?", "", lines[-1])
    if "AuthToken" in reason:
        reason = (
            "it asks for a token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN if it has its own"
        )
    raise EngineFault(f"the Ray cluster at {address} cannot be joined: {reason}")


def _refuse_without_head(address: str) -> None:
    """Raise EngineFault if the head node does not answer; it may come back within HEAD_SECONDS."""
    deadline = time.monotonic() + HEAD_SECONDS
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise EngineFault(
                    f"the head node of Ray at {address} no longer answers "
                    f"({error.strerror or error}); everything finished so far is kept: start the "
                    "cluster again, and run the same command again to continue"
                ) from error
        time.sleep(1)


def _capacity(gpus_per_worker: float) -> int:
    """Return how many workers fit into the cluster when it is otherwise idle."""
    capacity = 0
    for has in (node["Resources"] for node in ray.nodes() if node["Alive"]):
        # 0.3 GPUs have room for three workers with 0.1 each; floats would make it two.
        by_gpu = has.get("GPU", 0) / gpus_per_worker + 1e-9 if gpus_per_worker else math.inf
        capacity += int(min(has.get("CPU", 0), by_gpu))
    return capacity


def _resources(of: Mapping[str, float]) -> str:
    return f"{of.get('CPU', 0):g} CPUs and {of.get('GPU', 0):g} GPUs"


def _cause_of_death(error: Exception) -> str:
    """Return the last line of Ray's message, without its advice."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[-1].partition(" Some common causes")[0], 240, placeholder=" …")


def _kill(actor: _Actor) -> None:
    with contextlib.suppress(Exception):  # it may be dead, or Ray may be
        ray.kill(actor.handle)
