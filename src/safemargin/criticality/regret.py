"""Where the agent itself is wrong: regret and stakes, from the returns of a moment's trials.

With Q(a) the expected return of a first action a that the policy follows, one fan-out over all
actions gives three numbers: criticality c = Q(own) − mean Q, regret g = max Q − Q(own) and stakes
s = c + g = max Q − mean Q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from safemargin.core.records import Floats, Measurement

How = Literal["exact", "sampled", "averaged"]
"""How regret is known:

exact     every sequence of n actions was taken once, and nothing else is random
sampled   the best of the sequences that were tried: regret is at least this much
averaged  something else is random: the best first action was chosen on one half of the trials and
          judged on the other, so that luck does not count; may lie below 0 by chance
"""


@dataclass(frozen=True, slots=True)
class Regret:
    """What the agent's own action gives away at one moment, and what is at stake there."""

    n: int
    """Of this many actions; for n > 1, compared with the best sequence that was tried."""
    criticality: float
    regret: float
    how: How

    @property
    def stakes(self) -> float:
        """s = c + g."""
        return self.criticality + self.regret


def regret_of(
    measurement: Measurement,
    *,
    random: bool,
    first_actions: npt.NDArray[np.int64] | None = None,  # [trials]
) -> Regret | None:
    """Return the regret that a measurement shows; None where its trials cannot show one.

    `random`: whether something besides the perturbation is random. Then only n = 1 shows regret,
    and only with the first action of every trial.
    """
    estimate = measurement.estimate
    if not random:
        own = float(measurement.unperturbed[0])
        gain = max(float(measurement.perturbed.max()) - own, 0.0)
        how: How = "exact" if estimate.exact else "sampled"
        return Regret(estimate.n, estimate.mean, gain, how)
    if estimate.n != 1 or first_actions is None:
        return None
    # Trial j met the same chance as the j-th unperturbed one, so their difference is less noisy.
    gain_of_halves = _judged_gain(measurement.perturbed - measurement.unperturbed, first_actions)
    if gain_of_halves is None:
        return None
    return Regret(1, estimate.mean, gain_of_halves, "averaged")


def _judged_gain(gains: Floats, first_actions: npt.NDArray[np.int64]) -> float | None:
    """Choose the best action on half of the trials, judge it on the others, and vice versa.

    Letting the agent act, which gains nothing, is one of the choices. None if no action was tried
    twice.
    """
    means = []  # [2, actions]
    for action in np.unique(first_actions):
        own = gains[first_actions == action]
        if len(own) > 1:
            means.append((float(own[0::2].mean()), float(own[1::2].mean())))
    if not means:
        return None
    halves = np.array([(0.0, 0.0), *means]).T
    return float(
        np.mean([halves[1 - half][halves[half].argmax()] for half in (0, 1)], dtype=np.float64)
    )
