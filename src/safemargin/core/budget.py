"""How much attention people can give: `0.05` of all decisions, or `20/hour` calls."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from safemargin.errors import InvalidInput

FORMS = "0.05 (a share of decisions) or 20/hour (calls an hour, for the whole team)"


@dataclass(frozen=True, slots=True)
class Budget:
    """A share of decisions, or calls an hour of all agents together."""

    amount: float
    unit: Literal["share", "hour"]

    @classmethod
    def parse(cls, given: str | float | Budget, *, what: str = "the budget") -> Budget:
        """Return the budget that `given` stands for; InvalidInput if it is none."""
        if isinstance(given, Budget):
            return given
        text = str(given).strip()
        per_hour = re.fullmatch(r"(\S+?)\s*(?:/|per )\s*hour", text)
        try:
            amount = float(per_hour[1] if per_hour else text)
        except ValueError:
            amount = math.nan
        if isinstance(given, bool) or not math.isfinite(amount) or amount < 0:
            raise InvalidInput(f"{what} must be like {FORMS}, got {given!r:.60}")
        if not per_hour and amount > 1:
            raise InvalidInput(
                f"{what} must be like {FORMS}, got {given!r:.60}, which is above 1; "
                f"{amount:g} calls an hour are {amount:g}/hour"
            )
        return cls(amount, "hour" if per_hour else "share")

    def __str__(self) -> str:
        return f"{self.amount:g}/hour" if self.unit == "hour" else f"{self.amount:g}"

    @property
    def plain(self) -> float | str:
        """For JSON: 0.05, or '20/hour'; `parse` reads both."""
        return self.amount if self.unit == "share" else str(self)

    @property
    def text(self) -> str:
        """The budget in words."""
        if self.unit == "share":
            return f"{self.amount:.3g} of all decisions"
        return f"{self.amount:g} {'call' if self.amount == 1 else 'calls'} an hour"
