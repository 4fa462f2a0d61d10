"""Proxies: cheap numbers, computed from action scores, that say how much an action matters (§ 2).

Higher always means more critical. A proxy sees only what the agent sees: its scores, the last
observations and, on request, the perturbation length n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Array, Floats
from safemargin.errors import InvalidInput, PolicyFault, did_you_mean, errors_as

if TYPE_CHECKING:
    from safemargin.policies.base import ScoreKind

ALL_KINDS: tuple[ScoreKind, ...] = ("q", "logits", "gaussian", "actions")


@dataclass(frozen=True)
class Proxy:
    """A named proxy.

    A user's `function(scores, history, n)` gets the scores of one step, the last `history`
    observations (newest last, fewer at the start of an episode), and n or None; it returns a
    number. A `vectorised` one is `function(scores, action_space)` over all steps at once.
    """

    name: str
    function: Callable[..., Any]
    kinds: tuple[ScoreKind, ...]
    """The kinds of scores that it can be computed from."""
    description: str = ""
    """The label of an axis, with the unit."""
    history: int = 0
    """The number of last observations that the function needs."""
    per_n: bool = False
    """Whether the value depends on the perturbation length n."""
    vectorised: bool = False

    @property
    def label(self) -> str:
        """The label of an axis: the description, or the name where there is none."""
        return self.description or self.name

    def __post_init__(self) -> None:
        if not self.name or not callable(self.function):
            raise InvalidInput(f"proxy {self.name!r}: needs a name and a function")
        unknown = [kind for kind in self.kinds if kind not in ALL_KINDS]
        if unknown or not self.kinds:
            raise InvalidInput(
                f"proxy {self.name!r}: kinds must be some of {', '.join(ALL_KINDS)}, "
                f"got {list(self.kinds)}"
            )
        if self.history < 0:
            raise InvalidInput(f"proxy {self.name!r}: history must be at least 0")
        if self.vectorised and (self.history or self.per_n):
            raise InvalidInput(f"proxy {self.name!r}: a vectorised proxy sees scores only")


def q_range(scores: Floats, action_space: Any = None) -> Floats:
    """Return max Q − min Q (Lin 2017), [steps]."""
    return np.asarray(scores.max(axis=-1) - scores.min(axis=-1))


def q_advantage_over_mean(scores: Floats, action_space: Any = None) -> Floats:
    """Return max Q − mean Q (Huang 2018), [steps]."""
    return np.asarray(scores.max(axis=-1) - scores.mean(axis=-1))


def q_variance(scores: Floats, action_space: Any = None) -> Floats:
    """Return the variance of Q over equally weighted actions (Spielberg 2018), [steps]."""
    return np.asarray(scores.var(axis=-1))


def log_prob_range(scores: Floats, action_space: Any = None) -> Floats:
    """Return max − min of the log-probabilities, [steps]; for a Gaussian, over the action box."""
    if scores.ndim == 2:  # the normaliser is the same for all actions and cancels
        return np.asarray(scores.max(axis=-1) - scores.min(axis=-1))
    low, high = _bounds(action_space, scores.shape[-1])
    mean, log_std = scores[:, 0], scores[:, 1]  # [steps, dims]
    # Each dimension by itself: the density is highest at the point of [low, high] nearest to the
    # mean and lowest at the farther end.
    nearest = np.abs(mean - np.clip(mean, low, high))
    farthest = np.maximum(np.abs(mean - low), np.abs(high - mean))
    with np.errstate(over="ignore"):  # inf is reported with its step by proxy_values
        return np.asarray(((farthest**2 - nearest**2) / (2 * np.exp(2 * log_std))).sum(axis=-1))


def prob_range(scores: Floats, action_space: Any = None) -> Floats:
    """Return max − min of the probabilities (Lin 2017), [steps]."""
    probabilities = np.exp(log_softmax(scores))
    return np.asarray(probabilities.max(axis=-1) - probabilities.min(axis=-1))


def certainty(scores: Floats, action_space: Any = None) -> Floats:
    """Return minus the entropy of the action distribution, [steps]: high for a sure agent."""
    if scores.ndim == 3:  # differential entropy of independent Gaussians
        return np.asarray(-(scores[:, 1] + 0.5 * math.log(2 * math.pi * math.e)).sum(axis=-1))
    log_probabilities = log_softmax(scores)
    return np.asarray((np.exp(log_probabilities) * log_probabilities).sum(axis=-1))


def log_softmax(logits: Floats) -> Floats:
    """Return log-probabilities, [..., actions], from logits of any size without overflow."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


