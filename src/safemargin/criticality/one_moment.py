"""True criticality at one step of one episode, without a study."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from safemargin.core.records import EpisodeKey, Estimate
from safemargin.core.settings import Settings
from safemargin.criticality.estimation import MomentMeasurer, Randomness
from safemargin.criticality.perturbations import make_perturbation
from safemargin.criticality.reference import make_reference
from safemargin.criticality.rollouts import Runner
from safemargin.environments import EnvironmentSpec, Way, make_simulator
from safemargin.environments.doctor.returns import settings_for
from safemargin.errors import DiagnosisWrong, InvalidInput
from safemargin.policies import load_policy
from safemargin.policies.base import Policy, ScoreKind


class DiagnosisCorrected(UserWarning):
    """What the environment was taken for turned out to be wrong; everything is measured again."""


def true_criticality(
    env: gym.Env[Any, Any] | str,
    policy: Policy | Any,
    *,
    step: int,
    n: int | Sequence[int],
    seed: int = 0,
    settings: Settings | None = None,
    scores: ScoreKind | None = None,
    way: Way | None = None,
    perturb: str | Callable[..., Any] | None = None,
    reference: str | Policy | None = None,
) -> list[Estimate]:
    """Estimate the criticality of one step of the episode that starts from `seed` (Algorithm 1).

    `env` is an environment, or a text that names one. It is taken as deterministic until it draws a
    random number, in the episode or in any trial; then everything is measured again as random.
    `way` is how to get back to the step: "snapshot" or "replay". By default that is a snapshot,
    unless a restored run differs from the uninterrupted one, or a trial from its repetition; then a
    warning (DiagnosisCorrected) says so, and the episode is replayed from its start.
    EnvironmentFault if that differs too. Without settings, the policy acts as its own library
    evaluates it. `perturb` replaces that of the settings: one of their
    texts, or a function (generator, action, history) → action; `reference` replaces theirs: a
    text, or a loaded policy.
    """
    n_values = list(np.atleast_1d(n).tolist())
    if not n_values or any(not isinstance(value, int) or value < 1 for value in n_values):
        raise InvalidInput(f"n must be whole numbers of at least 1, got {n_values}")
    loaded = load_policy(policy, kind=scores)
    given = settings_for(loaded, settings)
    settings = replace(given, n_values=tuple(sorted(set(n_values))))
    if isinstance(perturb, str):
        settings = replace(settings, perturb=perturb)
    if isinstance(reference, str):
        settings = replace(settings, reference=reference)
    named = settings.reference if reference is None else reference
    successor = None if named is None else make_reference(named)
    mistakes = make_perturbation(settings.perturb if perturb is None else perturb)
    live = EnvironmentSpec.parse(env if isinstance(env, str) else lambda: env).make()
    loaded.check(live)
    found: dict[str, Any] = {"way": way or "snapshot", "environment_deterministic": True}
    while True:
        simulator = make_simulator(live, way=found["way"])
        runner = Runner(simulator, loaded, settings, perturbation=mistakes, reference=successor)
        episode = runner.run_episode(EpisodeKey("natural", seed), seed=seed)
        if not 0 <= step < episode.steps:
            raise InvalidInput(
                f"step {step} lies outside the episode of {episode.steps} steps from seed {seed}"
            )
        randomness = Randomness(
            environment=not found["environment_deterministic"],
            policy=not runner.policy_actions.deterministic,
        )
        try:
            measurer = MomentMeasurer(runner, episode, step, randomness, repeat_every_n=True)
            return [measurement.estimate for measurement in measurer.measure(*n_values)]
        except DiagnosisWrong as wrong:
            if "way" in wrong.correction:
                if way is not None:
                    raise
                how = "everything is measured again by replay (way='replay' begins so)"
                text = f"{wrong.cause}; {how}"
                warnings.warn(text, DiagnosisCorrected, stacklevel=2)
            found |= wrong.correction
