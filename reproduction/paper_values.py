"""The values that the paper reports, to show beside ours."""

from __future__ import annotations

AGENTS = ("pong-apex", "pong-a3c", "beamrider-apex", "beamrider-a3c")
N_VALUES = (1, 2, 4, 8, 16, 32)

PERCENTILE_ERRORS = {  # Table I: one for each n
    "pong-apex": (-0.010, -0.015, 0.000, 0.020, 0.005, -0.025),
    "pong-a3c": (-0.035, -0.020, -0.040, -0.045, -0.050, -0.045),
    "beamrider-apex": (0.005, 0.000, 0.010, -0.005, -0.005, 0.005),
    "beamrider-a3c": (-0.010, 0.000, -0.025, 0.005, -0.005, 0.000),
}

BEFORE_DEATH = (1, 2, 4)
MARGINS_BEFORE_DEATH = {  # Table II: mean and sd 1, 2 and 4 steps before death, and on average
    (0.5, "beamrider-apex"): ((0.00, 0.00), (0.50, 0.87), (0.99, 0.73), (0.97, 0.86)),
    (0.5, "beamrider-a3c"): ((0.53, 0.50), (1.00, 0.00), (0.82, 0.38), (3.09, 2.68)),
    (1.0, "beamrider-apex"): ((2.00, 0.00), (2.50, 0.87), (4.50, 2.23), (4.72, 2.50)),
    (1.0, "beamrider-a3c"): ((2.48, 1.75), (4.00, 0.00), (3.42, 2.66), (9.20, 5.24)),
}

CAPTURED = {"beamrider-apex": 0.22, "beamrider-a3c": 0.47}
"""Share of deaths whose last proxy lies in the top 5 % of all."""

SAMPLE_SIZES = {  # Table III: bandwidth, spread moments, sample size, bound
    "pong-apex": (0.13, 363, 41.53, 0.09),
    "pong-a3c": (1.70, 368, 51.07, 0.08),
    "beamrider-apex": (0.03, 361, 35.09, 0.10),
    "beamrider-a3c": (0.77, 361, 39.45, 0.09),
}
