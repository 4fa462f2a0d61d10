"""How a study looks in a notebook."""

from __future__ import annotations

from typing import Any

from safemargin.core.notebook import table_html
from safemargin.study.status import Status


class Shown:
    """The part of `Study` that a notebook calls."""

    environment: Any
    policy: Any
    path: Any

    def status(self) -> Status:
        """Return what the study holds."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        status = self.status()
        moments = [
            f"{done:,} of {max(done, status.wanted.get(phase, 0)):,} {phase}"
            for phase, done in status.moments.items()
        ]
        rows = [
            ["environment", self.environment["name"]],
            ["policy", self.policy["description"]],
            ["moments", ", ".join(moments)],
            ["episodes", f"{status.episodes:,}"],
            ["trials", f"{status.trials:,}"],
            ["estimates left", f"{status.estimates_left:,}"],
        ]
        return table_html(f"Study {self.path}", ["", ""], rows)
