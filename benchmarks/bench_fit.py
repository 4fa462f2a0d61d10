"""How long a fit, a validation and a comparison take: python benchmarks/bench_fit.py"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from results import machine

from safemargin.margins.bounds.sample import Sample
from safemargin.margins.methods import fit_bound
from safemargin.validation.comparison import compare_samples
from safemargin.validation.heldout import hold_out

MOMENTS = 2000
N_VALUES = (1, 2, 4, 8, 16, 32)
PROXIES = 3
COMMAND = "python benchmarks/bench_fit.py"


def study(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make up a study: proxies [moments], losses [moments, n], natural [moments]."""
    rng = np.random.default_rng(seed)
    half = MOMENTS // 2
    proxies = np.concatenate([rng.gamma(2, 1, half), rng.uniform(0, 8, half)])
    losses = proxies[:, None] * rng.exponential(size=(MOMENTS, 1)) * np.sqrt(N_VALUES)
    return proxies, losses * (rng.random((MOMENTS, 1)) < 0.4), np.arange(MOMENTS) < half


def measure() -> list[dict[str, Any]]:
    """Print the median seconds of several runs beside the goals."""
    proxies, losses, natural = study()
    rng = np.random.default_rng(1)
    samples = {
        f"proxy {number}": Sample.from_arrays(
            proxies + number * rng.normal(size=MOMENTS), losses, N_VALUES, natural=natural
        )
        for number in range(PROXIES)
    }
    first = samples["proxy 0"]

    def fit(method: str) -> Callable[[], object]:
        return lambda: fit_bound(proxies, losses, N_VALUES, method=method, natural=natural)

    size = f"{MOMENTS:,} moments × {len(N_VALUES)} n"
    cases: list[tuple[str, Callable[[], object], float | None, int]] = [
        (f"fit, calibrated (the default), {size}", fit("calibrated"), 0.2, 7),
        (f"fit, isotonic, {size}", fit("isotonic"), None, 3),
        (f"fit, tolerance, {size}", fit("tolerance"), None, 3),
        (f"fit, boosted, {size}", fit("boosted"), None, 3),
        (f"fit, paper, {size}", fit("paper"), None, 3),
        (
            f"cross-validation of the default, {size}",
            lambda: hold_out(first, method="calibrated", confidence=0.95),
            None,
            3,
        ),
        (
            f"compare, all methods × {PROXIES} proxies, {size}",
            lambda: compare_samples(samples),
            10.0,
            1,
        ),
    ]
    results = []
    for name, run, goal, repeats in cases:
        if repeats > 1:
            run()  # imports and caches
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
        results.append(
            {
                "name": name,
                "value": float(np.median(seconds)),
                "unit": "s",
                "goal": goal,
                "machine": machine(),
                "command": COMMAND,
            }
        )
    return results


if __name__ == "__main__":
    for result in measure():
        goal = "" if result["goal"] is None else f"   goal {result['goal']:g} s"
        print(f"{result['value']:8.3f} s   {result['name']}{goal}")
    print(json.dumps({"load": os.getloadavg()}))