_BUILT_IN: tuple[tuple[Callable[..., Floats], tuple[ScoreKind, ...], str], ...] = (
    (q_range, ("q",), "max Q − min Q (reward units)"),
    (q_advantage_over_mean, ("q",), "max Q − mean Q (reward units)"),
    (q_variance, ("q",), "variance of Q (reward units²)"),
    (log_prob_range, ("logits", "gaussian"), "max − min log-probability (nats)"),
    (prob_range, ("logits",), "max − min probability"),
    (certainty, ("logits", "gaussian"), "−entropy (nats)"),
)


def _without_critics(*_: Any) -> float:
    raise PolicyFault("only a policy that has critics can compute it (Policy.own_proxies)")


CRITIC_PROXIES: dict[str, Proxy] = {
    name: Proxy(name, _without_critics, ("actions",), description, history=1)
    for name, description in (
        ("critic_advantage", "Q of the own action − mean Q of random actions (reward units)"),
        ("critic_disagreement", "spread of the critics' Q of the own action (reward units)"),
    )
}
"""The proxies of critics; a policy that has critics supplies the functions (see `critics`)."""

PROXIES: dict[str, Proxy] = {
    function.__name__: Proxy(function.__name__, function, kinds, description, vectorised=True)
    for function, kinds, description in _BUILT_IN
} | CRITIC_PROXIES
"""All proxies by name, including those that users registered."""

_DEFAULTS: dict[str, str] = {
    "q": "q_range",
    "logits": "log_prob_range",
    "gaussian": "log_prob_range",
}


def register_proxy(
    name: str,
    function: Callable[..., Any],
    *,
    kinds: Iterable[ScoreKind],
    description: str = "",
    history: int = 0,
    per_n: bool = False,
) -> Proxy:
    """Add your own proxy: `function(scores [actions], history, n or None) -> float`."""
    if name in PROXIES:
        raise InvalidInput(f"a proxy called {name!r} exists already; choose another name")
    proxy = Proxy(name, function, tuple(kinds), description, history, per_n)
    PROXIES[name] = proxy
    return proxy


def find_proxy(source: str | Proxy) -> Proxy:
    """Return the proxy that a name, a 'file.py:function' text or a Proxy stands for."""
    if isinstance(source, Proxy):
        return source
    if source in PROXIES:
        return PROXIES[source]
    if ":" not in source and not source.endswith(".py"):
        raise InvalidInput(f"proxy {source!r} is unknown; {did_you_mean(source, PROXIES)}")
    from safemargin.core.importing import locate

    value = locate(source, what="proxy")
    if isinstance(value, Proxy):
        return value
    if not callable(value):
        raise InvalidInput(
            f"proxy {source!r}: expected a Proxy or a function of (scores, history, n), "
            f"got {type(value).__name__}"
        )
    # A bare function cannot say what it needs: it gets the newest observation, and no n.
    return Proxy(source.rpartition(":")[2], value, ALL_KINDS, history=1)


def default_proxy(kind: ScoreKind, recorded: Sequence[Proxy] = ()) -> str:
    """Return the paper's proxy for a kind of scores.

    Where there is none, it is the first of the recorded proxies; those of critics go before others.
    """
    if kind not in _DEFAULTS and recorded:
        return max(recorded, key=lambda proxy: proxy.name in CRITIC_PROXIES).name
    if kind not in _DEFAULTS:
        raise InvalidInput(
            f"no proxy is built in for a policy whose scores are {kind!r}; "
            "name your own as 'file.py:function'"
        )
    return _DEFAULTS[kind]


def proxies_for(
    kind: ScoreKind, extra: Iterable[str | Proxy] = (), own: Iterable[Proxy] = ()
) -> tuple[Proxy, ...]:
    """Return all proxies that apply to a kind of scores, the policy's own, and the extra ones."""
    chosen = {
        name: proxy
        for name, proxy in PROXIES.items()
        if kind in proxy.kinds and name not in CRITIC_PROXIES
    } | {proxy.name: proxy for proxy in own}
    for source in extra:
        proxy = find_proxy(source)
        if kind not in proxy.kinds:
            raise InvalidInput(
                f"proxy {proxy.name!r} needs scores of kind {' or '.join(proxy.kinds)}, "
                f"and the policy gives {kind}"
            )
        if proxy is CRITIC_PROXIES.get(proxy.name):
            if proxy.name not in chosen:
                raise InvalidInput(
                    f"proxy {proxy.name!r} needs critics that the policy does not have; it is for "
                    "SAC, TD3, TQC, CrossQ and DDPG models (the disagreement: with two critics or "
                    "more)"
                )
            continue
        if chosen.get(proxy.name, PROXIES.get(proxy.name, proxy)) != proxy:
            raise InvalidInput(f"two proxies are called {proxy.name!r}; rename one of them")
        chosen[proxy.name] = proxy
    return tuple(chosen.values())


