"""Make a weaker agent of a bundled one: python weaker.py pong-a3c -o weaker.onnx

Noise of 0.3 standard deviations is added to the weights of every layer. The bundled Pong agents
hardly make mistakes any more, so there is nothing that an overseer could prevent.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from safemargin.policies.zoo import zoo_path

NOISE = 0.3


def weaken(source: Path, target: Path, noise: float, seed: int) -> None:
    """Write a network with noise on its weights; biases stay as they are."""
    model, rng = onnx.load(source), np.random.default_rng(seed)
    for one in model.graph.initializer:
        weights = numpy_helper.to_array(one)
        if weights.ndim < 2 or weights.dtype.kind != "f":
            continue
        noisy = weights + noise * weights.std() * rng.standard_normal(weights.shape)
        one.CopyFrom(numpy_helper.from_array(noisy.astype(weights.dtype), one.name))
    onnx.save(model, target)


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent", metavar="AGENT", help="a bundled agent")
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="FILE")
    parser.add_argument("--noise", type=float, default=NOISE, help=f"default {NOISE:g}")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    weaken(zoo_path(options.agent), options.output, options.noise, options.seed)


if __name__ == "__main__":
    main()
