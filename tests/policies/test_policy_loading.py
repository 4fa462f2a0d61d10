"""From what a user names to a policy, and the sentences for what cannot be one."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.small_policies import HAVE_TORCH, write_onnx

from safemargin.errors import InvalidInput, MissingExtra, PolicyFault
from safemargin.policies import Policy, load_policy
from safemargin.policies.checks import sample_batch

AGENT = """
import numpy as np
import neighbour
from safemargin.policies.base import Policy

WEIGHTS = np.full((4, 2), neighbour.VALUE)

def q_values(observations):
    return observations @ WEIGHTS

def make():
    return q_values

def make_kind():
    q_values.kind = "logits"
    return q_values

class Mine(Policy):
    kind = "q"
    identity = "mine"
    description = "mine"
    def scores(self, observations, memory=None):
        return q_values(observations).astype(np.float32), None

number = 3
def broken():
    return number
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("VALUE = 0.5")
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return path


def test_a_policy_is_taken_as_it_is() -> None:
    policy = load_policy(lambda observations: observations, kind="q")
    assert load_policy(policy) is policy
    with pytest.raises(InvalidInput, match="its scores are of kind 'q', not 'logits'"):
        load_policy(policy, kind="logits")


@pytest.mark.parametrize("attribute", ["q_values", "make", "Mine"])
def test_objects_in_a_file(agent: Path, attribute: str) -> None:
    policy = load_policy(f"{agent}:{attribute}", kind="q")
    scores, _ = policy.scores(np.ones((3, 4)))
    np.testing.assert_array_equal(scores, np.full((3, 2), 2.0, np.float32))
    policy.check(gym.make("CartPole-v1"))


def test_a_function_may_carry_its_kind(agent: Path) -> None:
    assert load_policy(f"{agent}:make_kind").kind == "logits"


def test_what_a_file_defines_travels_without_the_file(agent: Path) -> None:
    data = cloudpickle.dumps(load_policy(f"{agent}:q_values", kind="q"))
    agent.unlink()
    code = (
        "import sys, pickle, numpy\n"
        "policy = pickle.loads(sys.stdin.buffer.read())\n"
        "print(policy.scores(numpy.ones((1, 4)))[0].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=data,
        capture_output=True,
        env={"PYTHONPATH": ":".join(["src", *sys.path])},
        cwd=ROOT,
        check=False,
    )
    assert done.stdout.decode().strip() == "[[2.0, 2.0]]", done.stderr.decode()


