"""The doctor: can this environment be measured, in which way, and if not, why?

`examining` runs the checks on one `examination`: `repeatability` has the checks, `experiments` what
they do to a live environment, `exploration` how they act in it, `clock` what time they pretend it
is, and `returns` the mean return of the policy; `diagnosis` is what comes out, and how measuring
may correct it. To add a check, write it in `repeatability` and call it in `examining`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from safemargin.core.lazy import lazy_names

if TYPE_CHECKING:
    from safemargin.environments.doctor.diagnosis import Diagnosis as Diagnosis
    from safemargin.environments.doctor.diagnosis import Finding as Finding
    from safemargin.environments.doctor.examining import examine as examine

__getattr__, __dir__, __all__ = lazy_names(__name__)
