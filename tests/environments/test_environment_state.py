"""The state graph: what is remembered, put back in place, and hashed."""

from __future__ import annotations

import copy
import enum
import functools
import itertools
import random
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safemargin.environments import graph, make_simulator, register_state
from safemargin.errors import EnvironmentFault, InvalidInput


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Piece:
    position: tuple[int, int]
    moves: list[Any]


class Slotted:
    __slots__ = ("__secret", "later", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.__secret = [value]

    def change(self) -> None:
        self.value, self.later = -1, 5
        self.__secret.append("more")

    def told(self) -> tuple[Any, list[Any], bool]:
        return self.value, list(self.__secret), hasattr(self, "later")


class Pair(NamedTuple):
    left: Any
    right: Any


class History(list):  # type: ignore[type-arg]
    """A list with attributes of its own."""


class Holder:
    """A root with attributes."""


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from(list(Colour)),
    st.integers(-5, 5).map(np.int64),
)
arrays = st.lists(st.integers(0, 255), max_size=6).map(lambda values: np.array(values, np.uint8))
values = st.recursive(
    st.one_of(scalars, arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=4)),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.sets(st.integers(-4, 4), max_size=3),
        st.builds(Piece, st.tuples(st.integers(0, 3), st.integers(0, 3)), st.lists(inner)),
        st.builds(Slotted, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=12,
)


def ruin(value: Any) -> None:
    """Change everything that can be changed, all the way down."""
    if isinstance(value, np.ndarray):
        value += 1
    elif isinstance(value, (list, deque)):
        for item in list(value):
            ruin(item)
        value.append("ruined")
    elif isinstance(value, dict):
        for item in list(value.values()):
            ruin(item)
        value["ruined"] = 1
    elif isinstance(value, set):
        value.add(99)
    elif isinstance(value, tuple):
        for item in value:
            ruin(item)
    elif isinstance(value, Piece):
        ruin(value.moves)
        value.position = (-1, -1)
        value.extra = 1  # type: ignore[attr-defined]
    elif isinstance(value, Slotted):
        ruin(value.value)
        value.change()


@given(values)
def test_restore_undoes_any_change_and_the_digest_says_so(value: Any) -> None:
    root = Holder()
    root.value = value  # type: ignore[attr-defined]
    before, saved = graph.digest([root]), graph.capture([root])
    for _ in range(2):
        ruin(value)
        root.value = root.added = 17  # type: ignore[attr-defined]
        assert graph.digest([root]) != before
        graph.restore(saved)
        assert graph.digest([root]) == before
        assert not hasattr(root, "added")
        assert root.value is value  # type: ignore[attr-defined]


@given(values, values)
def test_digest_is_equal_exactly_for_equal_states(first: Any, second: Any) -> None:
    twin = copy.deepcopy(first)
    assert graph.digest([first]) == graph.digest([twin])
    equal = graph.encoded_bytes([first]) == graph.encoded_bytes([second])
    assert (graph.digest([first]) == graph.digest([second])) == equal
    if type(first) is type(second) and isinstance(first, (int, str, bytes, bool)):
        assert equal == (first == second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ([1, 2], [2, 1]),
        ([1], (1,)),
        ("a", b"a"),
        (np.zeros(4), np.zeros((2, 2))),
        (np.zeros(2, np.float32), np.zeros(2, np.int32)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Colour.RED, Colour.BLUE),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (random.Random(1), random.Random(2)),
        ((np.zeros(2), 1), (np.ones(2), 1)),
        (([1], "a"), ([2], "a")),
    ],
)
def test_digest_tells_apart(one: Any, other: Any) -> None:
    assert graph.digest([one]) != graph.digest([other])


def test_sharing_counts_for_what_can_change_only() -> None:
    shared, number = [1], np.int64(7)
    assert graph.digest([[shared, shared]]) != graph.digest([[[1], [1]]])
    assert graph.digest([(number, number)]) == graph.digest([(np.int64(7), np.int64(7))])
    assert graph.digest([{3, 1, 2}]) == graph.digest([{2, 3, 1}])


