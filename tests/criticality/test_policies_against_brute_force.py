"""Policies as users have them, recurrent or masked, against every future played out.

Those are played with the libraries that own the policies, and with nothing of safemargin.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.small_policies import HAVE_SB3
from helpers.studies import create
from helpers.worlds import TableWorld, branching
from onnx import TensorProto, helper, numpy_helper

import safemargin as sm

HORIZON = 44  # of γ = 0.9 and a horizon error of 0.01


def discounted(rewards: list[float]) -> float:
    return float(sum(0.9**k * reward for k, reward in enumerate(rewards[:HORIZON])))


# -- a policy with memory, in an ONNX file ---------------------------------------------------------

STATES = 80


@pytest.fixture
def recurrent(tmp_path: Path) -> Path:
    """A network that remembers: h' = tanh(x W + h U), q = h' V."""
    random = np.random.default_rng(8)
    arrays = {
        "w": random.normal(size=(STATES, 6)),
        "u": 1.5 * random.normal(size=(6, 6)),
        "v": random.normal(size=(6, 2)),
    }
    vector = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name, width in (("seen", STATES), ("h", 6), ("h_out", 6), ("q_values", 2))
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["seen", "w"], ["from_seen"]),
            helper.make_node("MatMul", ["h", "u"], ["from_memory"]),
            helper.make_node("Add", ["from_seen", "from_memory"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["h_out"]),
            helper.make_node("MatMul", ["h_out", "v"], ["q_values"]),
        ],
        "policy",
        [vector["seen"], vector["h"]],
        [vector["q_values"], vector["h_out"]],
        [numpy_helper.from_array(array.astype(np.float32), n) for n, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(model, tmp_path / "recurrent.onnx")
    return tmp_path / "recurrent.onnx"


def make_world() -> gym.Env[Any, Any]:
    return TableWorld(branching(40))


@functools.cache
def session_of(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


def play(path: Path, forced: list[int]) -> tuple[list[int], list[float]]:
    """Actions and rewards of the episode that begins with these actions; then the policy acts."""
    session = session_of(path)
    world, h, ended = make_world(), np.zeros((1, 6), np.float32), False
    seen, _ = world.reset()
    taken: list[int] = []
    rewards: list[float] = []
    while not ended:
        q, h = session.run(["q_values", "h_out"], {"seen": seen[None], "h": h})
        taken.append(forced[len(taken)] if len(taken) < len(forced) else int(np.argmax(q)))
        seen, reward, ended, _, _ = world.step(taken[-1])
        rewards.append(float(reward))
    return taken, rewards


def exact(path: Path, taken: list[int], n: int) -> float:
    """The criticality after these actions, from every sequence of n mistakes."""

    def after(mistakes: tuple[int, ...]) -> float:
        return discounted(play(path, [*taken, *mistakes])[1][len(taken) :])

    return after(()) - float(np.mean([after(each) for each in itertools.product((0, 1), repeat=n)]))


def test_a_study_of_a_recurrent_onnx_policy(recurrent: Path, tmp_path: Path) -> None:
    settings = sm.Settings(gamma=0.9, n_values=(1, 2, 4), exclude_last=4, opening=5)
    with create(tmp_path / "study", make_world, str(recurrent), settings=settings) as study:
        study.collect(3, 2, engine="local")
        found = [
            (study.store.actions(moment.episode)[: moment.step].tolist(), measurement.estimate)
            for moment in study.store.moments()
            for measurement in study.store.measurements(moment.episode)
        ]
    truths = [exact(recurrent, taken, estimate.n) for taken, estimate in found]
    assert len(truths) == 15
    assert all(estimate.exact for _, estimate in found)
    np.testing.assert_allclose([estimate.mean for _, estimate in found], truths, atol=1e-9)
    assert np.std(truths) > 0.1


def test_one_moment_of_a_recurrent_onnx_policy(recurrent: Path) -> None:
    found = sm.true_criticality(
        make_world(), str(recurrent), step=3, n=[2, 4], settings=sm.Settings(gamma=0.9)
    )
    truths = [exact(recurrent, play(recurrent, [])[0][:3], n) for n in (2, 4)]
    np.testing.assert_allclose([estimate.mean for estimate in found], truths, atol=1e-9)
    assert truths[1] < -1


# -- a policy under masks --------------------------------------------------------------------------


class Gates(gym.Env[Any, Any]):
    """Five actions; which are legal, and what they pay, depends on the time and the last action."""

    observation_space = gym.spaces.Box(-1, 1, (12,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = [0]
        return self._seen(), {}

    def action_masks(self) -> Any:
        return (self.taken[-1] + len(self.taken) + np.arange(5)) % 3 > 0

    def step(self, action: Any) -> Any:
        assert self.action_masks()[action], "an illegal action was taken"
        self.taken.append(int(action))
        time = len(self.taken)
        return self._seen(), float(np.sin(3 * time + 5 * action * (time % 4))), time > 24, False, {}

    def _seen(self) -> Any:
        return np.sin(np.arange(12) * (1.0 + self.taken[-1]) + len(self.taken)).astype(np.float32)


@pytest.mark.skipif(not HAVE_SB3, reason="stable-baselines3 is an extra")
def test_a_maskable_policy(tmp_path: Path) -> None:
    from sb3_contrib import MaskablePPO

    model = MaskablePPO("MlpPolicy", Gates(), n_steps=64, batch_size=64, seed=0, device="cpu")
    model.save(tmp_path / "masked.zip")

    def episode(forced: list[int]) -> tuple[list[int], list[float], Any]:
        """Actions, rewards, and the mask after those that were forced."""
        world, ended = Gates(), False
        seen, _ = world.reset()
        rewards: list[float] = []
        mask_after = None
        while not ended:
            mask = world.action_masks()
            if len(rewards) == len(forced):
                mask_after = mask
            own = int(model.predict(seen, deterministic=True, action_masks=mask)[0])
            action = forced[len(rewards)] if len(rewards) < len(forced) else own
            seen, reward, ended, _, _ = world.step(action)
            rewards.append(reward)
        return world.taken[1:], rewards, mask_after

    step = 6
    taken, rewards, _ = episode([])

    def mean_return(forced: list[int], n: int) -> float:
        """Over all legal mistakes, each as likely as the others at its moment."""
        _, rewards, mask = episode(forced)
        if n == 0:
            return discounted(rewards[step:])
        return float(
            np.mean([mean_return([*forced, int(each)], n - 1) for each in np.flatnonzero(mask)])
        )

    truths = [discounted(rewards[step:]) - mean_return(taken[:step], n) for n in (1, 2)]
    assert min(map(abs, truths)) > 0.05
    settings = sm.Settings(gamma=0.9, trials=150)
    found = sm.true_criticality(
        Gates(), str(tmp_path / "masked.zip"), step=step, n=[1, 2], settings=settings
    )
    assert [estimate.exact for estimate in found] == [True, False]
    assert found[0].mean == pytest.approx(truths[0], abs=1e-9)
    assert 0 < found[1].half_width < 0.3
    assert abs(found[1].mean - truths[1]) <= 1.5 * found[1].half_width
