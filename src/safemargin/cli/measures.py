"""The options that say which mistakes a collection makes, and what is lost by them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from safemargin.cli import options
from safemargin.core.measured import RANDOM, REWARD, split_perturbations


@Parameter(name="*", group=options.group("Which mistakes are made, and what is lost"))
@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """The mistakes and losses of a study; later ones are added, at the same moments."""

    perturb: Annotated[list[str] | None, Parameter(metavar="P[,P...]")] = None
    """what the agent's actions are replaced by: random (default), stuck (the last action is held),
    stuck:ACTION, delayed:D, noisy:EPS, dropped (nothing is done), policy:FILE (another policy
    acts), worst (the sequence that loses most), worst:BEAM (the worst that a beam search finds), or
    file.py:function, your own (generator, action, history) → action; several with commas, or
    repeated; without it, a study goes on with all that it measures"""
    signal: Annotated[list[str] | None, Parameter(metavar="S[,S...]")] = None
    """what is lost: reward (discounted; default), undiscounted (reward), cost (discounted
    info["cost"]; a rise is a loss), cost:KEY or info:KEY (another name in info), termination (steps
    before the end), or failure (an end by termination); several come from the same trials"""

    def pairs(self, output: Path) -> list[tuple[str, str]]:
        """Return every perturbation with every signal, those of the study itself if not named."""
        from safemargin.study.creation import measured_in

        known = measured_in(output)
        perturbs = split_perturbations(self.perturb or ())
        signals = [each for text in self.signal or () for each in text.split(",")]
        if not perturbs and not signals and known:
            return known
        return [
            (perturb, signal)
            for perturb in perturbs or dict.fromkeys(one for one, _ in known) or [RANDOM]
            for signal in signals or dict.fromkeys(other for _, other in known) or [REWARD]
        ]
