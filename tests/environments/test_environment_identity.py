"""An environment's identity: the hashes that studies and margins files already contain."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import pytest
from helpers.margins import margins
from helpers.worlds import go_right

from safemargin.environments import EnvironmentSpec, environment_identity, same
from safemargin.monitor.monitor import Monitor
from safemargin.monitor.overseen import Overseen

RECORDED = {
    "atari:pong": "e48f466de9522799247a7801d06b45c1276ce580ae9535ca2e2f08608ca47270",
    "FrozenLake-v1": "b57c399d1708e00d63f7521a090f22baf43ac5959eeaa39d5d8b36913859b81d",
    "Taxi-v4": "6aff6c631aa5abd0f5e7936a8df3697b3468ac92d815089f96748a87c1a21203",
    "CliffWalking-v1": "d801259f26a1056b331c4c2176cb0d0effdd7ca2b96bc251b6e7ece4d993c775",
}
OVERSEEN = "9fee74c3bc46ccf9572391881137ab6477561c4a8872cc01a28543056b3c8606"
PAIR = "fe7f7d5673e09db8ea54e4506a927c95bc97f6a39af94e27890df12087c886f6"
ARGUMENTS: dict[str, dict[str, Any]] = {"FrozenLake-v1": {"is_slippery": False}}


@pytest.mark.parametrize("text", RECORDED)
def test_identities_are_those_recorded(text: str) -> None:
    if text.startswith("atari:"):
        pytest.importorskip("ale_py")
    spec = EnvironmentSpec.parse(text, ARGUMENTS.get(text))
    assert environment_identity(spec, spec.make()) == f"sha256:{RECORDED[text]}"


class Pair(gym.Env[Any, Any]):
    """Observes a tuple of arrays."""

    observation_space = gym.spaces.Tuple([gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(3)])
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return (self.np_random.random(2), 1), {}

    def step(self, action: Any) -> Any:
        return (self.np_random.random(2), 2), 1.0, bool(self.np_random.random() < 0.1), False, {}


Pair.__module__ = "pair"  # wherever the tests lie


def test_identities_see_tuples_as_they_were_recorded_and_comparisons_see_all_of_them() -> None:
    spec = EnvironmentSpec.parse(Pair)
    env = spec.make()
    assert environment_identity(spec, env) == f"sha256:{PAIR}"
    first, second = env.reset(seed=1)[0], env.reset(seed=2)[0]
    assert same(first, copy.deepcopy(first))
    assert not same(first, second)


def test_a_wrapper_that_moved_keeps_its_name() -> None:
    spec = EnvironmentSpec.parse("FrozenLake-v1", {"is_slippery": False})
    monitor = Monitor(margins(policy={"kind": "q"}), tolerance=1)
    env = Overseen(spec.make(), go_right, monitor)
    assert environment_identity(spec, env) == f"sha256:{OVERSEEN}"
