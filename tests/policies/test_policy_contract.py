"""What every policy adapter promises, run over all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.small_policies import adapters, write_onnx

from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import Policy
from safemargin.policies.checks import sample_batch
from safemargin.policies.function import FunctionPolicy
from safemargin.policies.onnx import OnnxPolicy

SHAPES = {"q": (2,), "logits": (2,), "gaussian": (2, 1), "actions": (1,)}


class Case:
    def __init__(self, build: Any, environment: str, folder: Path) -> None:
        self.build = lambda change=0.0: build(folder, change)
        self.env = gym.make(environment)
        self.policy: Policy = self.build()

    def observations(self, batch: int) -> Any:
        return sample_batch(self.env.observation_space, batch, seed=7)


@pytest.fixture(params=adapters())
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(*request.param, tmp_path)


def test_scores_are_float32_in_the_shape_of_their_kind(case: Case) -> None:
    scores, _ = case.policy.scores(case.observations(5))
    assert scores.dtype == np.float32
    assert scores.shape == (5, *SHAPES[case.policy.kind])
    assert np.isfinite(scores).all()


def test_scores_do_not_depend_on_the_batch(case: Case) -> None:
    observations = case.observations(33)
    memory = case.policy.initial_memory(33)
    whole, whole_after = case.policy.scores(observations, memory)
    for batch in range(1, 34):
        part = None if memory is None else tuple(array[:batch] for array in memory)
        scores, after = case.policy.scores(observations[:batch], part)
        np.testing.assert_array_equal(scores, whole[:batch])
        for one, other in zip(after or (), whole_after or (), strict=True):
            np.testing.assert_array_equal(one, other[:batch])
    for row in range(33):  # nor on the place in it, nor on where in memory it begins
        part = None if memory is None else tuple(array[row : row + 1] for array in memory)
        np.testing.assert_array_equal(
            case.policy.scores(observations[row : row + 1], part)[0][0], whole[row]
        )


def test_scores_are_the_same_each_time_and_leave_observations_alone(case: Case) -> None:
    observations = case.observations(9)
    before = observations.copy()
    first, _ = case.policy.scores(observations)
    second, _ = case.policy.scores(observations)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(observations, before)
    np.testing.assert_array_equal(case.build().scores(observations)[0], first)


def test_identity_follows_the_weights(case: Case) -> None:
    assert case.policy.identity.startswith("sha256:")
    assert case.build().identity == case.policy.identity
    assert case.build(0.25).identity != case.policy.identity


def test_survives_cloudpickle(case: Case) -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(case.policy))
    observations = case.observations(5)
    np.testing.assert_array_equal(copy.scores(observations)[0], case.policy.scores(observations)[0])
    assert (copy.identity, copy.kind, copy.description) == (
        case.policy.identity,
        case.policy.kind,
        case.policy.description,
    )


def test_check_accepts_its_environment_and_touches_nothing(case: Case) -> None:
    case.env.observation_space.seed(1)
    before = case.env.observation_space.np_random.bit_generator.state
    case.policy.check(case.env)
    assert case.env.observation_space.np_random.bit_generator.state == before


def test_check_refuses_another_observation_shape(case: Case) -> None:
    wider = gym.spaces.Box(-1, 1, (9,), np.float32)
    env = gym.wrappers.TransformObservation(case.env, lambda _: np.zeros(9, np.float32), wider)
    with pytest.raises(PolicyFault, match=r"policy .*(expected|shape|cannot score|raised)"):
        case.policy.check(env)


def test_check_refuses_another_number_of_actions(case: Case) -> None:
    if case.policy.kind in ("q", "logits"):
        other: gym.Space[Any] = gym.spaces.Discrete(7)
        text = r"expected an environment with 2 actions, one for each score, got 7"
    else:
        other = gym.spaces.Box(-1, 1, (7,), np.float32)
        text = r"expected an environment with 1 action dimensions, got 7"
    env = gym.wrappers.TransformAction(case.env, lambda action: action, other)
    with pytest.raises(PolicyFault, match=text):
        case.policy.check(env)


def test_check_refuses_another_kind_of_actions(case: Case) -> None:
    if case.policy.kind in ("q", "logits"):
        other: gym.Space[Any] = gym.spaces.Box(-1, 1, (2,), np.float32)
        text = r"scores need a Discrete, MultiDiscrete or MultiBinary action space, got Box of"
    else:
        other = gym.spaces.Discrete(2)
        text = r"scores need a Box(, MultiDiscrete or MultiBinary)? action space, got Discrete\(2\)"
    env = gym.wrappers.TransformAction(case.env, lambda action: action, other)
    with pytest.raises(PolicyFault, match=text):
        case.policy.check(env)


def test_an_empty_batch_is_refused(case: Case) -> None:
    with pytest.raises(InvalidInput, match="a batch needs at least 1 observation"):
        case.policy.scores(case.observations(1)[:0])


def test_travels_to_another_process(tmp_path: Path) -> None:
    """Every adapter in one fresh interpreter: same scores, same identity when built there."""
    sent = []
    for number, parameter in enumerate(adapters()):
        if any(mark.args[0] for mark in parameter.marks):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        case = Case(*parameter.values[0], folder)
        observations = case.observations(3)
        scores, _ = case.policy.scores(observations)
        sent.append((cloudpickle.dumps(case.policy), observations, scores, case.policy.identity))
    (tmp_path / "sent.pickle").write_bytes(cloudpickle.dumps(sent))
    code = (
        "import sys, cloudpickle, warnings\n"
        "from helpers import small_policies as builders\n"
        "for data, observations, scores, identity in "
        "cloudpickle.load(open(sys.argv[1], 'rb')):\n"
        "    policy = cloudpickle.loads(data)\n"
        "    again, _ = policy.scores(observations)\n"
        "    assert again.tobytes() == scores.tobytes(), policy.description\n"
        "    assert policy.identity == identity\n"
        "print(builders.function_policy(0.0).identity)\n"
        "if builders.HAVE_TORCH: print(builders.torch_policy(0.0).identity)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "sent.pickle")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(["src", *sys.path]), "PYTHONHASHSEED": "77"},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    identities = {identity for *_, identity in sent}
    assert set(done.stdout.split()) <= identities


@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_larger_batches_are_used_only_where_no_bit_changes(share: float) -> None:
    """Here a share of the rows comes out otherwise in company, as sums of few numbers do."""

    def scores(observations: np.ndarray) -> np.ndarray:
        moved = (observations[:, 0] > 1 - share) & (len(observations) > 1)
        return observations + 1e-6 * moved[:, None]

    policy = FunctionPolicy(scores, kind="q")
    assert policy.widen(gym.spaces.Box(0, 1, (3,), np.float32), 8) == (8 if share == 0 else 1)


def test_a_policy_that_takes_one_row_at_a_time_is_left_with_that(tmp_path: Path) -> None:
    def first_row(observations: np.ndarray) -> np.ndarray:
        return observations[:1, :2]  # [1, actions], whatever came

    space = gym.spaces.Box(0, 1, (4,), np.float32)
    static = OnnxPolicy(write_onnx(tmp_path / "agent.onnx", batch=1))
    for policy in (static, FunctionPolicy(first_row, kind="q")):
        observations = sample_batch(space, 3)
        before, _ = policy.scores(observations)
        assert policy.widen(space, 8) == 1
        np.testing.assert_array_equal(policy.scores(observations)[0], before)