def test_an_object_in_a_module() -> None:
    policy = load_policy("helpers.small_policies:linear_scores", kind="q")
    assert policy.description == "helpers.small_policies:linear_scores"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{folder}/missing.onnx", r"missing.onnx: there is no such file; name an .onnx file"),
        ("{folder}/missing.zip", r"missing.zip: there is no such file"),
        (
            "{folder}/agent.pt",
            r"a .pt file holds weights without the network .* 'file.py:function'",
        ),
        ("{folder}/agent.pth", r"a .pth file holds weights without the network"),
        ("{folder}/agent.py", r"name an object in it, as 'file.py:attribute'"),
        ("{folder}/agent.py:q_value", r"no 'q_value' there; did you mean 'q_values'"),
        ("{folder}/nowhere.py:make", r"there is no file .*nowhere.py"),
        ("no_such_package.agents:make", r"no module named 'no_such_package' can be imported"),
        ("something", r"policy 'something' does not exist; name an .onnx file"),
        ("{folder}/neighbour.py:VALUE", r"expected a Policy, a torch module.*got float"),
        ("{folder}/agent.py:q_values", r"say what its scores mean with --scores q"),
        ("{folder}/agent.py:broken", r"expected a Policy.* got int"),
        ("{folder}", r"is not a kind of file that can be read"),
        ("zoo:cartpol", r"no bundled agent is called 'cartpol'; did you mean 'cartpole'"),
    ],
)
def test_what_cannot_be_a_policy(agent: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        load_policy(text.format(folder=agent.parent))


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    write_onnx(tmp_path / "agent.onnx")
    with pytest.raises(InvalidInput, match=r"no such file; did you mean 'agent.onnx'"):
        load_policy(tmp_path / "agnet.onnx")


def test_a_file_that_fails_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(InvalidInput, match=r"failed: ZeroDivisionError: .*\(bad.py, line 1\)"):
        load_policy(f"{tmp_path}/bad.py:make")


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(InvalidInput, match="kind 'logit' is unknown; did you mean 'logits'"):
        load_policy(lambda observations: observations, kind="logit")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (np.zeros(2), r"expected q scores \[batch, actions\] for a batch of 1, got shape \[2\]"),
        (np.zeros((1, 0)), r"got shape \[1, 0\]"),
        (np.array([[1.0, np.nan]]), r"scores must be finite numbers, got \[1.0, nan\]"),
        (np.array([[1.0, -np.inf]]), r"scores must be finite numbers, got \[1.0, -inf\]"),
        (np.array([[1.0, 1e300]]), r"scores must be finite numbers, got \[1.0, inf\]"),
        ("text", r"got str that is not an array of numbers"),
    ],
)
def test_scores_of_a_function_are_examined(answer: Any, sentence: str) -> None:
    with pytest.raises(PolicyFault, match=sentence):
        load_policy(lambda observations: answer, kind="q").scores(np.zeros((2, 4)))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (np.array([[1.0, np.nan]]), r"policy own: scores must be finite numbers, got \[1.0, nan\]"),
        ("text", "policy own: expected q scores .* got str that is not an array of numbers"),
    ],
)
def test_check_examines_the_scores_of_a_policy_of_ones_own(answer: Any, sentence: str) -> None:
    class Own(Policy):
        kind = "q"
        identity = description = "own"

        def scores(self, observations: Any, memory: Any = None) -> Any:
            return answer, None

    with pytest.raises(PolicyFault, match=sentence):
        Own().check(gym.make("CartPole-v1"))


def test_a_rule_for_what_the_world_shows_need_not_take_what_it_never_shows() -> None:
    env = gym.wrappers.TransformObservation(
        gym.make("FrozenLake-v1"), lambda at: np.uint8([at]), gym.spaces.Box(0, 255, (1,), np.uint8)
    )

    load_policy(lambda seen: np.eye(16)[seen[:, 0]][:, :4], kind="q").check(env)
    with pytest.raises(PolicyFault, match="the function raised IndexError"):
        load_policy(lambda seen: np.eye(16)[seen[:, 0] + 16][:, :4], kind="q").check(env)


def test_observations_that_make_no_array_are_told_in_one_sentence() -> None:
    growing = gym.spaces.Sequence(gym.spaces.Box(0, 1, (2,)), stack=True)
    with pytest.raises(PolicyFault, match=r"observations of Sequence.* form no array; flatten"):
        sample_batch(growing, 16)


def test_an_exception_in_a_function_names_it() -> None:
    def agent(observations: Any) -> Any:
        raise KeyError("weights")

    with pytest.raises(PolicyFault, match=r"agent .*the function raised KeyError: 'weights'"):
        load_policy(agent, kind="q").scores(np.zeros((1, 4)))


def test_identity_of_functions_sees_code_defaults_closures_and_globals() -> None:
    def made(closure: Any, default: Any) -> Policy:
        def agent(observations: Any, default: Any = default) -> Any:
            return observations * closure + default

        return load_policy(agent, kind="q")

    first = made(np.arange(3), 1.0)
    assert made(np.arange(3), 1.0).identity == first.identity
    assert made(np.arange(3) + 1, 1.0).identity != first.identity
    assert made(np.arange(3), 2.0).identity != first.identity
    assert made({"w": np.arange(3)}, 1.0).identity != made({"w": np.ones(3)}, 1.0).identity
    one, other = (lambda o: o + 1), (lambda o: o + 2)
    assert load_policy(one, kind="q").identity != load_policy(other, kind="q").identity
    loop: list[Any] = []
    loop.append(loop)
    assert made(loop, 1.0).identity == made(loop, 1.0).identity


