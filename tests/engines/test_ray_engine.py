"""What only the engine on Ray must do: start one or join one, and leave everything as it was."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from helpers.commands import collect as collect_arguments
from helpers.commands import let_ctrl_c_through
from helpers.jobs import ENOUGH, a_job, episodes_of, keys, wait_until
from helpers.paths import TESTS
from helpers.studies import contents, estimates_in
from helpers.worlds import make_branching

from safemargin.cli import main
from safemargin.errors import EngineFault, InvalidInput

ray: Any = pytest.importorskip("ray", reason="ray is not installed: pip install 'safemargin[ray]'")

from safemargin.engines import ray as engine_module  # noqa: E402 — needs Ray
from safemargin.engines.ray import RayEngine, version_differences  # noqa: E402

OWN_RAY = """
import logging, os, signal, sys
sys.path[:0] = [sys.argv[2]]
from pathlib import Path
from helpers.jobs import Kill, make_gated
from helpers.studies import create

def state():
    logger = logging.getLogger("ray")
    return dict(os.environ), signal.getsignal(signal.SIGTERM), logging.root.handlers, logger.level

import safemargin.engines.ray
before = state()
folder = Path(sys.argv[1])
kill = Kill(folder / "deaths", 1)
with create(folder / "study", kill.world(lambda: make_gated(str(folder)))) as study, kill:
    print("collecting", flush=True)
    study.collect(natural=14, spread=12, workers=2, engine="ray")
assert state() == before
assert not safemargin.engines.ray.ray.is_initialized()
print("done")
"""


def test_a_ray_of_its_own_survives_kill_9_of_driver_and_worker_quietly(
    finished: Path, tmp_path: Path
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(OWN_RAY))
    command = [sys.executable, str(script), str(tmp_path), str(TESTS)]
    # As at a user's: Ray sees to its own token, and must not speak of it.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    plain["HOME"] = str(tmp_path)
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, env=plain)
    wait_until(
        lambda: estimates_in(tmp_path / "study") >= ENOUGH or driver.poll() is not None,
        "the study did not come halfway",
    )
    driver.kill()
    driver.communicate()
    assert ENOUGH <= estimates_in(tmp_path / "study") < 78
    shutil.rmtree(tmp_path / "deaths")
    (tmp_path / "open").touch()
    again = subprocess.run(command, capture_output=True, text=True, timeout=600, env=plain)
    assert (again.returncode, again.stdout, again.stderr) == (0, "collecting\ndone\n", "")
    assert contents(tmp_path / "study") == contents(finished)


def test_ctrl_c_on_a_cluster_loses_nothing_and_leaves_it_running(
    ray_cluster: str, tmp_path: Path
) -> None:
    options = ["--engine", "ray", "--address", ray_cluster, "--workers", "2"]
    gate = ["--env-arg", f"folder={tmp_path}"]
    arguments = collect_arguments(
        tmp_path / "study", *options, *gate, environment="helpers.jobs:make_gated"
    )
    command = [sys.executable, "-m", "safemargin", *arguments]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=let_ctrl_c_through,
    )
    wait_until(
        lambda: estimates_in(tmp_path / "study") >= ENOUGH or process.poll() is not None,
        "the study did not come halfway",
    )
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does it
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err.strip() == (
        "stopped; everything finished so far is kept, run the same command again to continue"
    )
    assert ENOUGH <= estimates_in(tmp_path / "study") < 78
    (tmp_path / "open").touch()
    again = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert (again.returncode, again.stderr) == (0, "")
    here = [sys.executable, "-m", "safemargin", *collect_arguments(tmp_path / "here")]
    assert subprocess.run(here, capture_output=True, timeout=600).returncode == 0
    assert contents(tmp_path / "study") == contents(tmp_path / "here")


SEVERAL_NODES = """
import os, sys, threading
sys.path[:0] = [sys.argv[2]]
from pathlib import Path
import gymnasium as gym
from ray.cluster_utils import Cluster
from helpers.jobs import ENOUGH, make_gated, wait_until
from helpers.studies import create, estimates_in
from safemargin.errors import EngineFault

class Paid(gym.Wrapper):
    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, reward + float(os.environ.get("PAID_BONUS", 0)), *rest

