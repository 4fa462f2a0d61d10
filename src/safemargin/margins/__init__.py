"""Safety margins: fitting them to measured moments, and looking them up.

`lookup` (with `file` and `natural_proxies`) needs numpy only and loads no fitting code. `fitting`
makes margins; `methods` lists the methods by name; `bounds` has one module per method and says how
to add one; `density` is the paper's kernel density. `learned` holds the models behind learned
proxies and says how to add one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.margins.bounds.conformal import moments_needed as moments_needed
    from safemargin.margins.fitting import NoBound as NoBound
    from safemargin.margins.fitting import fit_margins as fit_margins
    from safemargin.margins.learned.ranking import Ranking as Ranking
    from safemargin.margins.lookup import Lookup as Lookup
    from safemargin.margins.lookup import Margins as Margins
    from safemargin.margins.lookup import OutsideRange as OutsideRange
    from safemargin.margins.methods import fit_bound as fit_bound

__getattr__, __dir__, __all__ = lazy_names(__name__)
