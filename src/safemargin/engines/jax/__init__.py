"""The engine `jax`: studies of environments of pure functions, on an accelerator or a processor.

`program` compiles one step for many lanes, `runs` are what lanes do, `group` and `pool` keep lanes
busy, `engine` hands out tasks, `episodes` runs episodes, `moments` goes to moments, and `trials`
decides which trials a moment needs. `draws` takes random numbers from the streams of the study,
`parts` is what all runs share, `memory` chooses how many lanes there are, and `supported` says what
this engine cannot do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.engines.jax.engine import JaxEngine as JaxEngine
    from safemargin.engines.jax.supported import reason_against as reason_against

__getattr__, __dir__, __all__ = lazy_names(__name__)
