"""Validation: do margins hold on moments that their fit has not seen?

`validating` puts everything together; `heldout` cross-validates a bound; `comparison` tries all
methods and proxies, and `paired` tests whether two of them differ; `paper_tables` has the paper's
Tables I and III; `exchangeability` tests whether natural and spread moments follow the same law;
`gaps` measures what powers of two miss; `defaults` chooses the confidence and the tolerance that
pages start with. `gate` compares two checkpoints: `baseline` is the file that keeps what it knows
of one, `comparable` refuses what cannot be compared, `checks` says what is compared, `effects` has
the statistics, and `verdicts` judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.validation.baseline import Baseline as Baseline
    from safemargin.validation.comparison import Comparison as Comparison
    from safemargin.validation.comparison import compare_samples as compare_samples
    from safemargin.validation.gate import GateOptions as GateOptions
    from safemargin.validation.gate import GateResult as GateResult
    from safemargin.validation.heldout import moments_to_show as moments_to_show
    from safemargin.validation.paper_tables import local_sample_size as local_sample_size
    from safemargin.validation.paper_tables import percentile_error_bound as percentile_error_bound
    from safemargin.validation.validating import Validation as Validation
    from safemargin.validation.validating import validate as validate

__getattr__, __dir__, __all__ = lazy_names(__name__)