def test_cycles_sharing_and_bound_methods_survive() -> None:
    class Helper:
        def __init__(self) -> None:
            self.count = 0

        def tick(self) -> int:
            self.count += 1
            return self.count

    root = Holder()
    helper = Helper()
    root.tick = helper.tick  # type: ignore[attr-defined]
    root.log = functools.partial(print, [1, 2])  # type: ignore[attr-defined]
    loop: list[Any] = []
    loop.append(loop)
    root.loop, root.again = loop, loop  # type: ignore[attr-defined]
    saved = graph.capture([root])
    helper.tick()
    root.log.args[0].clear()  # type: ignore[attr-defined]
    loop.clear()
    graph.restore(saved)
    assert root.tick() == 1  # type: ignore[attr-defined]
    assert root.log.args == ([1, 2],)  # type: ignore[attr-defined]
    assert root.loop is root.again
    assert root.loop[0] is loop


def test_generators_continue_from_where_they_were_and_stay_shared() -> None:
    root = Holder()
    shared = np.random.default_rng(3)
    root.first = root.second = shared  # type: ignore[attr-defined]
    root.legacy, root.python = np.random.RandomState(3), random.Random(3)  # type: ignore[attr-defined]

    def draw() -> tuple[Any, ...]:
        return (
            root.first.random(),  # type: ignore[attr-defined]
            root.second.integers(100, dtype=np.uint32),  # type: ignore[attr-defined]
            root.legacy.normal(),  # type: ignore[attr-defined]
            root.python.gauss(0, 1),  # type: ignore[attr-defined]
        )

    draw()
    saved = graph.capture([root])
    expected = [draw() for _ in range(3)]
    graph.restore(saved)
    assert [draw() for _ in range(3)] == expected
    assert root.first is root.second  # type: ignore[attr-defined]
    assert len(graph.random_sources([root])) == 3


def test_containers_of_every_kind_are_put_back_in_place() -> None:
    history = History([1, 2])
    history.note = "a"  # type: ignore[attr-defined]
    root = Holder()
    kept = {
        "ordered": OrderedDict(a=1, b=2),
        "default": defaultdict(list, {"a": [1]}),
        "objects": np.array([[1], {"k": 2}, None], dtype=object),
        "bytes": bytearray(b"abc"),
        "history": history,
        "view": np.arange(6).reshape(2, 3)[:, 1:],
    }
    for name, value in kept.items():
        setattr(root, name, value)
    before, saved = graph.digest([root]), graph.capture([root])
    kept["ordered"].move_to_end("a")
    kept["default"]["a"].append(2)
    kept["objects"][0].append(9)
    kept["objects"][2] = 5
    kept["bytes"].extend(b"d")
    history.note, history[0] = "b", 7  # type: ignore[attr-defined]
    kept["view"][0, 0] = 50
    assert graph.digest([root]) != before
    graph.restore(saved)
    assert graph.digest([root]) == before
    assert list(kept["ordered"]) == ["a", "b"]
    assert kept["objects"][0] == [1]
    assert (list(history), history.note) == ([1, 2], "a")  # type: ignore[attr-defined]


class Board(gym.Env[Any, Any]):
    """State in an object nobody can look into, unless the user says how."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Discrete(1000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.counter = itertools.count()
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        value = next(self.counter)
        return value, float(value), value > 50, False, {}


class KnownBoard(Board):
    """The same, with its few lines of `register_state`."""


def test_opaque_attributes_are_named() -> None:
    simulator = make_simulator(Board())
    simulator.reset(0)
    assert simulator.opaque() == ("Board.counter (itertools.count)",)


def test_register_state_makes_the_opaque_measurable() -> None:
    def restore(env: KnownBoard, data: dict[str, Any]) -> None:
        env.counter = itertools.count(data["next"].pop())

    register_state(
        KnownBoard,
        # restore empties what it gets: a snapshot has to survive that
        save=lambda env: {"next": [int(repr(env.counter)[6:-1])]},
        restore=restore,
    )
    simulator = make_simulator(KnownBoard())
    simulator.reset(0)
    simulator.step(0)
    saved, digest = simulator.save(), simulator.digest()
    for _ in range(3):
        assert simulator.step(0).observation == 1
        assert simulator.digest() != digest
        simulator.restore(saved)
        assert simulator.digest() == digest
    assert simulator.opaque() == ()


def test_register_state_wants_a_class() -> None:
    with pytest.raises(InvalidInput, match="expects a class"):
        register_state("Board", save=repr, restore=setattr)  # type: ignore[arg-type]


def test_a_mujoco_that_cannot_copy_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mujoco: Any = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it stands
    simulator = make_simulator(gym.make("InvertedPendulum-v5"))
    simulator.reset(0)
    monkeypatch.delattr(mujoco, "mj_copyData")
    with pytest.raises(EnvironmentFault, match=r"MuJoCo .* cannot copy a simulation, MuJoCo 3.5"):
        simulator.save()
