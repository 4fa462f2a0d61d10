"""What many tests share."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from safemargin.engines import available_cores
from safemargin.policies.proxies import PROXIES

# Worker processes and factories named in text must find tests/worlds.py, as the tests do.
sys.path.insert(0, str(Path(__file__).parent))
hypothesis.settings.register_profile("a busy machine", deadline=None)
hypothesis.settings.load_profile("a busy machine")
# Read when Ray is imported: nobody else may use the cluster of these tests.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}


LONGEST_FIRST = (
    "study/test_corrected.py",
    "study/test_study.py",
    "engines/test_ray_engine.py",
    "engines/test_engines.py",
    "web/test_fleet_browser.py",
    "web/test_explorer_browser.py",
    "test_code_blocks.py",
    "reproduction/test_reproduction_page.py",
    "engines/test_proof.py",
    "cli/test_cli.py",
    "cli/test_watch.py",
    "policies/test_zoo.py",
    "criticality/test_perturbations.py",
    "engines/test_jax_engine.py",
    "study/test_several.py",
    "environments/test_environment_contract.py",
    "slow/",
    "study/test_learning.py",
    "study/test_planning.py",
    "environments/test_lean.py",
    "reproduction/",
    "study/test_critic_proxies.py",
    "criticality/test_batch.py",
    "criticality/test_wrong_diagnosis.py",
    "environments/test_doctor.py",
    "environments/test_atari_vector.py",
    "web/test_explorer.py",
)
"""The files that take longest, so that no core waits for one of them at the end."""


@pytest.hookimpl(optionalhook=True)  # `make test-adapters` does without pytest-xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: many tests wait for a browser, a server or a process."""
    return available_cores() + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that take longest; within a file, the order stays."""
    folder = str(Path(__file__).parent) + os.sep

    def rank(item: pytest.Item) -> int:
        path = str(item.path).removeprefix(folder)
        ranks = (at for at, name in enumerate(LONGEST_FIRST) if path.startswith(name))
        return next(ranks, len(LONGEST_FIRST))

    items.sort(key=rank)


@pytest.fixture(scope="session")
def whole() -> bool:
    """Whether statistical truths are checked at full size (make test-slow)."""
    return os.environ.get("SAFEMARGIN_SLOW") == "1"


@pytest.fixture(scope="session", autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Studies are signed with a key of these tests, not with that of whoever runs them."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        yield folder / "safemargin" / "key"


@pytest.fixture(autouse=True)
def no_proxy_stays() -> Iterator[None]:
    """What a test registers is gone for the next one."""
    before = dict(PROXIES)
    yield
    PROXIES.clear()
    PROXIES.update(before)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    """The address of a Ray cluster with 3 CPUs and 1 GPU (it believes), as a person starts one.

    It ends with the file that needs it: a cluster that nobody uses still takes a second a minute.
    """
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'safemargin[ray]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = f"--head --block --port={address.partition(':')[2]} --num-cpus=3 --num-gpus=1"
    quiet = "--include-dashboard=false --disable-usage-stats --object-store-memory=100000000"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start"]
    head = subprocess.Popen(
        [*command, *options.split(), *quiet.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert head.stdout is not None
    said = []
    for line in head.stdout:
        said.append(line)
        if "Ray runtime started" in line:
            break
    else:
        pytest.fail("Ray did not start: " + "".join(said))
    yield address
    head.terminate()
    head.communicate(timeout=600)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(head.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def ray_in_use(ray_cluster: str) -> Iterator[None]:
    """This process has joined the cluster already, so that each engine need not."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of older ones, about their plans
        ray.init(ray_cluster, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def drawn_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished study of a world that draws, made once for all that look at pages."""
    from helpers.paths import WORLDS

    from safemargin.cli import main

    path = tmp_path_factory.mktemp("pages") / "study"
    arguments = ["--natural", "40", "--spread", "12", "--workers", "1", "--scores", "logits"]
    settings = ["--n", "1,2,4", "--trials", "12", "--opening", "6"]
    command = ["collect", f"{WORLDS}:make_drawn", f"{WORLDS}:always_first", "-o", str(path)]
    assert main([*command, *arguments, *settings]) == 0
    return path


@pytest.fixture(scope="session")
def narrow_study(drawn_study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn study with moments measured only where the proxy is below 50: steps lie above."""
    path = tmp_path_factory.mktemp("narrow") / "study"
    shutil.copytree(drawn_study, path)
    with sqlite3.connect(path / "study.db") as database:
        database.execute(
            "DELETE FROM estimates WHERE (phase, episode, life) IN (SELECT phase, episode, life "
            "FROM moment_proxies WHERE proxy = 'log_prob_range' AND value > 50)"
        )
    database.close()
    return path
