"""How much of a bound is noise: trials blur each moment's loss, and a bound covers the blur, too.

A bound is a high percentile of the measured losses of moments with a like proxy. These differ
because the moments do, and because each is the mean of a limited number of trials. The second part
shrinks with the number of trials, so it says what more of them would be worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from safemargin.core.measured import parse_perturbation
from safemargin.core.records import Floats, Measurement, Tuples
from safemargin.core.settings import Settings
from safemargin.study.store import Store

ENOUGH = 20
"""With fewer moments than this, a share says nothing."""
SMALL = 0.05
"""A share of the bound that is not worth more trials."""
HOPELESS = 0.9
"""From this share of the variance on, how far moments really differ is unknown."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a study's trials in a fitted bound, for the n where it is largest.

    An estimate: stratified trials are less noisy than their spread says, a bound on losses with a
    long tail holds less of the noise, and one on losses with a hard upper end more.
    """

    n: int
    trials: float
    """The mean number of trials of a moment."""
    of_variance: float
    """The share of the losses' variance, between moments with a like proxy, that is noise."""
    of_bound: float
    """The share of the bound's distance from the typical loss that is noise."""
    times: float | None
    """How many times as many trials would leave `SMALL` of the bound; None: unknown."""


def measure_noise(store: Store, tuples: Tuples) -> Noise | None:
    """Return the noise in a study's moments; None for too few of them, or if none was sampled."""
    if len(tuples) < ENOUGH or parse_perturbation(store.settings().perturb).kind == "worst":
        return None
    variances = {(key, one.estimate.n): variance(one) for key, one in store.all_measurements()}
    proxies = np.broadcast_to(tuples.proxies.T, tuples.criticalities.T.shape)  # [n, moments]
    shares = [
        share_of_noise(
            proxies[column],
            tuples.criticalities[:, column],
            np.array([variances[key, n] for key in tuples.keys]),
        )
        for column, n in enumerate(tuples.n_values)
    ]
    worst = int(np.argmax(shares))
    return Noise(
        n=tuples.n_values[worst],
        trials=float(tuples.trials[:, worst].mean()),
        of_variance=shares[worst],
        of_bound=1 - math.sqrt(1 - shares[worst]),
        times=times_needed(shares[worst]),
    )


def variance(measurement: Measurement) -> float:
    """Return the variance of an estimate as a mean of its trials; 0 where it is exact."""
    if measurement.estimate.exact:
        return 0.0
    losses = measurement.unperturbed - measurement.perturbed
    return float(np.var(losses, ddof=1)) / len(losses)


def share_of_noise(
    proxies: Floats,  # [moments]
    losses: Floats,  # [moments]
    variances: Floats,  # [moments] of each loss, as it is a mean of trials
) -> float:
    """Return the share of the losses' variance, between moments with a like proxy, that is noise.

    That variance is half the mean squared difference of neighbours in the order of the proxy, to
    which a trend along the proxy adds next to nothing. Independent noise adds its own variance to
    that of the moments, and percentiles of nearly normal losses lie as far out as the standard
    deviation is large: without noise, by the root of the rest.
    """
    ordered = losses[np.argsort(proxies, kind="stable")]
    between = float(np.mean(np.diff(ordered) ** 2)) / 2
    noise = float(np.mean(variances))
    return min(noise / between, 1.0) if between > 0 else float(noise > 0)


def times_needed(of_variance: float) -> float | None:
    """Return how many times as many trials leave a share `SMALL` of the bound; at least 1."""
    allowed = 1 - (1 - SMALL) ** 2  # of the variance
    if of_variance >= HOPELESS:
        return None
    return max(1.0, of_variance / (1 - of_variance) * (1 - allowed) / allowed)


def describe_noise(noise: Noise | None, settings: Settings) -> tuple[bool, str] | None:
    """Return whether the noise is small, and a sentence on it and on more trials."""
    if noise is None:
        return None
    about = "up to about" if settings.trial_plan == "fixed" else "about"
    part = f"{about} {noise.of_bound:.0%}" if noise.of_bound >= 0.01 else "less than 1%"
    share = (
        f"{part} of the distance from the typical loss to a bound is noise "
        f"of the trials (n = {noise.n}, {noise.trials:.3g} trials a moment)"
    )
    if noise.times is None:
        return False, f"{share}; take at least 10 times as many in a new study, and look again"
    if noise.of_bound <= SMALL:
        return True, f"{share}; more trials would change little"
    change = (
        f"--trials {_rounded_up(settings.trials * noise.times)}"
        if settings.trial_plan == "fixed"
        else f"{noise.times:.2g} times as many (a lower --sampling-error, and a higher "
        "--max-trials where estimates reach it)"
    )
    return False, f"{share}; {change} in a new study would leave {SMALL:.0%}"


def _rounded_up(trials: float) -> int:
    """Round up to two digits."""
    unit: int = 10 ** max(len(str(math.ceil(trials))) - 2, 0)
    return math.ceil(trials / unit) * unit
