"""Functions that come out as the same program are compiled once, and no others are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from safemargin.core import jax_library
from safemargin.core.jax_library import SharedProgram

jax = pytest.importorskip("jax", reason="needs safemargin[jax]")
jnp = jax.numpy

MANY = np.arange(5000, dtype=np.float32)
ONE_OTHER = np.where(MANY == 4321, -1, MANY).astype(np.float32)


def adding(constant: Any, *devices: str) -> SharedProgram:
    def add(x: Any) -> Any:
        return jax.vmap(jax.jit(lambda each: each + constant))(x)

    return SharedProgram(add, devices)


def compiled(caplog: pytest.LogCaptureFixture, *programs: SharedProgram, given: Any) -> list[Any]:
    """Call programs with the same arguments; return what they gave, and how many were compiled."""
    caplog.clear()
    with jax.log_compiles():
        found = [np.asarray(program(given)) for program in programs]
    names = [each.getMessage() for each in caplog.records]
    return [*found, sum(name.startswith("Finished XLA compilation of jit(add)") for name in names)]


def test_the_same_program_is_compiled_once(caplog: pytest.LogCaptureFixture) -> None:
    given = np.ones((2, 1), np.float32)
    first, second = adding(MANY), adding(MANY.copy())
    one, other, compilations = compiled(caplog, first, second, given=given)
    assert compilations == 1
    assert (one == 1 + MANY).all()
    assert (other == one).all()
    *_, compilations = compiled(caplog, first, second, given=given[:1])  # of another shape
    assert compilations == 1
    *_, compilations = compiled(caplog, adding(MANY), adding(MANY, "another"), given=given)
    assert compilations == 1  # the first is known already


@pytest.mark.parametrize(
    ("constant", "another"),
    [(MANY, ONE_OTHER), (np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(1)))],
)
def test_another_constant_makes_another_program(
    caplog: pytest.LogCaptureFixture, constant: Any, another: Any
) -> None:
    given = np.zeros((3, 1), np.float32)
    one, other, compilations = compiled(caplog, adding(constant), adding(another), given=given)
    assert compilations == 2
    assert (one == constant).all()
    assert (other == another).all()


def test_what_calls_python_is_never_shared() -> None:
    def asking(answer: float) -> SharedProgram:
        kind = jax.ShapeDtypeStruct((), np.float32)
        return SharedProgram(lambda x: jax.pure_callback(lambda _: np.float32(answer), kind, x))

    assert [float(asking(answer)(np.float32(0))) for answer in (1.0, 2.0)] == [1, 2]


class Here(NamedTuple):
    x: Any


class There(NamedTuple):
    x: Any


def test_what_comes_out_keeps_its_class_and_type() -> None:
    for kind in (Here, There, Here):
        assert type(SharedProgram(lambda x, kind=kind: kind(x + 1))(np.float32(0))) is kind
    for constant, weak in ((jnp.float32(1), False), (1.0, True)):
        found = SharedProgram(lambda constant=constant: jnp.where(True, constant, constant))()
        assert found.weak_type is weak


def test_programs_used_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_library, "_programs", type(jax_library._programs)())
    monkeypatch.setattr(jax_library, "_MOST_PROGRAMS", 2)
    given = np.zeros((1, 1), np.float32)
    programs = [adding(np.float32(number)) for number in range(3)]
    for _ in range(2):
        assert [float(each(given)[0, 0]) for each in programs] == [0, 1, 2]
    assert len(jax_library._programs) == 2