def test_identity_of_a_callable_object_sees_its_attributes() -> None:
    class Agent:
        def __init__(self, weight: float) -> None:
            self.weight = np.full(2, weight)

        def __call__(self, observations: Any) -> Any:
            return observations * self.weight

    one, same, other = (load_policy(Agent(w), kind="q").identity for w in (1.0, 1.0, 2.0))
    assert one == same != other


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is an extra")
class TestTorch:
    def test_gaussian_networks_may_return_mean_and_deviation(self) -> None:
        import torch

        class Actor(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.mean = torch.nn.Linear(3, 1)
                self.log_std = torch.nn.Parameter(torch.tensor([-0.5]))

            def forward(self, observations: Any) -> Any:
                return self.mean(observations), self.log_std

        policy = load_policy(Actor(), kind="gaussian")
        scores, _ = policy.scores(np.zeros((4, 3)))
        assert scores.shape == (4, 2, 1)
        np.testing.assert_array_equal(scores[:, 1, 0], np.full(4, -0.5, np.float32))
        policy.check(gym.make("Pendulum-v1"))

    def test_a_network_that_returns_something_else_is_named(self) -> None:
        import torch

        class Pair(torch.nn.Module):
            def forward(self, observations: Any) -> Any:
                return observations, observations

        with pytest.raises(PolicyFault, match=r"expected one tensor of q scores .* got tuple"):
            load_policy(Pair(), kind="q").scores(np.zeros((1, 4)))

    def test_the_threads_of_others_are_left_alone(self) -> None:
        import torch

        before = torch.get_num_threads()
        load_policy(torch.nn.Linear(4, 2), kind="q").scores(np.zeros((1, 4)))
        assert torch.get_num_threads() == before

    def test_relu_and_tanh_are_two_agents(self) -> None:
        import torch

        layer = torch.nn.Linear(4, 2)
        networks = [torch.nn.Sequential(layer, torch.nn.ReLU()) for _ in range(2)]
        networks.append(torch.nn.Sequential(layer, torch.nn.Tanh()))
        relu, same, tanh = (load_policy(network, kind="q").identity for network in networks)
        assert relu == same != tanh

    def test_a_wrong_input_size_is_named(self) -> None:
        import torch

        policy = load_policy(torch.nn.Linear(4, 2), kind="q")
        with pytest.raises(PolicyFault, match=r"could not score observations of shape \[1, 6\]"):
            policy.check(gym.make("Acrobot-v1"))


@pytest.mark.parametrize(
    ("library", "module", "text"),
    [
        ("torch", "torch", r"pip install 'safemargin\[torch\]'"),
        ("stable_baselines3", "sb3", r"pip install 'safemargin\[sb3\]'"),
    ],
)
def test_a_missing_library_is_answered_with_the_install_line(
    monkeypatch: pytest.MonkeyPatch, library: str, module: str, text: str
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.split(".")[0] == library:
            raise ImportError(name)
        return real(name, *rest, **options)

    name = f"safemargin.policies.{module}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=text):
        __import__(name)


def test_importing_policies_and_proxies_imports_no_other_library() -> None:
    code = (
        "import sys, safemargin.policies, safemargin.policies.proxies\n"
        "print([n for n in ('torch', 'onnxruntime', 'stable_baselines3') if n in sys.modules])\n"
        "for name in [n for n in sys.modules if n.startswith(('safemargin', 'gymnasium'))]:\n"
        "    del sys.modules[name]\n"
        "import safemargin.policies.proxies\n"
        "print([n for n in ('gymnasium', 'scipy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": "src"},
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
