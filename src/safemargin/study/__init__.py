"""A study on disk (Algorithm 2): selection, collection, the store, and what is read from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.study.planning import CostPlan, plan_study
    from safemargin.study.study import Study

__all__ = [
    "CostPlan",
    "Study",
    "plan_study",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CostPlan": "planning",
        "Study": "study",
        "plan_study": "planning",
    },
)
