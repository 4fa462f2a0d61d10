"""The last hidden layer of every kind of policy, and the short history built from it."""

from __future__ import annotations

import pickle
from pathlib import Path

import gymnasium as gym
import numpy as np
import onnx
import pytest
from helpers.small_policies import HAVE_SB3, write_onnx
from onnx import TensorProto, helper, numpy_helper

from safemargin.policies import load_policy
from safemargin.policies.features import (
    LAGS,
    WINDOW,
    History,
    inputs_along,
    probe_inputs,
    recent,
    with_value,
)
from safemargin.policies.onnx_graph import hidden_tensors

OBSERVATIONS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def save(path: Path, nodes: list[onnx.NodeProto], outputs: list[str], **arrays: np.ndarray) -> Path:
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array.astype(np.float32), n) for n, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(model, path)
    return path


class TestOnnx:
    def test_the_hidden_layer_is_what_the_last_layer_sees(self, tmp_path: Path) -> None:
        policy = load_policy(write_onnx(tmp_path / "agent.onnx"))
        found = policy.features(OBSERVATIONS)
        arrays = {
            each.name: numpy_helper.to_array(each)
            for each in onnx.load(tmp_path / "agent.onnx").graph.initializer
        }
        expected = np.tanh(OBSERVATIONS @ arrays["w1"] + arrays["b1"])
        np.testing.assert_allclose(found.hidden, expected, rtol=1e-5)
        assert found.scores.tobytes() == policy.scores(OBSERVATIONS)[0].tobytes()
        assert found.value is None

    def test_features_do_not_depend_on_the_batch(self, tmp_path: Path) -> None:
        policy = load_policy(write_onnx(tmp_path / "agent.onnx"))
        together = policy.features(OBSERVATIONS).hidden
        apart = [policy.features(OBSERVATIONS[[row]]).hidden[0] for row in range(5)]
        assert together.tobytes() == np.stack(apart).tobytes()

    def test_two_streams_are_joined_and_a_value_is_found(self, tmp_path: Path) -> None:
        random = np.random.default_rng(1)
        path = save(
            tmp_path / "dueling.onnx",
            [
                helper.make_node("MatMul", ["observation", "w1"], ["a"]),
                helper.make_node("Relu", ["a"], ["left"]),
                helper.make_node("MatMul", ["observation", "w2"], ["b"]),
                helper.make_node("Relu", ["b"], ["right"]),
                helper.make_node("MatMul", ["left", "w3"], ["advantage"]),
                helper.make_node("MatMul", ["right", "w4"], ["value"]),
                helper.make_node("Add", ["advantage", "value"], ["q_values"]),
            ],
            ["q_values", "value"],
            w1=random.normal(size=(4, 3)),
            w2=random.normal(size=(4, 5)),
            w3=random.normal(size=(3, 2)),
            w4=random.normal(size=(5, 1)),
        )
        policy = load_policy(path)
        found = policy.features(OBSERVATIONS)
        assert found.hidden.shape == (5, 8)
        assert found.value is not None
        assert with_value(found).shape == (5, 9)
        assert np.array_equal(with_value(found)[:, -1], found.value)

    def test_a_policy_without_a_hidden_layer_shows_none(self, tmp_path: Path) -> None:
        path = save(
            tmp_path / "linear.onnx",
            [
                helper.make_node("Flatten", ["observation"], ["flat"]),
                helper.make_node("MatMul", ["flat", "w"], ["q_values"]),
            ],
            ["q_values"],
            w=np.ones((4, 2)),
        )
        assert load_policy(path).features(OBSERVATIONS).hidden.shape == (5, 0)

    def test_features_survive_the_journey_to_a_worker(self, tmp_path: Path) -> None:
        policy = load_policy(write_onnx(tmp_path / "agent.onnx"))
        before = policy.features(OBSERVATIONS).hidden
        again = pickle.loads(pickle.dumps(policy))
        assert again.features(OBSERVATIONS).hidden.tobytes() == before.tobytes()

    @pytest.mark.parametrize(
        ("agent", "output", "width"), [("pong-a3c", "logits", 512), ("pong-apex", "q_values", 1024)]
    )
    def test_bundled_agents_show_theirs(self, agent: str, output: str, width: int) -> None:
        policy = load_policy(f"zoo:{agent}")
        frames = np.zeros((1, 4, 84, 84), np.uint8)
        names = hidden_tensors(policy.model, [output])  # type: ignore[attr-defined]
        assert len(names) == 1
        assert policy.features(frames).hidden.shape == (1, width)