def proxy_values(
    proxy: Proxy,
    scores: npt.NDArray[Any],
    *,
    observations: Sequence[Any] | Array | None = None,
    n_values: Sequence[int] = (),
    action_space: Any = None,
    first_step: int = 0,
) -> Floats:
    """Return a proxy's values over steps: [steps], or [steps, n] where it looks at n.

    `scores` are [steps, actions] (or [steps, 2, dims]), `observations` [steps, ...]. A value that
    is not finite raises PolicyFault, which names the step, counted from `first_step`.
    """
    exact = np.asarray(scores, dtype=np.float64)
    if proxy.vectorised:
        values = np.asarray(proxy.function(exact, action_space), dtype=np.float64)
        _require_finite(proxy, values, first_step)
        return values
    if proxy.history and observations is None:
        raise InvalidInput(f"proxy {proxy.name!r} needs the observations of the episode")
    seen: Any = () if observations is None else observations
    rows = [
        proxy_at(
            proxy,
            exact[step],
            history=seen[max(0, step + 1 - proxy.history) : step + 1],
            n_values=n_values,
            step=first_step + step,
        )
        for step in range(len(exact))
    ]
    shape = (len(exact), len(n_values)) if proxy.per_n else (len(exact),)
    return np.asarray(rows, dtype=np.float64).reshape(shape)


def proxy_at(
    proxy: Proxy,
    scores: npt.NDArray[Any],
    *,
    history: Sequence[Any] = (),
    n_values: Sequence[int] = (),
    action_space: Any = None,
    step: int = 0,
) -> float | Floats:
    """Return a proxy's value at one step, from scores [actions]; [n] where it looks at n."""
    exact = np.asarray(scores, dtype=np.float64)
    if proxy.vectorised:
        values = proxy_values(proxy, exact[None], action_space=action_space, first_step=step)
        return float(values[0])
    if proxy.per_n and not n_values:
        raise InvalidInput(f"proxy {proxy.name!r} looks at n: pass n_values")
    lengths = n_values if proxy.per_n else (None,)
    with errors_as(PolicyFault, f"proxy {proxy.name!r} failed at step {step}:"):
        results = [float(proxy.function(exact, list(history), n)) for n in lengths]
    values = np.asarray(results, dtype=np.float64)
    _require_finite(proxy, values[None], step)
    return values if proxy.per_n else float(values[0])


def _require_finite(proxy: Proxy, values: Floats, first_step: int) -> None:
    """Raise PolicyFault at the first value, of [steps] or [steps, n], that is not finite."""
    finite = np.isfinite(values)
    if not finite.all():
        index = np.argwhere(~finite)[0]
        raise PolicyFault(
            f"proxy {proxy.name!r} is {values[tuple(index)]} at step {first_step + int(index[0])}; "
            "a proxy must be a finite number"
        )


def _bounds(action_space: Any, dims: int) -> tuple[Floats, Floats]:
    """Return the lower and upper ends of the box of actions, each [dims]."""
    low, high = getattr(action_space, "low", None), getattr(action_space, "high", None)
    if low is None or high is None:
        raise InvalidInput("log_prob_range of a Gaussian policy needs the box of actions")
    lower = np.asarray(low, dtype=np.float64).reshape(-1)
    upper = np.asarray(high, dtype=np.float64).reshape(-1)
    if lower.size != dims or not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        raise InvalidInput(
            f"log_prob_range of a Gaussian policy needs a bounded box of {dims} dimensions, "
            f"got low {lower.tolist()} and high {upper.tolist()}"
        )
    return lower, upper


def single_values(values: Floats) -> Floats:
    """Return one value per step; for a proxy that looks at n, that of the smallest n."""
    return values if values.ndim == 1 else values[:, 0]
