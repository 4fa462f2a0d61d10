"""Laws of loss given the proxy, with known truth, and what a bound is worth under them.

The default method was made with LISTED, NEW and LATER in view. FRESH were written when it was
finished, and looked at once.
Under each, the chance of C_n = max over n' ≤ n of c_n' ≤ x given p has a closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import expit
from scipy.stats import beta as beta_law
from scipy.stats import gamma, laplace, logistic, lognorm, lomax, norm, rayleigh

from safemargin.core.records import Floats
from safemargin.margins.bounds.table import Bound
from safemargin.margins.lookup import Margins

N_VALUES = (1, 2, 4, 8, 16, 32)
SIZES = np.array([0.3, 0.5, 0.8, 1.2, 1.6, 2.0])  # [n] how losses grow with n, where they do
STEPS = 1000
"""Natural steps at which a bound is judged: even quantiles of their law, so nothing is left to
chance."""
BINS = 5

Generator = np.random.Generator


@dataclass(frozen=True)
class Law:
    """How losses follow from the proxy, and how proxies are met."""

    natural: Callable[[Floats], Floats]  # quantiles of the natural proxies
    draw: Callable[[Floats, Generator], Floats]  # p [moments] → c [moments, n]
    below: Callable[[Floats, Floats], Floats]  # x [points, n], p [points, 1] → P(C_n ≤ x | p)


def _shared(factor: Callable[[Floats, Generator], Floats]) -> Callable[[Floats, Generator], Floats]:
    """All n of a moment share one draw."""
    return lambda p, rng: factor(p, rng)[:, None] * SIZES


def _product(each: Callable[[Floats, Floats], Floats]) -> Callable[[Floats, Floats], Floats]:
    """The n of a moment are independent: P(C_n ≤ x) is the product over all n' ≤ n.

    `each` (x [points, 1], p [points, 1]) → [points, n].
    """

    def below(x: Floats, p: Floats) -> Floats:
        columns = [np.prod(each(x[:, [i]], p)[:, : i + 1], axis=1) for i in range(x.shape[1])]
        return np.stack(columns, axis=1)

    return below


def _gaussian_below(x: Floats, p: Floats) -> Floats:
    # Below 0 the largest of s_n · z is the one of the smallest s_n.
    return norm.cdf(np.where(x >= 0, x / SIZES, x / SIZES[0]), p / 2, 0.5)


def _bimodal_chance(p: Floats) -> Floats:
    return 0.02 + 0.5 * expit(2 * (p - 4))


def _bimodal_draw(p: Floats, rng: Generator) -> Floats:
    big = rng.random(len(p)) < _bimodal_chance(p)
    return np.where(
        big, 1.0 + 0.1 * rng.normal(size=len(p)), 0.05 * np.abs(rng.normal(size=len(p)))
    )


def _bimodal_below(x: Floats, p: Floats) -> Floats:
    chance, y = _bimodal_chance(p), x / SIZES
    small = np.clip(2 * norm.cdf(y / 0.05) - 1, 0, 1)
    return (1 - chance) * small + chance * norm.cdf((y - 1) / 0.1)


def _gamma_natural(u: Floats) -> Floats:
    return gamma.ppf(u, 2) + 0.1


LISTED = {
    # c = s_n · p · u, u uniform in [0, 1]: the size of losses grows with the proxy
    "uniform": Law(
        _gamma_natural,
        _shared(lambda p, rng: p * rng.random(len(p))),
        lambda x, p: np.clip(x / (SIZES * p), 0, 1),
    ),
    # c = s_n · N(p/2, 0.5)
    "gaussian": Law(
        _gamma_natural,
        _shared(lambda p, rng: p / 2 + 0.5 * rng.normal(size=len(p))),
        _gaussian_below,
    ),
    # nothing in four cases of five, else exponential with mean p
    "rare": Law(
        _gamma_natural,
        _shared(lambda p, rng: p * rng.exponential(size=len(p)) * (rng.random(len(p)) < 0.2)),
        lambda x, p: np.where(x < 0, 0.0, 1 - 0.2 * np.exp(-np.maximum(x, 0) / (SIZES * p))),
    ),
    # a point is lost or it is not, the more often the higher the proxy
    "bimodal": Law(_gamma_natural, _shared(_bimodal_draw), _bimodal_below),
    # c = s_n · p · u_n², independent for each n
    "independent": Law(
        _gamma_natural,
        lambda p, rng: SIZES * p[:, None] * rng.random((len(p), len(SIZES))) ** 2,
        _product(lambda x, p: np.sqrt(np.clip(x / (SIZES * p), 0, 1))),
    ),
    # c = p · u_n, independent, no larger for larger n: the chain fails most often here
    "flat": Law(
        _gamma_natural,
        lambda p, rng: p[:, None] * rng.random((len(p), len(SIZES))),
        _product(lambda x, p: np.clip(x / p, 0, 1) * np.ones(len(SIZES))),
    ),
}


def _hump(p: Floats) -> Floats:
    return p * np.exp(1 - p / 2)


def _threshold_draw(p: Floats, rng: Generator) -> Floats:
    return np.where(p < 0.5, 0.05, 1.0) * rng.beta(2, 3, size=len(p))


def _onset_rate(p: Floats) -> Floats:
    return 0.15 * expit(3 * (p - 1.5))


def _onset_draw(p: Floats, rng: Generator) -> Floats:
    """Harm sets in at a random action; from then on the loss is there, whatever n."""
    onset = rng.geometric(_onset_rate(p))[:, None]
    return (onset <= np.array(N_VALUES)) * (0.5 + rng.exponential(0.5, size=len(p)))[:, None]


def _onset_below(x: Floats, p: Floats) -> Floats:
    none = (1 - _onset_rate(p)) ** np.array(N_VALUES)
    loss = 1 - np.exp(-np.maximum(x - 0.5, 0) / 0.5)
    return np.where(x < 0, 0.0, none + (1 - none) * loss)


def _six_levels(u: Floats) -> Floats:
    return np.floor(6 * u**1.5) + 1.0


NEW = {
    # long tails: log-normal losses that grow exponentially with an evenly spread proxy
    "lognormal": Law(
        lambda u: 3 * u,
        _shared(lambda p, rng: np.exp(0.6 * p + 0.8 * rng.normal(size=len(p))) / 4),
        lambda x, p: lognorm.cdf(x / SIZES, 0.8, scale=np.exp(0.6 * p) / 4),
    ),
    # not rising: the largest losses are at middling proxies
    "hump": Law(
        lambda u: gamma.ppf(u, 2) + 0.1,
        _shared(lambda p, rng: _hump(p) * rng.gamma(2, 0.5, size=len(p))),
        lambda x, p: gamma.cdf(x / (SIZES * _hump(p)), 2, scale=0.5),
    ),
    # harmless below a proxy of 0.5, twenty times as harmful above
    "threshold": Law(
        norm.ppf,
        _shared(_threshold_draw),
        lambda x, p: beta_law.cdf(x / (SIZES * np.where(p < 0.5, 0.05, 1.0)), 2, 3),
    ),
    # the proxy says nothing, and has a tail like 1/p³
    "blind": Law(
        lambda u: (1 - u) ** (-1 / 3),
        _shared(lambda p, rng: rng.exponential(size=len(p))),
        lambda x, p: 1 - np.exp(-np.maximum(x, 0) / SIZES) + 0 * p,
    ),
    # harm sets in at a random action, earlier for higher proxies
    "onset": Law(lambda u: gamma.ppf(u, 3) / 2, _onset_draw, _onset_below),
    # six values of the proxy only; losses may be gains
    "levels": Law(
        _six_levels,
        _shared(lambda p, rng: rng.gamma(p, 0.5, size=len(p)) - 0.4),
        lambda x, p: gamma.cdf(
            np.where(x >= 0, x / SIZES, x / SIZES[0]) + 0.4, p * np.ones(len(SIZES)), scale=0.5
        ),
    ),
}


def _mixed_chance(p: Floats) -> Floats:
    return p / (p + 3)


def _mixed_draw(p: Floats, rng: Generator) -> Floats:
    large = rng.random(len(p)) < _mixed_chance(p)
    return rng.exponential(size=len(p)) * np.where(large, 2.0, 0.2)


LATER = {
    # heavy tails: Weibull losses of shape 0.7 that grow more slowly than the proxy
    "weibull": Law(
        lambda u: 0.2 + 3.8 * u,
        _shared(lambda p, rng: 0.4 * p**0.7 * rng.weibull(0.7, size=len(p))),
        lambda x, p: 1 - np.exp(-((np.maximum(x, 0) / (SIZES * p**0.7 * 0.4)) ** 0.7)),
    ),
    # small losses or large ones, both exponential; the proxy tells how often which
    "mixed": Law(
        lambda u: np.exp(0.6 * norm.ppf(u)),
        _shared(_mixed_draw),
        lambda x, p: (
            1
            - _mixed_chance(p) * np.exp(-np.maximum(x, 0) / (2.0 * SIZES))
            - (1 - _mixed_chance(p)) * np.exp(-np.maximum(x, 0) / (0.2 * SIZES))
        ),
    ),
    # no loss above 3: exponential losses, cut
    "capped": Law(
        _gamma_natural,
        lambda p, rng: np.minimum(
            SIZES * (0.5 * p * rng.exponential(size=len(p)))[:, np.newaxis], 3.0
        ),
        lambda x, p: np.where(x >= 3, 1.0, 1 - np.exp(-np.maximum(x, 0) / (0.5 * SIZES * p))),
    ),
    # a proxy that says little, and is met mostly at its low end
    "weak": Law(
        lambda u: -1.5 * np.log1p(-u),
        _shared(lambda p, rng: (1 + 0.1 * p) * rng.gamma(1.5, 0.4, size=len(p))),
        lambda x, p: gamma.cdf(x / (SIZES * (1 + 0.1 * p)), 1.5, scale=0.4),
    ),
}


EITHER = 0.3  # how often the loss goes with the proxy


def _either_draw(p: Floats, rng: Generator) -> Floats:
    by_proxy = rng.random(len(p)) < EITHER
    return np.where(by_proxy, p * rng.gamma(2, 0.4, len(p)), rng.gamma(2, 0.15, len(p)))


def _growth(p: Floats) -> Floats:
    """How much of a loss has come about after n actions, [points, n]."""
    return 1 - np.exp(-np.array(N_VALUES) * (0.05 + 0.1 * p))


def _gains_below(x: Floats, chance: Callable[[Floats], Floats]) -> Floats:
    """P(C_n ≤ x) where c_n = s_n · z and z, below y with this chance, may be negative."""
    return chance(np.where(x >= 0, x / SIZES, x / SIZES[0]))


FRESH = {
    # losses and gains around a slow rise, with exponential tails on both sides
    "laplace": Law(
        lambda u: beta_law.ppf(u, 2, 5),
        _shared(lambda p, rng: p + rng.laplace(0, 0.25, size=len(p))),
        lambda x, p: _gains_below(x, lambda y: laplace.cdf(y, p, 0.25)),
    ),
    # the square root of the proxy times a Rayleigh law
    "rayleigh": Law(
        lambda u: np.sqrt(-np.log1p(-u)),
        _shared(lambda p, rng: np.sqrt(p) * rng.rayleigh(0.5, size=len(p))),
        lambda x, p: rayleigh.cdf(x / (SIZES * np.sqrt(p)), scale=0.5),
    ),
    # in three moments of ten the loss goes with the proxy, in the others it does not
    "either": Law(
        lambda u: 0.3 + 2.7 * u**2,
        _shared(_either_draw),
        lambda x, p: (
            EITHER * gamma.cdf(x / SIZES, 2, scale=0.4 * p)
            + (1 - EITHER) * gamma.cdf(x / SIZES, 2, scale=0.15)
        ),
    ),
    # a loss comes about gradually with n, and sooner for higher proxies
    "gradual": Law(
        lambda u: 5 * u,
        lambda p, rng: rng.gamma(3, 0.4, len(p))[:, None] * _growth(p[:, None]),
        lambda x, p: gamma.cdf(x / _growth(p), 3, scale=0.4),
    ),
    # two crowds of proxies far apart, a linear rise, logistic noise
    "crowds": Law(
        lambda u: np.where(u < 0.8, u / 0.8, 5 + (u - 0.8) / 0.2),
        _shared(lambda p, rng: 0.5 + 0.3 * p + rng.logistic(0, 0.15, size=len(p))),
        lambda x, p: _gains_below(x, lambda y: logistic.cdf(y, 0.5 + 0.3 * p, 0.15)),
    ),
    # very heavy tails: a Lomax law of shape 3 that grows with the square of the proxy
    "lomax": Law(
        lambda u: norm.ppf(0.5 + u / 2) + 0.2,
        _shared(lambda p, rng: 0.2 * p**2 * rng.pareto(3, size=len(p))),
        lambda x, p: lomax.cdf(x / (SIZES * 0.2 * p**2), 3),
    ),
    # every random action adds something of its own: a gamma process in n
    "adding": Law(
        _gamma_natural,
        lambda p, rng: np.cumsum(
            rng.gamma(0.1 * p[:, None] * np.diff(N_VALUES, prepend=0), 0.6), axis=1
        ),
        lambda x, p: gamma.cdf(x, 0.1 * p * np.array(N_VALUES), scale=0.6),
    ),
    # a soft step: losses between nothing and everything, pushed upwards by the proxy
    "soft": Law(
        lambda u: np.log(u / (1 - u)),
        _shared(lambda p, rng: rng.beta(1 + 2 * expit(p), 3 - 2 * expit(p))),
        lambda x, p: beta_law.cdf(x / SIZES, 1 + 2 * expit(p), 3 - 2 * expit(p)),
    ),
}

LAWS = {**LISTED, **NEW, **LATER, **FRESH}
ATOMS = frozenset({"onset", "capped"})
"""Laws whose losses have an atom that reaches the percentile."""


@dataclass(frozen=True)
class Study:
    """Moments as a study would hold them: half natural, half spread over the proxy's range."""

    proxies: Floats  # [moments]
    losses: Floats  # [moments, n]
    natural: np.ndarray  # [moments] of booleans


