"""Environments written as pure functions in JAX: the state goes in, the next state comes out.

`protocol` says what such an environment is, so that one can be written by hand, and `naming` finds
the one that a user names. `wrapped` makes an ordinary Gymnasium environment of it with the compiled
functions in `programs`, `keys` its random keys, and `purity` reads its program. `adapters` holds
those of JAX libraries, and `rocket` is a world of our own with continuous actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.environments.functional.protocol import (
        FunctionalEnvironment as FunctionalEnvironment,
    )

__getattr__, __dir__, __all__ = lazy_names(__name__)