def test_a_function_shows_none() -> None:
    policy = load_policy(lambda rows: rows[:, :2], kind="q")
    assert policy.features(OBSERVATIONS).hidden.shape == (5, 0)


def test_a_torch_module_shows_the_input_of_its_last_linear_layer() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2))
    found = load_policy(module, kind="q").features(OBSERVATIONS)
    expected = torch.tanh(module[0](torch.tensor(OBSERVATIONS))).detach().numpy()
    np.testing.assert_allclose(found.hidden, expected, rtol=1e-5)
    one = load_policy(torch.nn.Linear(4, 2), kind="q").features(OBSERVATIONS)
    assert one.hidden.shape == (5, 0)


@pytest.mark.skipif(not HAVE_SB3, reason="needs Stable-Baselines3")
def test_stable_baselines_shows_the_latent_layer_and_the_value() -> None:
    import torch
    from stable_baselines3 import DQN, PPO

    env = gym.make("CartPole-v1")
    ppo = PPO("MlpPolicy", env, seed=0, device="cpu")
    found = load_policy(ppo).features(OBSERVATIONS)
    with torch.no_grad():
        seen = torch.tensor(OBSERVATIONS)
        latent = ppo.policy.mlp_extractor.forward_actor(ppo.policy.extract_features(seen))
        value = ppo.policy.predict_values(seen).reshape(-1)
    np.testing.assert_allclose(found.hidden, latent.numpy(), rtol=1e-5, atol=1e-6)
    assert found.value is not None
    np.testing.assert_allclose(found.value, value.numpy(), rtol=1e-5, atol=1e-6)
    dqn = load_policy(DQN("MlpPolicy", env, seed=0, device="cpu")).features(OBSERVATIONS)
    assert dqn.hidden.shape == (5, 64)
    assert dqn.value is None


class TestHistory:
    SCORES = np.random.default_rng(2).normal(size=(40, 3)).astype(np.float32)
    HIDDEN = np.random.default_rng(3).normal(size=(40, 2)).astype(np.float32)

    def test_live_inputs_are_those_of_the_recorded_episode(self) -> None:
        recorded = inputs_along("q", self.SCORES, self.HIDDEN)
        history = History("q", agents=2)
        for step in range(40):
            both = np.stack([self.SCORES[step]] * 2), np.stack([self.HIDDEN[step]] * 2)
            live = history.add(*both)
            np.testing.assert_array_equal(live[0], recorded[step])
            np.testing.assert_array_equal(live[1], recorded[step])

    def test_an_agent_that_starts_anew_remembers_nothing(self) -> None:
        history = History("q", agents=2)
        for step in range(20):
            history.add(self.SCORES[[step, step]], self.HIDDEN[[step, step]])
        history.forget([1])
        live = history.add(self.SCORES[[20, 0]], self.HIDDEN[[20, 0]])
        recorded = inputs_along("q", self.SCORES, self.HIDDEN)
        np.testing.assert_array_equal(live[0], recorded[20])
        np.testing.assert_array_equal(live[1], recorded[0])

    def test_before_the_start_the_first_step_is_repeated(self) -> None:
        rows = np.arange(30)
        assert recent(rows, 2).tolist() == [0] * (WINDOW - 2) + [0, 1, 2]
        assert recent(rows, 20).tolist() == list(range(20 - WINDOW, 21))

    @pytest.mark.parametrize(
        ("kind", "shape"), [("q", (3,)), ("logits", (3,)), ("gaussian", (2, 4)), ("actions", (4,))]
    )
    def test_every_kind_of_scores_gives_finite_inputs(
        self, kind: str, shape: tuple[int, ...]
    ) -> None:
        scores = np.random.default_rng(4).normal(size=(6, WINDOW + 1, *shape)).astype(np.float32)
        hidden = np.ones((6, len(LAGS), 2), np.float32)
        found = probe_inputs(kind, scores, hidden)  # type: ignore[arg-type]
        assert np.isfinite(found).all()
        fewer = probe_inputs(kind, scores, hidden, ("scores", "history"))  # type: ignore[arg-type]
        assert found.shape[1] == fewer.shape[1] + 2 * len(LAGS)
