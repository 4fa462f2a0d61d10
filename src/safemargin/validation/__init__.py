"""Whether margins hold: held-out coverage, comparison of methods, the paper's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.validation.heldout import moments_to_show
    from safemargin.validation.validate import local_sample_size, percentile_error_bound

__all__ = [
    "local_sample_size",
    "moments_to_show",
    "percentile_error_bound",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "local_sample_size": "validate",
        "moments_to_show": "heldout",
        "percentile_error_bound": "validate",
    },
)
