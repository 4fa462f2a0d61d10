"""MiniGrid's worlds by name, seen through the library's own wrappers."""

from __future__ import annotations

from typing import Any

import pytest

import safemargin as sm
from safemargin.environments import EnvironmentSpec
from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import load_policy

pytest.importorskip("minigrid")


def make(name: str = "MiniGrid-Empty-5x5-v0", **given: Any) -> Any:
    return EnvironmentSpec.parse(f"minigrid:{name}", given).make()


@pytest.mark.parametrize(
    ("observations", "shape"),
    [("flat", (2835,)), ("image", (7, 7, 3)), ("one-hot", (7, 7, 20)), ("full", (5, 5, 3)),
     ("pixels", (56, 56, 3)), ("all-pixels", (40, 40, 3))],
)  # fmt: skip
def test_what_an_agent_sees_is_named(observations: str, shape: tuple[int, ...]) -> None:
    env = make(observations=observations)
    seen, _ = env.reset(seed=0)
    assert seen.shape == shape
    assert env.observation_space.contains(seen)


def test_a_dict_with_a_mission_reaches_the_policy() -> None:
    def forward(observations: Any) -> Any:
        assert "green goal" in observations["mission"][0]
        return [[0, 0, 9, 0, 0, 0, 0]] * len(observations["image"])

    found = sm.true_criticality(make(), load_policy(forward, kind="q"), step=0, n=1)
    assert found[0].exact


def test_a_flat_agent_in_a_dict_world_is_refused() -> None:
    def flat(observations: Any) -> Any:
        return observations.reshape(1, 2835)[:, :7]

    with pytest.raises(PolicyFault, match="AttributeError: 'dict' object has no attribute"):
        load_policy(flat, kind="q").check(make())


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'MiniGrid-Empty-5x5-v0'"):
        make("MiniGrid-Empty5x5-v0")
    with pytest.raises(InvalidInput, match="observations='flatt' is unknown; did you mean 'flat'"):
        make(observations="flatt")
