"""True criticality (Algorithm 1): perturbed rollouts from saved states, and when to stop them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.criticality.estimation import true_criticality

__all__ = [
    "true_criticality",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "true_criticality": "estimation",
    },
)
