"""Validation: do margins hold on moments that their fit has not seen?

`validating` puts everything together; `heldout` cross-validates a bound; `comparison` tries all
methods and proxies; `paper_tables` has the paper's Tables I and III; `exchangeability` tests
whether natural and spread moments follow the same law; `gaps` measures what powers of two miss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.validation.comparison import Comparison, compare_samples
    from safemargin.validation.heldout import moments_to_show
    from safemargin.validation.paper_tables import local_sample_size, percentile_error_bound
    from safemargin.validation.validating import Validation, validate

__all__ = [
    "Comparison",
    "Validation",
    "compare_samples",
    "local_sample_size",
    "moments_to_show",
    "percentile_error_bound",
    "validate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Comparison": "comparison",
        "Validation": "validating",
        "compare_samples": "comparison",
        "local_sample_size": "paper_tables",
        "moments_to_show": "heldout",
        "percentile_error_bound": "paper_tables",
        "validate": "validating",
    },
)
