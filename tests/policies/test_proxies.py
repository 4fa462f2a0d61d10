"""Proxies against arrays worked out by hand, and properties they must have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from safemargin.errors import InvalidInput, PolicyFault
from safemargin.policies import proxies
from safemargin.policies.proxies import (
    PROXIES,
    Proxy,
    default_proxy,
    find_proxy,
    proxies_for,
    proxy_at,
    proxy_values,
    register_proxy,
)

SCORES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6),
    elements=st.floats(-1e4, 1e4, width=32),
)


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(proxies, "PROXIES", dict(PROXIES))
    return


def values(name: str, scores: Any, **options: Any) -> list[float]:
    return proxy_values(PROXIES[name], np.asarray(scores, np.float32), **options).tolist()


def test_q_proxies_by_hand() -> None:
    q = [[1.0, 4.0, 1.0], [2.0, 2.0, 2.0]]
    assert values("q_range", q) == [3.0, 0.0]  # 4 − 1
    assert values("q_advantage_over_mean", q) == [2.0, 0.0]  # 4 − 6/3
    assert values("q_variance", q) == [2.0, 0.0]  # (1 + 4 + 1)/3


def test_logit_proxies_by_hand() -> None:
    # probabilities 1/4, 3/4 and 1/2, 1/2
    logits = [[7.0, 7.0 + math.log(3)], [-5.0, -5.0]]
    assert values("log_prob_range", logits) == pytest.approx([math.log(3), 0], abs=1e-6)
    assert values("prob_range", logits) == pytest.approx([0.5, 0], abs=1e-6)
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert values("certainty", logits) == pytest.approx([-entropy, -math.log(2)], abs=1e-6)


def test_gaussian_proxies_by_hand() -> None:
    # One dimension on [−1, 2], σ = 1/2. Mean 0: nearest point 0, farthest 2 → 4 / (2 · 1/4) = 8.
    # Mean 3 (outside): nearest 2, distance 1; farthest −1, distance 4 → (16 − 1) / (1/2) = 30.
    box = gym.spaces.Box(np.array([-1.0]), np.array([2.0]), dtype=np.float64)
    scores = np.array([[[0.0], [math.log(0.5)]], [[3.0], [math.log(0.5)]]])
    result = proxy_values(PROXIES["log_prob_range"], scores, action_space=box)
    assert result == pytest.approx([8, 30])
    # entropy of N(0, σ²): log(σ √(2πe))
    expected = -math.log(0.5 * math.sqrt(2 * math.pi * math.e))
    assert values("certainty", scores) == pytest.approx([expected, expected])


def test_gaussian_range_is_the_range_over_a_grid_of_the_box() -> None:
    random = np.random.default_rng(0)
    low, high = np.array([-1.0, -0.5]), np.array([0.5, 2.0])
    axes = [np.linspace(low[d], high[d], 301) for d in range(2)]
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    for _ in range(20):
        mean, log_std = random.normal(size=2), random.normal(size=2) * 0.3
        density = (-0.5 * ((grid - mean) / np.exp(log_std)) ** 2 - log_std).sum(axis=1)
        result = proxy_at(
            PROXIES["log_prob_range"],
            np.stack([mean, log_std]),
            action_space=gym.spaces.Box(low, high, dtype=np.float64),
        )
        assert result == pytest.approx(np.ptp(density), rel=1e-3)


@given(SCORES)
def test_ranges_are_never_negative_and_entropy_stays_in_its_bounds(scores: np.ndarray) -> None:
    for name in ("q_range", "q_advantage_over_mean", "q_variance", "log_prob_range", "prob_range"):
        assert min(values(name, scores)) >= -1e-12
    assert max(values("prob_range", scores)) <= 1
    certainty = values("certainty", scores)
    assert max(certainty) <= 0
    assert min(certainty) >= -math.log(scores.shape[1]) - 1e-9


@given(SCORES, st.floats(-1e4, 1e4))
def test_shifting_logits_changes_nothing(scores: np.ndarray, shift: float) -> None:
    exact = scores.astype(np.float64)
    for name in ("log_prob_range", "prob_range", "certainty"):
        plain = proxy_values(PROXIES[name], exact)
        np.testing.assert_allclose(proxy_values(PROXIES[name], exact + shift), plain, atol=1e-7)


def test_extreme_logits_stay_finite() -> None:
    scores = [[3e38, -3e38], [1e4, -1e4]]
    for name in ("log_prob_range", "prob_range", "certainty"):
        assert np.isfinite(values(name, scores)).all()


def test_one_step_is_a_row_of_many() -> None:
    scores = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    for proxy in (*proxies_for("q"), *proxies_for("logits")):
        many = proxy_values(proxy, scores)
        assert [proxy_at(proxy, row) for row in scores] == many.tolist()


def test_which_apply() -> None:
    assert [p.name for p in proxies_for("q")] == ["q_range", "q_advantage_over_mean", "q_variance"]
    assert [p.name for p in proxies_for("logits")] == ["log_prob_range", "prob_range", "certainty"]
    assert [p.name for p in proxies_for("gaussian")] == ["log_prob_range", "certainty"]
    assert proxies_for("actions") == ()
    assert [default_proxy(kind) for kind in ("q", "logits", "gaussian")] == [
        "q_range",
        "log_prob_range",
        "log_prob_range",
    ]
    with pytest.raises(InvalidInput, match="no proxy is built in for a policy whose scores are"):
        default_proxy("actions")
    assert all(proxy.label != proxy.name for proxy in PROXIES.values())


def test_an_own_proxy_sees_the_last_observations_and_n() -> None:
    seen = []

    def distance(scores: Any, history: list[Any], n: int | None) -> float:
        seen.append(([float(each) for each in history], n))
        return float(scores[0] + history[-1] + n)

    proxy = register_proxy("distance", distance, kinds=["q"], history=2, per_n=True)
    assert proxy in proxies_for("q")
    result = proxy_values(
        proxy, np.zeros((3, 2)), observations=np.array([10.0, 20.0, 30.0]), n_values=(1, 4)
    )
    assert result.tolist() == [[11, 14], [21, 24], [31, 34]]
    assert seen[::2] == [([10.0], 1), ([10.0, 20.0], 1), ([20.0, 30.0], 1)]
    with pytest.raises(InvalidInput, match="proxy 'distance' looks at n: pass n_values"):
        proxy_at(proxy, np.zeros(2), history=[1.0])
    with pytest.raises(InvalidInput, match="proxy 'distance' needs the observations"):
        proxy_values(proxy, np.zeros((3, 2)), n_values=(1,))


def test_no_steps_give_no_values() -> None:
    proxy = Proxy("mine", lambda scores, history, n: 0.0, ("q",), per_n=True)
    assert proxy_values(proxy, np.zeros((0, 2)), n_values=(1, 2)).shape == (0, 2)
    assert proxy_values(PROXIES["q_variance"], np.zeros((0, 2))).shape == (0,)


def test_names_are_taken_once() -> None:
    with pytest.raises(InvalidInput, match="a proxy called 'q_range' exists already"):
        register_proxy("q_range", lambda scores, history, n: 0.0, kinds=["q"])
    twin = Proxy("q_range", lambda scores, history, n: 0.0, ("q",))
    with pytest.raises(InvalidInput, match="two proxies are called 'q_range'"):
        proxies_for("q", [twin])
    assert proxies_for("q", ["q_range"]) == proxies_for("q")


def test_unknown_and_unfitting_names() -> None:
    with pytest.raises(InvalidInput, match="proxy 'q_rang' is unknown; did you mean 'q_range'"):
        find_proxy("q_rang")
    with pytest.raises(InvalidInput, match="'q_range' needs scores of kind q, and the policy give"):
        proxies_for("logits", ["q_range"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kinds": ()}, "kinds must be some of q, logits, gaussian, actions"),
        ({"kinds": ("Q",)}, "kinds must be some of"),
        ({"history": -1}, "history must be at least 0"),
        ({"name": ""}, "needs a name and a function"),
        ({"vectorised": True, "per_n": True}, "a vectorised proxy sees scores only"),
    ],
)
def test_proxies_that_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        Proxy(**{"name": "mine", "function": float, "kinds": ("q",), **options})


def test_a_proxy_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from safemargin.policies.proxies import Proxy\n"
        "def height(scores, history, n):\n    return history[-1][0]\n"
        "late = Proxy('late', lambda scores, history, n: n, ('q',), per_n=True)\n"
        "number = 3\n"
    )
    *_, height, late = proxies_for("q", [f"{file}:height", f"{file}:late"])
    assert (height.name, height.history, height.per_n) == ("height", 1, False)
    assert proxy_values(height, np.zeros((2, 2)), observations=np.ones((2, 4))).tolist() == [1, 1]
    assert proxy_at(late, np.zeros(2), n_values=(1, 2)).tolist() == [1, 2]
    with pytest.raises(InvalidInput, match=r"expected a Proxy or a function of \(scores, history"):
        find_proxy(f"{file}:number")
    with pytest.raises(InvalidInput, match="no 'heigt' there; did you mean 'height'"):
        find_proxy(f"{file}:heigt")


def test_faults_name_the_proxy_and_the_step() -> None:
    proxy = Proxy("mine", lambda scores, history, n: scores[0], ("q",))
    with pytest.raises(PolicyFault, match="proxy 'mine' is nan at step 12"):
        proxy_values(proxy, np.array([[0.0], [1.0], [np.nan]]), first_step=10)
    with pytest.raises(PolicyFault, match="proxy 'q_range' is nan at step 1"):
        proxy_values(PROXIES["q_range"], np.array([[0.0], [np.nan]]))
    proxy = Proxy("mine", lambda scores, history, n: 1 / 0, ("q",))
    with pytest.raises(PolicyFault, match="proxy 'mine' failed at step 3: ZeroDivisionError"):
        proxy_values(proxy, np.zeros((1, 2)), first_step=3)


def test_a_gaussian_range_needs_a_bounded_box() -> None:
    scores = np.zeros((1, 2, 1))
    with pytest.raises(InvalidInput, match="needs the box of actions"):
        proxy_values(PROXIES["log_prob_range"], scores)
    box = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    with pytest.raises(InvalidInput, match="needs a bounded box of 1 dimensions"):
        proxy_values(PROXIES["log_prob_range"], scores, action_space=box)