def gated(name):
    folder = Path(sys.argv[1]) / name
    folder.mkdir()
    return folder, lambda: Paid(make_gated(str(folder)))

node = {"num_cpus": 1, "object_store_memory": 10**8}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
dying = cluster.add_node(**node)
cluster.wait_for_nodes()

folder, make = gated("same")
def kill():
    wait_until(lambda: estimates_in(folder / "study") >= ENOUGH, "the study did not come halfway")
    cluster.remove_node(dying, allow_graceful=False)
    (folder / "open").touch()
killer = threading.Thread(target=kill)
killer.start()
with create(folder / "study", make) as study:
    study.collect(natural=14, spread=12, engine="ray", address=cluster.address)
    print(study.store.meta("target")["workers"], "workers")
killer.join()

cluster.add_node(**node, env_vars={"PAID_BONUS": "1"})
cluster.wait_for_nodes()
folder, make = gated("other")  # and never opened
try:
    with create(folder / "study", make) as study:
        study.collect(natural=14, spread=12, engine="ray", address=cluster.address)
except EngineFault as fault:
    print(fault)
cluster.shutdown()
"""


def test_several_nodes_of_which_one_dies_and_one_runs_another_world(
    finished: Path, tmp_path: Path
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(SEVERAL_NODES))
    command = [sys.executable, str(script), str(tmp_path), str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    workers, fault = done.stdout.strip().splitlines()
    assert workers == "2 workers"
    assert contents(tmp_path / "same" / "study") == contents(finished)
    assert "runs another environment: reward is not the one here" in fault
    assert "there the environment variables PAID_BONUS differ" in fault


OWN_INIT = """
import os, sys, threading
sys.path[:0] = [sys.argv[2]]
from pathlib import Path
import ray
import safemargin.engines.ray as engine
from helpers.jobs import ENOUGH, make_gated, wait_until
from helpers.studies import create, estimates_in
from helpers.worlds import make_branching
from safemargin.errors import EngineFault

folder = Path(sys.argv[1])
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
with create(folder / "kept", make_branching) as study:
    study.collect(natural=14, spread=12, engine="ray")
assert ray.is_initialized() and ray.cluster_resources()["CPU"] == 2
print("kept", flush=True)

engine.LISTEN_SECONDS = engine.HEAD_SECONDS = 0.1
def kill():
    wait_until(lambda: estimates_in(folder / "study") >= ENOUGH, "the study did not come halfway")
    ray._private.worker._global_node.kill_gcs_server()
killer = threading.Thread(target=kill)
killer.start()
with create(folder / "study", lambda: make_gated(str(folder))) as study:
    try:
        study.collect(natural=14, spread=12, engine="ray")
    except EngineFault as fault:
        print(fault)
    killer.join()
    ray.shutdown()
    (folder / "open").touch()
    done = study.status().estimates
    study.collect(natural=14, spread=12, engine="local")
    print(done >= ENOUGH, study.status().estimates > done)
