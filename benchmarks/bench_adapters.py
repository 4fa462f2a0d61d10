"""The time that each adapter takes for one observation, beside ONNX in the same run.

    python benchmarks/bench_adapters.py RECORDS [LIBRARY …]

appends a line to RECORDS for each agent whose library is installed here; `make test-adapters` runs
it in the environment of each library and writes the table into docs/policies.md. The networks are
small (16 hidden units, or what a library makes by itself), so that the overhead shows. CPU time.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.small_policies import write_onnx  # noqa: E402

from safemargin.policies import Policy, load_policy  # noqa: E402

ROUNDS, CALLS = 15, 60


def _tests(library: str) -> Any:
    """The module with the tests of a library, which builds its agents."""
    path = ROOT / "tests" / "adapters" / f"test_{library}.py"
    spec = importlib.util.spec_from_file_location(f"agents_of_{library}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rllib(folder: Path) -> Policy:
    import ray

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    algorithm = _tests("rllib")._config("PPO").build_algo()
    algorithm.save_to_path(str(folder / "checkpoint"))
    algorithm.stop()
    ray.shutdown()
    return load_policy(f"rllib:{folder / 'checkpoint'}")


def _sbx(folder: Path) -> Policy:
    _tests("sbx").train("PPO").save(folder / "model.zip")
    return load_policy(f"sbx:{folder / 'model.zip'}")


def _cleanrl(folder: Path) -> Policy:
    import torch

    torch.save(_tests("cleanrl").trained("ppo").state_dict(), folder / "ppo.cleanrl_model")
    return load_policy(f"cleanrl:{folder / 'ppo.cleanrl_model'}")


def _sb3(folder: Path) -> Policy:
    from stable_baselines3 import PPO

    network = {"net_arch": [16]}
    PPO("MlpPolicy", "CartPole-v1", policy_kwargs=network, device="cpu").save(folder / "a.zip")
    return load_policy(folder / "a.zip")


AGENTS: dict[str, tuple[str, Callable[[Path], Policy]]] = {
    "Stable-Baselines3": ("stable_baselines3", _sb3),
    "RLlib": ("ray.rllib", _rllib),
    "SBX": ("sbx", _sbx),
    "CleanRL (PyTorch)": ("torch", _cleanrl),
    "Tianshou": ("tianshou", lambda _: load_policy(_tests("tianshou").build("PPO")[0])),
    "TorchRL": ("torchrl", lambda _: load_policy(_tests("torchrl").build("PPO"))),
    "skrl": ("skrl", lambda _: load_policy(_tests("skrl").trained("PPO")[0])),
}
"""Library → the module that must be there, and what makes a PPO agent of CartPole."""


def seconds(policy: Policy, observation: Any) -> float:
    """Return the CPU seconds of one call."""
    began = time.process_time()
    for _ in range(CALLS):
        policy.scores(observation)
    return (time.process_time() - began) / CALLS


def measure(make: Callable[[Path], Policy]) -> dict[str, float]:
    """Return the microseconds of an agent and of ONNX, taken in turn."""
    with tempfile.TemporaryDirectory() as folder:
        agent = make(Path(folder))
        onnx = load_policy(write_onnx(Path(folder) / "agent.onnx", output="logits"))
        seen = gym.make("CartPole-v1").reset(seed=0)[0][None]
        seconds(agent, seen), seconds(onnx, seen)  # warm up
        rounds = [(seconds(agent, seen), seconds(onnx, seen)) for _ in range(ROUNDS)]
    ours, beside = (float(np.median(each)) * 1e6 for each in zip(*rounds, strict=True))
    return {"microseconds": ours, "onnx_microseconds": beside}


def main(records: Path, *libraries: str) -> None:
    """Measure every agent whose library is here."""
    for library, (module, make) in AGENTS.items():
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        if libraries and library not in libraries:
            continue
        found = {"speed": library, **measure(make)}
        print(json.dumps(found))
        with records.open("a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), *sys.argv[2:])