def draw_study(law: Law, moments: int, rng: Generator) -> Study:
    """Half natural, half spread evenly from the lowest to (nearly) the highest natural proxy."""
    half = moments // 2
    natural = law.natural(rng.random(half))
    low, high = law.natural(np.array([0.0005, 0.9995]))
    spread = rng.uniform(low, high, half)
    known = np.unique(law.natural((np.arange(STEPS) + 0.5) / STEPS))
    if len(known) < 50:  # a proxy of few values: a spread moment has one of them, too
        spread = rng.choice(known, half)
    proxies = np.concatenate([natural, spread])
    return Study(proxies, law.draw(proxies, rng), np.arange(2 * half) < half)


@cache
def steps_of(name: str) -> Floats:
    """Natural steps at even quantiles, [steps]."""
    return np.asarray(LAWS[name].natural((np.arange(STEPS) + 0.5) / STEPS))


@cache
def oracle(name: str, confidence: float) -> Floats:
    """The true β percentile of C_n at each natural step, raised to rise with p, [steps, n].

    Raised, as every method's is: where the law falls with the proxy, nobody may see it.
    """
    law, p = LAWS[name], steps_of(name)[:, None]
    low, high = np.full((STEPS, len(N_VALUES)), -50.0), np.full((STEPS, len(N_VALUES)), 500.0)
    for _ in range(60):
        middle = (low + high) / 2
        enough = law.below(middle, p) >= confidence
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(np.maximum.accumulate(high, axis=0))


