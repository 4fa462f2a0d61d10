"""What the engine `jax` can measure, and why it cannot measure the rest."""

from __future__ import annotations

import gymnasium as gym

from safemargin.core.measured import RANDOM
from safemargin.criticality.signals import Signal
from safemargin.engines.base import Job
from safemargin.environments.functional.naming import functional_of
from safemargin.environments.functional.protocol import FunctionalEnvironment
from safemargin.errors import InvalidInput
from safemargin.policies.jax import JaxPolicy
from safemargin.policies.jax_loading import as_jax


def reason_against(job: Job) -> str | None:
    """Say why the engine `jax` cannot run a job; None where it can."""
    settings = job.settings
    if job.environment.scheme != "jax":
        return (
            f"it runs environments of pure functions (jax:…), and {job.environment.name!r} is not "
            "one"
        )
    functional = functional_of(job.environment)
    space = None if functional is None else functional.action_space
    if not isinstance(space, gym.spaces.Discrete | gym.spaces.Box):
        return f"it takes Discrete and Box actions, not {type(space).__name__}"
    try:
        written_in_jax = as_jax(job.policy) is not None
    except InvalidInput as error:
        return str(error)
    if not written_in_jax:
        return f"it runs policies in JAX and ONNX files, and {job.policy.description} is neither"
    if settings.perturb != RANDOM:
        return f"its mistakes are random actions, not {settings.perturb!r}"
    if settings.reference is not None:
        return f"after mistakes it has the agent itself act, not {settings.reference!r}"
    if Signal.parse(settings.signal).in_info:
        return f"environments of pure functions have no info for the signal {settings.signal!r}"
    if len(job.more) > 1:
        return "it measures one kind of mistake and one loss at a time"
    stepwise = [proxy.name for proxy in job.proxies if not proxy.vectorised]
    if stepwise:
        return f"the proxy {stepwise[0]!r} looks at one step at a time"
    return None


def parts_in_jax(job: Job) -> tuple[FunctionalEnvironment, JaxPolicy]:
    """Return the environment and the policy, or raise InvalidInput."""
    reason = reason_against(job)
    if reason is not None:
        raise InvalidInput(
            f"engine 'jax' cannot run this study: {reason}; leave --engine out, or take 'processes'"
        )
    functional, policy = functional_of(job.environment), as_jax(job.policy)
    assert functional is not None
    assert policy is not None
    return functional, policy
