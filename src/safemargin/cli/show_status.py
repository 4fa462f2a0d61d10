"""What is in a study, what is left to measure, and how long it will take."""

from __future__ import annotations

import json
from dataclasses import replace

from safemargin.cli.options import print_json
from safemargin.core.measured import Measured, without_folder
from safemargin.core.text import counted, duration, printable
from safemargin.criticality.coalescing import BYTES_PER_STATE
from safemargin.margins.bounds.conformal import moments_needed
from safemargin.study.noise import describe_noise
from safemargin.study.plays import describe_plays
from safemargin.study.rare_losses import describe_rare_losses
from safemargin.study.study import Study

CONFIDENCES = (0.9, 0.95, 0.99, 0.999)


def show_status(study: Study, *, as_json: bool) -> None:
    """Print the status of a study, as JSON or as lines of text."""
    status = study.status()
    if as_json:
        print_json(
            {
                "study": str(study.path),
                "environment": study.environment,
                "policy": study.policy,
                "measured": [about.to_dict() for about in _every_measured(study)],
                "settings": json.loads(study.settings.to_json()),
                "proxies": study.proxies,
                "default_proxy": study.default_proxy,
                "diagnosis": study.diagnosis,
                "natural_moments_needed": _moments_needed(),
                **status.to_dict(),
            }
        )
        return
    print(f"study        {study.path}")
    given = ", ".join(f"{name}={value}" for name, value in study.environment["arguments"].items())
    environment = f"{study.environment['name']}{f' ({given})' if given else ''}"
    print(f"environment  {printable(environment)}")
    print(f"policy       {printable(study.policy['description'])} ({study.policy['kind']} scores)")
    if not study.settings.measured.usual:
        print(f"measures     {printable(str(study.settings.measured))}")
    _print_others(study)
    print(
        f"episodes     {status.episodes}; {counted(status.chosen_moments, 'moment')} chosen, "
        f"{status.distinct_moments} distinct, from "
        + counted(status.distinct_episodes, "distinct episode")
    )
    if status.distinct_moments < 0.9 * status.chosen_moments:
        print("             the rest are copies: --opening K in a new study gives different starts")
    if few_plays := describe_plays(status.plays, status.chosen_moments):
        print(f"plays        {few_plays}")
    for phase, done in status.moments.items():
        print(f"{phase:<12} {done} of {status.wanted[phase]} moments measured for every n")
    print(f"calibration  {_calibration(status.moments['natural'])}")
    if status.regret is not None:
        print(f"regret       {status.regret}")
    print(f"trials       {status.trials:,} in {counted(status.estimates, 'estimate')}")
    if status.without_spread:
        print(
            f"             {status.without_spread:,} sampled ones saw no spread at all: a loss "
            "too rare for that many trials may have been missed"
        )
    rare_losses = describe_rare_losses(status.spread, status.resting_on_few)
    if rare_losses:
        print(f"half-widths  {rare_losses}")
    if noise := describe_noise(status.noise, study.settings):
        print(f"noise        {noise[1]}")
    if status.capped:
        print(
            f"capped       {counted(status.capped, 'estimate')} reached "
            f"{study.settings.max_trials} trials before ±{study.settings.sampling_error:g} was "
            "sure; raise --max-trials or --sampling-error in a new study"
        )
    wasted = status.wasted_steps / max(status.simulator_steps, 1)
    print(
        f"cost         {status.simulator_steps:,} simulator steps"
        + (f" ({wasted:.1%} on speculative trials that were discarded)" if wasted >= 0.001 else "")
        + f", {duration(status.worker_seconds)} of one worker"
    )
    if status.remembered_states:
        print(
            f"memory       at most {status.remembered_states:,} states of one moment, "
            f"{status.remembered_states * BYTES_PER_STATE / 1e6:.1f} MB"
        )
    if status.estimates_left:
        left = "" if status.seconds_left is None else f", about {duration(status.seconds_left)}"
        print(f"left         {status.estimates_left:,} of the estimates{left}")
    else:
        print("left         nothing")


def _every_measured(study: Study) -> list[Measured]:
    """Return all that the study measures; who acts after the mistakes is always the same."""
    first = study.settings.measured
    return [
        replace(first, perturb=without_folder(perturb), signal=signal)
        for perturb, signal in study.measured
    ]


def _print_others(study: Study) -> None:
    """Print what else the study measures, and how to ask about it."""
    for about in _every_measured(study):
        if about != study.settings.measured:
            options = f"--perturb {about.perturb} --signal {about.signal}"
            print(f"also         {printable(str(about))} ({printable(options)})")


def _moments_needed() -> dict[str, int]:
    """Return the number of natural moments that a calibrated margin takes, by confidence."""
    return {f"{level:g}": moments_needed(level, 1) for level in CONFIDENCES}


def _calibration(natural: int) -> str:
    """Say which confidences this many natural moments allow."""
    needs = _moments_needed()
    allowed = [level for level, needed in needs.items() if natural >= needed]
    missing = [f"{level} needs {needed}" for level, needed in needs.items() if natural < needed]
    text = f"allows a confidence of {allowed[-1]}" if allowed else "allows no confidence yet"
    return f"{text}; {', '.join(missing)} natural moments" if missing else text