def tolerances_of(name: str, confidence: float) -> Floats:
    """The true bounds of n = 2, 8 and 16 at the median step, [3]."""
    middle = np.median(oracle(name, confidence), axis=0)
    return np.maximum(middle[[N_VALUES.index(n) for n in (2, 8, 16)]], 1e-6)


@dataclass(frozen=True)
class Worth:
    """What one bound is worth under its law; nothing here is sampled."""

    coverage: Floats  # [bins, n] P(C_n ≤ b_n) in each fifth of the natural steps
    chain_failure: Floats  # [tolerances] P(some n' ≤ margin breaks the tolerance)
    margin: Floats  # [tolerances] mean over natural steps
    oracle_margin: Floats  # [tolerances]
    above: float  # the share of natural steps above the range: margin 0 and flagged


def judge(bound: Bound, name: str) -> Worth:
    """How often a fresh natural step keeps to the bound, exactly, and what margins it grants."""
    law, p = LAWS[name], steps_of(name)
    inside = p <= bound.grid[0, -1]
    held = law.below(bound.at(p), p[:, None])  # [steps, n]; infinite bounds hold
    held = np.where(np.isinf(bound.at(p)), 1.0, held)
    held[~inside] = np.nan
    coverage = np.nanmean(held.reshape(BINS, -1, len(N_VALUES)), axis=1)
    best = np.array([0, *N_VALUES])
    margins, failures, ideal = [], [], []
    for tolerance in tolerances_of(name, bound.confidence):
        granted = Margins(bound).lookup(p, tolerance).margin
        margins.append(granted.mean())
        kept = law.below(np.full((STEPS, len(N_VALUES)), tolerance), p[:, None])
        kept = np.concatenate([np.ones((STEPS, 1)), kept], axis=1)  # a margin of 0 cannot fail
        failures.append(1 - kept[np.arange(STEPS), np.searchsorted(best, granted)].mean())
        afford = np.count_nonzero(oracle(name, bound.confidence) <= tolerance, axis=1)
        ideal.append(best[afford].mean())
    return Worth(coverage, np.array(failures), np.array(margins), np.array(ideal),
                 float((~inside).mean()))  # fmt: skip
