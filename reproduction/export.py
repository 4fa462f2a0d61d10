"""From a trained network to the ONNX file that ships: weights in half precision."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from atari_training import OBSERVATION_SHAPE, ActorCritic, DuelingQ
from torch import Tensor, nn

if TYPE_CHECKING:
    import onnx

OUTPUTS = {"logits": "logits", "q": "q_values"}
"""Kind of scores → name of the graph's output."""


def export_onnx(network: ActorCritic | DuelingQ, path: Path, *, half: bool = True) -> None:
    """Write the network as ONNX: uint8 "observation" in, "logits" or "q_values" out.

    With `half` the weights take half the space on disk; the runtime converts them to float32 when
    it loads the file, so that playing is as fast, and sums are as exact, as without.
    """
    import onnx

    path.parent.mkdir(parents=True, exist_ok=True)
    plain = network.cpu().float()
    torch.onnx.export(
        (OneHead(plain, half=half) if isinstance(plain, DuelingQ) else plain).eval(),
        (torch.zeros(2, *OBSERVATION_SHAPE, dtype=torch.uint8),),
        str(path),
        input_names=["observation"],
        output_names=[OUTPUTS[network.kind]],
        dynamic_shapes={"observation": {0: torch.export.Dim("batch")}},
        opset_version=18,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"safemargin.kind": network.kind})
    _forget_the_machine(model)
    if half:
        halve_weights(model)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


class OneHead(nn.Module):
    """A dueling network whose two streams end in one matrix, with the same values to the last bits.

    The mean of the advantages is computed by other kernels for one row than for several, so scores
    would depend on the batch. With a matrix product they do not.
    """

    def __init__(self, network: DuelingQ, *, half: bool) -> None:
        super().__init__()
        network = copy.deepcopy(network)
        if half:
            round_to_half(network)
        self.torso = network.torso
        self.value_hidden = network.value_hidden
        self.advantage_hidden = network.advantage_hidden
        value, advantage = network.value, network.advantage
        self.head = nn.Linear(2 * value.in_features, advantage.out_features)
        with torch.no_grad():
            centred = advantage.weight - advantage.weight.mean(0)
            self.head.weight.copy_(torch.cat([value.weight.expand_as(centred), centred], 1))
            self.head.bias.copy_(value.bias + advantage.bias - advantage.bias.mean())

    def forward(self, observation: Tensor) -> Tensor:
        features = self.torso(observation)
        streams = self.value_hidden(features), self.advantage_hidden(features)
        return self.head(torch.cat(streams, 1))


def halve_weights(model: onnx.ModelProto) -> None:
    """Store matrices and kernels as float16, each with a Cast to float32 at the graph's start.

    Biases are small and stay as they are, and so does the head that two streams share: it is made
    from rounded weights.
    """
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for weights in model.graph.initializer:
        if weights.data_type != TensorProto.FLOAT or len(weights.dims) < 2:
            continue
        if weights.name == "head.weight":
            continue
        name, values = weights.name, numpy_helper.to_array(weights)
        with np.errstate(over="ignore"):
            halved = values.astype(np.float16)
        if not np.isfinite(halved).all():
            raise ValueError(
                f"the weights {name} reach {np.abs(values).max():g}, and half precision ends at "
                f"{np.finfo(np.float16).max:g}; export with half=False"
            )
        weights.CopyFrom(numpy_helper.from_array(halved, name + ".half"))
        casts.append(
            helper.make_node("Cast", [name + ".half"], [name], name + ".cast", to=TensorProto.FLOAT)
        )
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def round_to_half(network: ActorCritic | DuelingQ) -> None:
    """Give the network the weights that its exported file has."""
    with torch.no_grad():
        for weights in network.parameters():
            if weights.ndim > 1:
                weights.copy_(weights.half().float())


def _forget_the_machine(model: onnx.ModelProto) -> None:
    """Traces of where each node came from would tie the bytes to this machine's paths."""
    graph = model.graph
    del graph.metadata_props[:]
    for parts in (graph.node, graph.value_info, graph.input, graph.output, graph.initializer):
        for part in parts:
            del part.metadata_props[:]
