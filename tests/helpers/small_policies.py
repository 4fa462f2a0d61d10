"""Small policies of every adapter, built in the tests."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from safemargin.policies import Policy, load_policy
from safemargin.policies.function import FunctionPolicy

HAVE_TORCH = importlib.util.find_spec("torch") is not None
HAVE_JAX = importlib.util.find_spec("jax") is not None
HAVE_SB3 = HAVE_TORCH and importlib.util.find_spec("sb3_contrib") is not None


def write_onnx(
    path: Path,
    *,
    batch: int | str = "batch",
    output: str = "q_values",
    metadata: dict[str, str] | None = None,
    inputs: int = 4,
    actions: int = 2,
    change: float = 0.0,
    external: bool = False,
) -> Path:
    """An ONNX network inputs → 16 → actions with weights from a fixed seed."""
    random = np.random.default_rng(3)
    arrays = {
        "w1": random.normal(size=(inputs, 16)),
        "b1": random.normal(size=16),
        "w2": random.normal(size=(16, actions)),
        "b2": random.normal(size=actions) + change,
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["observations", "w1", "b1"], ["hidden"]),
            helper.make_node("Tanh", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "w2", "b2"], [output]),
        ],
        "policy",
        [helper.make_tensor_value_info("observations", TensorProto.FLOAT, [batch, inputs])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [batch, actions])],
        [numpy_helper.from_array(array.astype(np.float32), n) for n, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata or {})
    onnx.save_model(
        model, path, save_as_external_data=external, location="weights.data", size_threshold=0
    )
    return path


def linear_scores(observations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.tanh(observations @ weights)


def function_policy(change: float) -> Policy:
    weights = np.random.default_rng(4).normal(size=(4, 2)) + change

    def scores(observations: np.ndarray) -> np.ndarray:
        return linear_scores(observations, weights)

    return FunctionPolicy(scores, kind="q")


def torch_policy(change: float, **options: Any) -> Policy:
    import torch

    torch.manual_seed(5)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 2)
    )
    with torch.no_grad():
        network[0].bias += change
    return load_policy(network, kind="logits", **options)


SB3_CASES = {
    # name: (library, algorithm, policy, environment, kind, options)
    "dqn": ("stable_baselines3", "DQN", "MlpPolicy", "CartPole-v1", "q", {"learning_starts": 8}),
    "qrdqn": ("sb3_contrib", "QRDQN", "MlpPolicy", "CartPole-v1", "q", {"learning_starts": 8}),
    "a2c": ("stable_baselines3", "A2C", "MlpPolicy", "CartPole-v1", "logits", {"n_steps": 8}),
    "ppo": (
        "stable_baselines3",
        "PPO",
        "MlpPolicy",
        "CartPole-v1",
        "logits",
        {"n_steps": 32, "batch_size": 32},
    ),
    "ppo-box": (
        "stable_baselines3",
        "PPO",
        "MlpPolicy",
        "Pendulum-v1",
        "gaussian",
        {"n_steps": 32, "batch_size": 32},
    ),
    "a2c-box": ("stable_baselines3", "A2C", "MlpPolicy", "Pendulum-v1", "gaussian", {"n_steps": 8}),
    "maskableppo": (
        "sb3_contrib",
        "MaskablePPO",
        "MlpPolicy",
        "CartPole-v1",
        "logits",
        {"n_steps": 32, "batch_size": 32},
    ),
    "recurrentppo": (
        "sb3_contrib",
        "RecurrentPPO",
        "MlpLstmPolicy",
        "CartPole-v1",
        "logits",
        {"n_steps": 16, "batch_size": 16},
    ),
    "sac": (
        "stable_baselines3",
        "SAC",
        "MlpPolicy",
        "Pendulum-v1",
        "actions",
        {"learning_starts": 8},
    ),
}


@functools.cache
def sb3_model(name: str) -> Any:
    """A model trained for a handful of steps. Do not change it: tests share it."""
    import torch

    library, algorithm, policy, environment, _, options = SB3_CASES[name]
    network: dict[str, Any] = {"net_arch": [16]}
    if "Lstm" in policy:
        network["lstm_hidden_size"] = 8
    if "buffer_size" not in options and algorithm in ("DQN", "QRDQN", "SAC"):
        options = {**options, "buffer_size": 64}
    make = (
        MaskedCartPole if algorithm == "MaskablePPO" else functools.partial(gym.make, environment)
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small only wait for a second thread
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library's advice about tiny batches
            factory = getattr(importlib.import_module(library), algorithm)
            model = factory(policy, make(), policy_kwargs=network, seed=0, device="cpu", **options)
            return model.learn(64)
    finally:
        torch.set_num_threads(threads)


class MaskedCartPole(gym.Wrapper):
    """CartPole that says that both actions are legal."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def action_masks(self) -> np.ndarray:
        return np.ones(2, dtype=bool)


