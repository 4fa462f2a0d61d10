"""Safety margins: fitting them to measured moments, and looking them up.

`lookup` (with `file` and `natural_proxies`) needs numpy only and loads no fitting code. `fitting`
makes margins; `methods` lists the methods by name; `bounds` has one module per method and says how
to add one; `density` is the paper's kernel density.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.margins.bounds.conformal import moments_needed
    from safemargin.margins.fitting import NoBound, fit_margins
    from safemargin.margins.lookup import Lookup, Margins, OutsideRange
    from safemargin.margins.methods import fit_bound

__all__ = [
    "Lookup",
    "Margins",
    "NoBound",
    "OutsideRange",
    "fit_bound",
    "fit_margins",
    "moments_needed",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Lookup": "lookup",
        "Margins": "lookup",
        "NoBound": "fitting",
        "OutsideRange": "lookup",
        "fit_bound": "methods",
        "fit_margins": "fitting",
        "moments_needed": "bounds.conformal",
    },
)