"""


def test_a_script_with_a_ray_of_its_own_keeps_it_and_learns_that_the_head_node_died(
    finished: Path, tmp_path: Path
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(OWN_INIT)
    command = [sys.executable, str(script), str(tmp_path), str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    kept, fault, resumed = done.stdout.splitlines()
    assert kept == "kept"
    assert contents(tmp_path / "kept") == contents(finished)
    assert re.fullmatch(
        r"the head node of Ray at \S+ no longer answers \(Connection refused\); everything "
        "finished so far is kept: start the cluster again, and run the same command again to "
        "continue",
        fault,
    )
    assert resumed == "True True"
    assert contents(tmp_path / "study") == contents(finished)


# -- addresses that lead nowhere -----------------------------------------------------------------


@pytest.mark.parametrize("address", ["cluster", ":6379", "ray://127.0.0.1:10001", "host:port"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(InvalidInput, match="address must be HOST:PORT of a Ray cluster, or auto"):
        RayEngine(a_job(), address=address)


def test_an_address_where_nobody_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--engine", "ray", "--address", "127.0.0.1:1"]
    assert main(collect_arguments(tmp_path, *options)) == 2
    assert capsys.readouterr().err == (
        "safemargin: there is no Ray cluster at 127.0.0.1:1: Connection refused\n"
    )
    monkeypatch.setattr(engine_module, "JOIN_SECONDS", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        with pytest.raises(EngineFault, match=f"the Ray cluster at {address} cannot be joined: "):
            RayEngine(a_job(), address=address)
    assert not ray.is_initialized()


# -- on a cluster --------------------------------------------------------------------------------


def test_more_workers_than_places_hold_no_task_back(ray_in_use: None) -> None:
    engine = RayEngine(a_job(), 5)  # of which three have a CPU
    assert set(episodes_of(engine, 12)) == set(keys(12))
    engine.close()
    assert ray.is_initialized()  # as it was


def test_a_cluster_without_a_free_place(ray_in_use: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RayEngine(a_job()).workers == 3
    with pytest.raises(
        EngineFault,
        match="no node of the Ray cluster has 1 CPU and 2 GPU for a worker; it has 3 CPUs and 1 G",
    ):
        RayEngine(a_job(), gpus_per_worker=2)

    class Greedy:
        def here(self) -> None: ...

    greedy = ray.remote(num_cpus=3)(Greedy).remote()
    ray.get(greedy.here.remote())
    wait_until(lambda: not ray.available_resources().get("CPU"), "the cluster still has free CPUs")
    monkeypatch.setattr(engine_module, "START_SECONDS", 1.0)
    engine = RayEngine(a_job(), 2)
    with pytest.raises(EngineFault, match="within 1 s: the cluster has 3 CPUs .* of which 0 CPUs"):
        episodes_of(engine, 3)
    engine.close()
    ray.kill(greedy)


def test_a_part_of_a_gpu_for_each_worker(ray_in_use: None) -> None:
    engine = RayEngine(a_job(), gpus_per_worker=0.5)
    assert engine.workers == 2  # though there are three CPUs
    assert len(episodes_of(engine, 4)) == 4
    seen = [
        actor.handle.__ray_call__.remote(lambda _: os.environ["CUDA_VISIBLE_DEVICES"])
        for actor in engine._actors
    ]
    assert ray.get(seen) == ["0", "0"]
    engine.close()


def test_other_versions_are_refused(ray_in_use: None, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"python": "3.11.7", "numpy": "2.0", "gymnasium": "1.2", "torch": "2.2"}
    there = {"python": "3.11.9", "numpy": "2.1", "gymnasium": "1.2", "mujoco": "3.1"}
    assert version_differences(here, there) == ["numpy 2.1 there, 2.0 here"]
    monkeypatch.setattr(engine_module, "versions_in_use", lambda: {"numpy": "1.2.3"})
    engine = RayEngine(a_job(), 1)
    with pytest.raises(
        EngineFault,
        match=r"the Ray node \S+ would give different results from this machine \(numpy .* there, "
        r"1.2.3 here\); install the same versions on all nodes",
    ):
        episodes_of(engine, 1)
    engine.close()


class Homesick:
    """Can be loaded nowhere else."""

    def __reduce__(self) -> Any:
        return _only_at_home, (os.getpid(),)


def _only_at_home(pid: int) -> Homesick:
    if os.getpid() != pid:
        raise ModuleNotFoundError("No module named 'home'")
    return Homesick()


def test_a_node_without_the_users_code(ray_in_use: None) -> None:
    here = Homesick()

    def make() -> gym.Env[Any, Any]:
        _ = here
        return make_branching()

    engine = RayEngine(a_job(make), 1)
    with pytest.raises(
        EngineFault,
        match=r"the Ray node \S+ cannot load the environment or the policy "
        r"\(ModuleNotFoundError: No module named 'home'.*all nodes need the code",
    ):
        episodes_of(engine, 1)
    engine.close()


def test_a_worker_that_dies_while_it_starts(ray_in_use: None) -> None:
    driver = os.getpid()

    def make() -> gym.Env[Any, Any]:
        if os.getpid() != driver:
            os._exit(3)
        return make_branching()

    engine = RayEngine(a_job(make), 1)
    with pytest.raises(EngineFault, match=r"no Ray worker lives until its first task \("):
        episodes_of(engine, 1)
    engine.close()