def sb3_policy(name: str, change: float) -> Policy:
    import torch

    model = sb3_model(name)
    kept = {key: tensor.clone() for key, tensor in model.policy.state_dict().items()}
    try:
        with torch.no_grad():
            for parameter in model.policy.parameters():
                parameter += change
        return load_policy(model)
    finally:
        model.policy.load_state_dict(kept)


def jax_policy(_: Path, change: float) -> Policy:
    """A function of parameters and observations."""
    import jax

    def network(params: Any, observations: Any) -> Any:
        return jax.numpy.tanh(observations @ params["w"]) @ params["v"]

    random = np.random.default_rng(3)
    params = {"w": random.normal(size=(4, 16)) + change, "v": random.normal(size=(16, 2))}
    pair = network, {name: each.astype(np.float32) for name, each in params.items()}
    return load_policy(pair, kind="logits")


def onnx_in_jax(folder: Path, change: float) -> Policy:
    """An ONNX file translated to JAX."""
    from safemargin.policies.jax_loading import as_jax

    found = as_jax(load_policy(write_onnx(folder / f"{change}.onnx", change=change)))
    assert found is not None
    return found


def adapters() -> list[Any]:
    """(build(folder, change) -> Policy, environment id) for the contract suite."""

    def onnx_builder(**options: Any) -> Callable[[Path, float], Policy]:
        def build(folder: Path, change: float) -> Policy:
            return load_policy(write_onnx(folder / f"{change}.onnx", change=change, **options))

        return build

    no_torch = pytest.mark.skipif(not HAVE_TORCH, reason="torch is an extra")
    no_sb3 = pytest.mark.skipif(not HAVE_SB3, reason="stable-baselines3 is an extra")
    cases = [
        pytest.param((onnx_builder(), "CartPole-v1"), id="onnx"),
        pytest.param((onnx_builder(batch=1), "CartPole-v1"), id="onnx-batch-1"),
        pytest.param((onnx_builder(batch=8), "CartPole-v1"), id="onnx-batch-8"),
        pytest.param((lambda _, change: function_policy(change), "CartPole-v1"), id="function"),
        pytest.param(
            (lambda _, change: torch_policy(change), "CartPole-v1"), id="torch", marks=no_torch
        ),
    ]
    no_jax = pytest.mark.skipif(not HAVE_JAX, reason="jax is an extra")
    for kind, build_in_jax in (("jax", jax_policy), ("onnx-in-jax", onnx_in_jax)):
        cases.append(pytest.param((build_in_jax, "CartPole-v1"), id=kind, marks=no_jax))
    for name, case in SB3_CASES.items():
        build = functools.partial(lambda name, _, change: sb3_policy(name, change), name)
        cases.append(pytest.param((build, case[3]), id=f"sb3-{name}", marks=no_sb3))
    return cases


def train_normalised(folder: Path) -> tuple[Any, Any]:
    """Train a model under VecNormalize for a moment; save both as files; return both."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make_vec_env("Pendulum-v1", 1, seed=0))
    model = PPO("MlpPolicy", env, n_steps=256, n_epochs=1, seed=0, device="cpu").learn(512)
    model.save(folder / "model.zip")
    env.training = False
    env.save(str(folder / "vecnormalize.pkl"))
    return model, env


def write_careful_driver(path: Path) -> Path:
    """A policy for `RiskyRoad` that never errs; only its hidden layer knows the risk."""
    hidden = np.array([[1, -1, 0, 0], [0, 0, 1, -1]], np.float32)  # ±risk, ±noise
    scores = np.zeros((4, 2), np.float32)
    scores[2:, 0] = 1  # |noise|
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["observation", "w1", "b1"], ["before"]),
            helper.make_node("Relu", ["before"], ["seen"]),
            helper.make_node("Gemm", ["seen", "w2", "b2"], ["logits"]),
        ],
        "careful",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [
            numpy_helper.from_array(hidden, "w1"),
            numpy_helper.from_array(np.zeros(4, np.float32), "b1"),
            numpy_helper.from_array(scores, "w2"),
            numpy_helper.from_array(np.array([1, 0], np.float32), "b2"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(model, path)
    return path
