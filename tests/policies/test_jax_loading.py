"""Functions and modules of JAX users become policies, with an identity of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safemargin.errors import InvalidInput
from safemargin.policies import load_policy
from safemargin.policies.jax import JaxPolicy
from safemargin.policies.jax_loading import as_jax

jax = pytest.importorskip("jax", reason="needs safemargin[jax]")

W = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, 1.0]], np.float32)
SEEN = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
EXPECTED = SEEN @ W

AGENT = """
import jax.numpy as jnp
import numpy as np

def scores(params, observations):
    return observations @ params["w"]

scores.params = {"w": np.array([[1.0, -1.0], [0.5, 2.0], [0.0, 1.0]], np.float32)}
scores.kind = "q"

def bare(params, observations):
    return observations @ params["w"]

def make():
    return bare, scores.params

def counting(params, observations, memory):
    (seen,) = memory
    return observations @ params["w"] + seen[:, None], (seen + 1,)

counting.params = scores.params
counting.initial = (np.float32(0),)
counting.kind = "logits"
"""


@pytest.fixture
def agent(tmp_path: Path) -> str:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return str(path)


def test_a_function_of_parameters_and_observations(agent: str) -> None:
    policy = load_policy(f"{agent}:scores")
    assert isinstance(policy, JaxPolicy)
    assert policy.kind == "q"
    np.testing.assert_allclose(policy.scores(SEEN)[0], EXPECTED, rtol=1e-6)
    assert as_jax(policy) is policy


def test_a_file_need_not_import_jax(agent: str) -> None:
    code = (
        "import sys; from safemargin.policies import load_policy; assert 'jax' not in sys.modules; "
        f"print(type(load_policy({agent + ':scores'!r})).__name__)"
    )
    path = Path(agent)
    path.write_text(path.read_text().replace("import jax.numpy as jnp\n", ""))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "JaxPolicy"


def test_a_pair_of_a_function_and_its_parameters(agent: str) -> None:
    policy = load_policy(f"{agent}:make", kind="logits")
    assert policy.kind == "logits"
    np.testing.assert_allclose(policy.scores(SEEN)[0], EXPECTED, rtol=1e-6)
    assert policy.description == f"{agent}:make"


def test_memory_is_carried_from_call_to_call(agent: str) -> None:
    policy = load_policy(f"{agent}:counting")
    first, memory = policy.scores(SEEN)
    second, _ = policy.scores(SEEN, memory)
    np.testing.assert_allclose(second - first, 1, rtol=1e-6)


def test_a_function_without_its_parameters_is_refused(agent: str) -> None:
    with pytest.raises(InvalidInput, match=r"nothing says what the params are: .*params = …"):
        load_policy(f"{agent}:bare", kind="q")


def test_a_pair_does_not_say_what_its_scores_mean(agent: str) -> None:
    with pytest.raises(InvalidInput, match="say what its scores mean with --scores"):
        load_policy(f"{agent}:make")


def test_the_identity_changes_with_the_parameters_and_with_the_function() -> None:
    def double(params: Any, observations: Any) -> Any:
        return observations @ params * 2

    def single(params: Any, observations: Any) -> Any:
        return observations @ params

    identities = {
        load_policy(source, kind="q").identity
        for source in [(single, W), (single, W + 1), (double, W)]
    }
    assert len(identities) == 3
    assert load_policy((single, W), kind="q").identity in identities


def test_a_flax_module_with_its_variables() -> None:
    linen = pytest.importorskip("flax.linen")
    module = linen.Dense(2, use_bias=False)
    policy = load_policy((module, {"params": {"kernel": W}}), kind="q")
    assert isinstance(policy, JaxPolicy)
    np.testing.assert_allclose(policy.scores(SEEN)[0], EXPECTED, rtol=1e-6)
    wider = linen.Dense(2, use_bias=False, param_dtype="float16")
    assert load_policy((wider, {"params": {"kernel": W}}), kind="q").identity != policy.identity


def test_a_module_of_flax_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")
    module = nnx.Linear(3, 2, use_bias=False, rngs=nnx.Rngs(0))
    policy = load_policy(module, kind="q")
    assert isinstance(policy, JaxPolicy)
    np.testing.assert_allclose(policy.scores(SEEN)[0], np.asarray(module(SEEN)), rtol=1e-6)


def test_an_equinox_module_of_one_observation() -> None:
    equinox = pytest.importorskip("equinox")
    module = equinox.nn.MLP(3, 2, 4, 1, key=jax.random.PRNGKey(0))
    policy = load_policy(module, kind="q")
    assert isinstance(policy, JaxPolicy)
    expected = np.stack([np.asarray(module(row)) for row in SEEN])
    np.testing.assert_allclose(policy.scores(SEEN)[0], expected, rtol=1e-5)
    other = equinox.nn.MLP(3, 2, 4, 1, key=jax.random.PRNGKey(1))
    assert load_policy(other, kind="q").identity != policy.identity


def test_other_policies_are_not_in_jax() -> None:
    assert as_jax(load_policy(lambda observations: observations @ W, kind="q")) is None
