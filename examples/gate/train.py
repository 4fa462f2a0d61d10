"""Train the agent of the worked example, keep a checkpoint now and then, and damage the last one.

    python examples/gate/train.py            # a few minutes on one core

PPO from Stable-Baselines3 swings up Acrobot. Each checkpoint is written as a small ONNX file.
`damaged.onnx` is the last one with the weights of one action's head (torque −1) shrunk to nothing:
the fault that the gate has to find. Needs the extra `sb3`, and onnx and onnxscript.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

FOLDER = Path(__file__).parent / "checkpoints"
ENVIRONMENT = "Acrobot-v1"
ENVIRONMENTS, STEPS_PER_UPDATE = 16, 256
DAMAGED_ACTION, SHRUNK_TO = 0, 0.0


class Actor(nn.Module):
    """What chooses an action: from observations [batch, 6] to logits [batch, 3]."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(*policy.mlp_extractor.policy_net, policy.action_net)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.layers(observations)
        return logits


def export(policy: Any, path: Path) -> None:
    """Write an ONNX file with the weights inside and the meaning of its scores in the metadata."""
    torch.onnx.export(
        Actor(policy).eval(),
        (torch.zeros(2, 6),),
        path,
        input_names=["observations"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {"safemargin.kind": "logits"})
    # Traces of where each node came from would tie the bytes to this machine's paths.
    graph = model.graph
    del graph.metadata_props[:]
    for parts in (graph.node, graph.value_info, graph.input, graph.output, graph.initializer):
        for part in parts:
            del part.metadata_props[:]
    onnx.save_model(model, path)


def damage(path: Path, damaged: Path) -> None:
    """Copy a checkpoint with the weights and the bias of one action's head shrunk."""
    model = onnx.load(path)
    heads = [weights for weights in model.graph.initializer if weights.dims[0] == 3]
    for weights in heads:  # [3, 64] and [3]
        values = numpy_helper.to_array(weights).copy()
        values[DAMAGED_ACTION] *= SHRUNK_TO
        weights.CopyFrom(numpy_helper.from_array(values, weights.name))
    onnx.save_model(model, damaged)


class Checkpoints(BaseCallback):
    """Writes the policy at these numbers of steps."""

    def __init__(self, at: list[int]) -> None:
        super().__init__()
        self.at = at

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps in self.at:
            path = FOLDER / f"acrobot-{self.num_timesteps}.onnx"
            export(self.model.policy, path)
            returns = [info["r"] for info in self.model.ep_info_buffer or []]
            print(f"{path.name}: mean return {np.mean(returns):.0f} while exploring", flush=True)


def main() -> None:
    """Read the command line, train, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, nargs="+", default=[4, 8, 16, 32])
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env(ENVIRONMENT, n_envs=ENVIRONMENTS, seed=options.seed),
        n_steps=STEPS_PER_UPDATE,
        batch_size=512,
        n_epochs=4,
        gae_lambda=0.94,
        gamma=0.99,
        learning_rate=1e-3,
        seed=options.seed,
        device="cpu",
    )
    each = ENVIRONMENTS * STEPS_PER_UPDATE
    at = [each * number for number in sorted(options.updates)]
    FOLDER.mkdir(exist_ok=True)
    # One update more, because a checkpoint is written when the next round begins.
    model.learn(at[-1] + each, callback=Checkpoints(at))
    damage(FOLDER / f"acrobot-{at[-1]}.onnx", FOLDER / "damaged.onnx")


if __name__ == "__main__":
    main()
