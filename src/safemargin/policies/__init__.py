"""Trained agents behind one protocol: observations in, action scores out."""

from safemargin.policies.base import Memory, Observations, Policy, ScoreKind
from safemargin.policies.loading import load_policy

__all__ = ["Memory", "Observations", "Policy", "ScoreKind", "load_policy"]
