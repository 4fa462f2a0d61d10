"""Margins files that were damaged at random are used as they are, or refused in one sentence."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.margins import margins
from helpers.mutations import CODE, PROGRAMS, Guard, mutate_bytes, mutate_json

import safemargin as sm
from safemargin.cli import main
from safemargin.cli.fleet import _environment
from safemargin.cli.watch import WatchOptions
from safemargin.errors import SafemarginError
from safemargin.margins.learned.probe import Layer, Probe, View
from safemargin.margins.natural_proxies import summarise
from safemargin.policies.features import LAGS, WINDOW, probe_inputs
from safemargin.study.signing import code_named
from safemargin.validation.defaults import default_tolerance

pytestmark = pytest.mark.slow

ACTIONS, WIDTH = 3, 2
SCORES = np.linspace(-1, 2, 4 * ACTIONS, dtype=np.float32).reshape(4, ACTIONS)
SLOWEST = 5.0
"""Seconds that one file may take at most: far more than any takes, far less than a hang."""


def probe(rng: np.random.Generator) -> Probe:
    scores = np.zeros((1, WINDOW + 1, ACTIONS), np.float32)
    inputs = probe_inputs("q", scores, np.zeros((1, len(LAGS), WIDTH), np.float32)).shape[1]

    def numbers(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    ones = np.ones(inputs, np.float32)
    view = View(numbers(inputs), ones, numbers(inputs, 2), ones[:2], 1.0)
    networks = [
        [Layer(numbers(2, 1), numbers(1))],
        [Layer(numbers(2, 3), numbers(3)), Layer(numbers(3, 1), numbers(1))],
    ]
    return Probe("q", "sha256:abc", WIDTH, view, networks, 3.0, {"model": "ridge"})


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """Margins of every version, of learned proxies and of those that look at n."""
    rng = np.random.default_rng(0)
    environment = {"name": "CartPole-v1", "arguments": {"sutton_barto_reward": True}}
    natural = summarise(rng.normal(size=30))
    plain = margins(natural_proxies=natural, environment=environment)
    learned = margins(proxy="learned", natural_proxies=natural, probe=probe(rng))
    grid = np.array([[0.0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]])
    looking = sm.Margins(replace(plain.bound, grid=grid, looks_at_n=True))
    found = [plain.to_dict(), learned.to_dict(), learned.to_dict(), looking.to_dict()]
    found += [{**plain.to_dict(), "version": version} for version in (1, 2, 3)]
    return [json.loads(json.dumps(document)) for document in found]


def damaged(document: dict[str, Any], pick: random.Random) -> bytes:
    """Return the file after one to three changes to its values, or to its bytes."""
    if pick.random() < 0.2:
        return mutate_bytes(json.dumps(document).encode(), pick)
    changed: Any = copy.deepcopy(document)
    for _ in range(pick.choice([1, 1, 1, 2, 3])):
        if type(changed) is dict and changed.get("probe") and pick.random() < 0.5:
            changed["probe"] = mutate_json(changed["probe"], pick)
        else:
            changed = mutate_json(changed, pick)
    return json.dumps(changed).encode()


def use(path: Path) -> None:
    """Do what commands, monitors and pages do with a margins file."""
    loaded = sm.Margins.load(path)
    repr(loaded)
    sm.Margins.from_dict(json.loads(json.dumps(loaded.to_dict(), allow_nan=False)))
    proxies = [-1.0, 0.5, 2.5, 9.0]
    if loaded.bound.looks_at_n:
        loaded.lookup([[proxy] * len(loaded.n_values) for proxy in proxies], 0.7)
    else:
        granted = loaded.lookup(proxies, 0.7).margin
        assert set(granted.tolist()) <= {0, *loaded.n_values}
        loaded.heatmap([0.0, 0.7, 1e300])
    tolerance = default_tolerance(loaded)
    assert not code_named(_environment(WatchOptions(), loaded, "margins.json"))
    monitor = sm.Monitor(loaded, tolerance=tolerance, seed=0)
    width = loaded.probe.hidden_width if loaded.probe is not None else 0
    features = np.ones((4, min(width, 1000)), np.float32)
    for _ in range(2):
        decisions = monitor.step(SCORES, features if monitor.needs_features else None)
        json.dumps([decision.report() for decision in decisions], allow_nan=False)
    monitor.end_episode()


def look_up(path: Path) -> None:
    """Ask the command line; it must answer, or say in one line why not."""
    answer, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(complaint):
        status = main(["margin", str(path), "--proxy", "1.5", "--tolerance", "0.7", "--json"])
    found = json.loads(answer.getvalue())
    assert type(found) is dict
    assert status == 0 or (status == 2 and complaint.getvalue().count("\n") == 1)


def test_damage_is_one_sentence(
    documents: list[dict[str, Any]], whole: bool, tmp_path: Path
) -> None:
    guard, path = Guard(), tmp_path / "margins.json"
    for document in documents:  # load whatever is loaded when first used
        path.write_text(json.dumps(document))
        with contextlib.suppress(SafemarginError):
            use(path)
        look_up(path)
    wrong, used = [], 0
    count = 100_000 if whole else 2_000
    for number in range(count):
        pick = random.Random(number)
        path.write_bytes(damaged(pick.choice(documents), pick))
        began = time.perf_counter()
        with warnings.catch_warnings(), guard.watching(*CODE, *PROGRAMS):
            warnings.simplefilter("error")
            try:
                use(path)
                used += 1
            except SafemarginError as error:
                if not str(error).isprintable():
                    wrong.append(f"{number}: more than a line: {error!r}")
            except Exception:  # noqa: BLE001
                wrong.append(f"{number}: {traceback.format_exc()[-400:]}")
        if number % 20 == 0:
            with guard.watching(*PROGRAMS):  # the command line compiles its own annotations
                look_up(path)
        if (seconds := time.perf_counter() - began) > SLOWEST:
            wrong.append(f"{number}: took {seconds:.1f} s")
    assert not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong[:20])
    assert not guard.seen, "\n".join(guard.seen[:20])
    assert 0.1 * count < used < 0.9 * count
