"""ONNX files: what the scores mean, batch sizes, memory, broken files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import cloudpickle
import gymnasium as gym
import numpy as np
import onnx
import pytest
from helpers.small_policies import write_onnx
from onnx import TensorProto, helper

from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import load_policy


@pytest.mark.parametrize(
    ("output", "metadata", "asked", "kind"),
    [
        ("q_values", {}, None, "q"),
        ("q", {}, None, "q"),
        ("logits", {}, None, "logits"),
        ("LOGITS", {}, None, "logits"),
        ("q_values", {"safemargin.kind": "logits"}, None, "logits"),
        ("q_values", {"safemargin.kind": "logits"}, "q", "q"),
        ("something", {}, "logits", "logits"),
    ],
)
def test_kind_is_asked_then_metadata_then_output_name(
    tmp_path: Path, output: str, metadata: dict[str, str], asked: str | None, kind: str
) -> None:
    path = write_onnx(tmp_path / "agent.onnx", output=output, metadata=metadata)
    assert load_policy(path, kind=asked).kind == kind


def test_an_output_with_an_unknown_name_needs_a_kind(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "agent.onnx", output="dense_3")
    with pytest.raises(
        InvalidInput, match=r"outputs dense_3 do not say what the scores mean; pass --scores q or"
    ):
        load_policy(path)


def test_wrong_metadata_is_named(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "agent.onnx", metadata={"safemargin.kind": "logit"})
    with pytest.raises(InvalidInput, match=r"safemargin.kind is 'logit'; did you mean 'logits'"):
        load_policy(path)


def test_identity_is_the_hash_of_the_file(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "agent.onnx")
    expected = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_policy(path).identity == expected
    assert load_policy(path, identity="mine").identity == "mine"


def test_weights_in_a_second_file_belong_to_the_identity(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "agent.onnx", external=True)
    data = tmp_path / "weights.data"
    assert data.exists()
    policy = load_policy(path)
    inside = load_policy(write_onnx(tmp_path / "whole.onnx"))
    observations = np.ones((2, 4))
    np.testing.assert_array_equal(policy.scores(observations)[0], inside.scores(observations)[0])
    copy = cloudpickle.loads(cloudpickle.dumps(policy))
    np.testing.assert_array_equal(copy.scores(observations)[0], inside.scores(observations)[0])
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    assert load_policy(path).identity != policy.identity
    data.unlink()
    with pytest.raises(InvalidInput, match=r"its weights lie in weights.data, which is not beside"):
        load_policy(path)


@pytest.mark.parametrize("fixed_batch", [1, 7, 32, None])
def test_any_fixed_batch_gives_scores_for_any_batch(
    tmp_path: Path, fixed_batch: int | None
) -> None:
    path = write_onnx(tmp_path / "agent.onnx")
    policy = load_policy(path, fixed_batch=fixed_batch)
    observations = np.random.default_rng(0).normal(size=(33, 4))
    np.testing.assert_allclose(
        policy.scores(observations)[0], load_policy(path).scores(observations)[0], rtol=1e-5
    )


def test_a_fixed_batch_below_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="fixed_batch must be at least 1, or None, got 0"):
        load_policy(write_onnx(tmp_path / "agent.onnx"), fixed_batch=0)


def test_a_graph_of_one_batch_size_is_asked_with_it(tmp_path: Path) -> None:
    policy = load_policy(write_onnx(tmp_path / "agent.onnx", batch=8), fixed_batch=32)
    assert policy.fixed_batch == 8
    assert policy.scores(np.ones((3, 4)))[0].shape == (3, 2)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(InvalidInput, match=r"agent.onnx: not an ONNX model that onnxruntime can"):
        load_policy(path)


def test_a_wrong_observation_type_is_named(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["pixels"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Identity", ["numbers"], ["q_values"]),
        ],
        "policy",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", 2])],
        [helper.make_tensor_value_info("q_values", TensorProto.FLOAT, ["batch", 2])],
    )
    path = _save(graph, tmp_path)
    env = gym.make("MountainCar-v0")  # [2] floats
    with pytest.raises(PolicyFault, match=r"expected observations of type uint8, got float32"):
        load_policy(path).check(env)


def test_scores_that_are_not_finite_name_the_policy(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "agent.onnx")
    with pytest.raises(PolicyFault, match=r"agent.onnx: scores must be finite.*row 1"):
        load_policy(path, fixed_batch=None).scores(np.array([[0.0] * 4, [np.nan] * 4]))


def test_a_recurrent_graph_carries_its_memory(tmp_path: Path) -> None:
    # memory' = memory + observation; q = memory'. By hand: after 1, 2, 3 the sums are 1, 3, 6.
    vectors = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2])
        for name in ("observation", "memory_0", "memory_0_out", "q_values")
    }
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["observation", "memory_0"], ["memory_0_out"]),
            helper.make_node("Identity", ["memory_0_out"], ["q_values"]),
        ],
        "policy",
        [vectors["observation"], vectors["memory_0"]],
        [vectors["q_values"], vectors["memory_0_out"]],
    )
    policy = load_policy(_save(graph, tmp_path))
    memory = policy.initial_memory(3)
    seen = []
    for step in (1.0, 2.0, 3.0):
        scores, memory = policy.scores(np.full((3, 2), step), memory)
        seen.append(scores[2, 1])
    assert seen == [1.0, 3.0, 6.0]


def test_dict_observations_go_to_the_inputs_of_their_names(tmp_path: Path) -> None:
    vectors = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2])
        for name in ("near", "far", "q_values")
    }
    graph = helper.make_graph(
        [helper.make_node("Sub", ["near", "far"], ["q_values"])],
        "policy",
        [vectors["near"], vectors["far"]],
        [vectors["q_values"]],
    )
    policy = load_policy(_save(graph, tmp_path))
    scores, _ = policy.scores({"far": np.ones((3, 2)), "near": np.full((3, 2), 3.0)})
    np.testing.assert_array_equal(scores, np.full((3, 2), 2.0, np.float32))
    with pytest.raises(PolicyFault, match="expected an observation 'near', got far"):
        policy.scores({"far": np.ones((1, 2))})
    with pytest.raises(PolicyFault, match="expected Dict observations with near, far"):
        policy.check(gym.make("CartPole-v1"))


def test_several_outputs_of_a_kind_are_a_question(tmp_path: Path) -> None:
    vectors = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2])
        for name in ("observation", "one", "two", "mean", "log_std")
    }
    nodes = [
        helper.make_node("Identity", ["observation"], [name])
        for name in ("one", "two", "mean", "log_std")
    ]
    graph = helper.make_graph(
        nodes[:2], "policy", [vectors["observation"]], [vectors["one"], vectors["two"]]
    )
    with pytest.raises(InvalidInput, match="which of the outputs one, two holds the q scores"):
        load_policy(_save(graph, tmp_path), kind="q")
    graph = helper.make_graph(
        nodes[2:], "policy", [vectors["observation"]], [vectors["mean"], vectors["log_std"]]
    )
    policy = load_policy(_save(graph, tmp_path))
    assert policy.kind == "gaussian"
    scores, _ = policy.scores(np.array([[1.0, 2.0]]))
    np.testing.assert_array_equal(scores, [[[1, 2], [1, 2]]])


def _save(graph: onnx.GraphProto, folder: Path) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(model, folder / "agent.onnx")
    return folder / "agent.onnx"
