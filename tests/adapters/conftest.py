"""What the tests of all adapters share; the rows of the matrix come from what they really ran."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from safemargin.policies import Policy
from safemargin.policies.checks import sample_batch

OBSERVATIONS = 256 if "SAFEMARGIN_MATRIX" in os.environ else 16


class Adapted:
    """Compares an adapter with its library, and notes what was found equal."""

    def __call__(
        self,
        library: str,
        algorithm: str,
        policy: Policy,
        environment: str | gym.Env[Any, Any],
        expected: Callable[[Any], Any],
        *,
        tolerance: float = 0.0,
    ) -> None:
        """`expected` takes one observation, [1, …], and returns what the library makes of it."""
        env = gym.make(environment) if isinstance(environment, str) else environment
        policy.check(env)
        batch: Any = sample_batch(env.observation_space, OBSERVATIONS, seed=3)
        rows = [policy.scores(batch[row : row + 1])[0] for row in range(OBSERVATIONS)]
        wanted = [np.asarray(expected(batch[row : row + 1])) for row in range(OBSERVATIONS)]
        ours, theirs = np.concatenate(rows), np.stack(wanted).reshape(len(rows), *rows[0].shape[1:])
        np.testing.assert_allclose(ours, theirs.astype(np.float32), rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(policy.scores(batch)[0], ours)  # in company, too
        assert np.ptp(ours, axis=0).max() > 0
        row = {
            "library": library,
            "version": importlib.metadata.version(library),
            "algorithm": algorithm,
            "actions": type(env.action_space).__name__,
            "scores": policy.kind,
            "equal": "to the last bit" if tolerance == 0 else f"within {tolerance:g}",
        }
        if "SAFEMARGIN_MATRIX" in os.environ:
            with Path(os.environ["SAFEMARGIN_MATRIX"]).open("a") as file:
                file.write(json.dumps(row) + "\n")


@pytest.fixture(scope="session")
def adapted() -> Adapted:
    return Adapted()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Networks this small only wait for a second thread."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
