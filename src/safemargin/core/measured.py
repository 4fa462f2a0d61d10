"""What a study measures, as people write it: which mistakes are made, and what they cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safemargin.errors import InvalidInput, did_you_mean

RANDOM = "random"
"""The paper's perturbation: uniformly random actions."""

PERTURBATIONS = (
    RANDOM,
    "stuck",
    "stuck:ACTION",
    "delayed:D",
    "noisy:EPS",
    "dropped",
    "policy:FILE",
    "worst",
    "worst:BEAM",
)
"""The built-in perturbations as they are written; 'file.py:function' names one's own."""

REWARD = "reward"
"""The paper's signal: discounted reward."""

SIGNALS = (REWARD, "undiscounted", "cost", "cost:KEY", "info:KEY", "termination", "failure")
"""What can be lost, as it is written."""

LOOKAHEAD = "lookahead:STEPS"
"""A reference that tries every action; any other text names a policy."""

_KINDS = {form.partition(":")[0] for form in PERTURBATIONS}


@dataclass(frozen=True, slots=True)
class Written:
    """A perturbation as it was written, taken apart."""

    kind: str
    """One of the built-in ones, or 'own'."""
    argument: str = ""
    """What stands behind the colon; of one's own perturbation, all of it."""

    @property
    def number(self) -> float:
        """The argument as a number; NaN where it is none."""
        try:
            return float(self.argument)
        except ValueError:
            return math.nan


def parse_perturbation(text: str) -> Written:
    """Take a perturbation apart; InvalidInput if it is written in no known form."""
    kind, colon, argument = text.partition(":")
    if kind not in _KINDS and colon and argument:
        return Written("own", text)
    known = [form for form in PERTURBATIONS if form.partition(":")[0] == kind]
    if any(_fits(text, form) for form in known):
        written = Written(kind, argument)
        if kind == "delayed" and not (written.number >= 1 and written.number % 1 == 0):
            raise InvalidInput(f"perturb {text!r}: the delay D is a whole number of steps from 1")
        if kind == "worst" and argument and not (written.number >= 1 and written.number % 1 == 0):
            raise InvalidInput(f"perturb {text!r}: BEAM is a whole number of sequences from 1")
        if kind == "noisy" and not 0 < written.number <= 1:
            raise InvalidInput(f"perturb {text!r}: EPS lies above 0 and is at most 1")
        return written
    if known:
        raise InvalidInput(f"perturb {text!r}: write it as {' or '.join(known)}")
    raise InvalidInput(
        f"perturb {text!r} is unknown; {did_you_mean(text, PERTURBATIONS)}; 'file.py:function' "
        "names your own"
    )


def parse_reference(text: str) -> Written:
    """Take a reference apart: a policy, or a lookahead; InvalidInput if that is written wrong."""
    kind, _, argument = text.partition(":")
    if kind != "lookahead":
        if not text:
            raise InvalidInput(f"reference '': name a policy, or {LOOKAHEAD}")
        return Written("policy", text)
    written = Written(kind, argument)
    if not (written.number >= 1 and written.number % 1 == 0):
        raise InvalidInput(
            f"reference {text!r}: write it as {LOOKAHEAD}, with a whole number of steps from 1"
        )
    return written


def reference_in_words(text: str) -> str:
    """Return who acts after the mistakes: 'with expert.onnx acting afterwards'."""
    written = parse_reference(text)
    if written.kind == "lookahead":
        return f"with a lookahead of {int(written.number)} steps acting afterwards"
    return f"with {Path(text).name} acting afterwards"


def split_perturbations(texts: Iterable[str]) -> list[str]:
    """Take lists with commas apart; a number after a comma belongs to what is before it.

    So 'random,stuck:0.5,-1' names two perturbations, the second by an action of two dimensions.
    """
    found: list[str] = []
    for text in texts:
        for number, part in enumerate(text.split(",")):
            if number and not math.isnan(Written("", part).number):
                found[-1] += f",{part}"
            else:
                found.append(part)
    return list(dict.fromkeys(found))


def _fits(text: str, form: str) -> bool:
    """Whether a text has an argument behind its colon where the form has one, and no colon else."""
    _, colon, argument = text.partition(":")
    return bool(argument) if ":" in form else not colon


def parse_signal(text: str) -> Written:
    """Take a signal apart; InvalidInput if it is written in no known form."""
    kind, _, argument = text.partition(":")
    known = [form for form in SIGNALS if form.partition(":")[0] == kind]
    if any(_fits(text, form) for form in known):
        return Written(kind, argument)
    if known:
        raise InvalidInput(f"signal {text!r}: write it as {' or '.join(known)}")
    raise InvalidInput(
        f"signal {text!r} is unknown; {did_you_mean(text, SIGNALS)}; KEY is a name in the "
        "environment's info"
    )


def loss_in_words(text: str) -> str:
    """Return what a tolerance is about: 'loss of discounted reward'."""
    rises = parse_signal(text).kind in ("cost", "failure")
    return f"{'rise' if rises else 'loss'} of {unit_in_words(text)}"


def unit_in_words(text: str) -> str:
    """Return what a loss is counted in: 'discounted reward'."""
    written = parse_signal(text)
    return {
        REWARD: "discounted reward",
        "undiscounted": "undiscounted reward",
        "cost": f"discounted {written.argument or 'cost'}",
        "info": f"discounted {written.argument}",
        "termination": "steps before the end",
        "failure": "the probability of termination",
    }[written.kind]


@dataclass(frozen=True, slots=True)
class Measured:
    """What margins are about: which mistakes, and what they cost."""

    perturb: str = RANDOM
    signal: str = REWARD
    reference: str | None = None
    """Who acts after the mistakes; None: the agent itself."""

    @property
    def usual(self) -> bool:
        """Whether it is what the paper measures."""
        return self == USUAL

    @property
    def mistakes(self) -> str:
        """What n counts, in the plural: 'random actions'."""
        return mistakes_in_words(self.perturb)

    @property
    def mistake(self) -> str:
        """One of them: 'random action'."""
        return re.sub(r"\b(action|step)s\b", r"\1", self.mistakes, count=1)

    @property
    def unit(self) -> str:
        """What a loss is counted in: 'discounted reward'."""
        return unit_in_words(self.signal)

    def in_words(self) -> dict[str, str]:
        """Return what pages say of it."""
        return {name: getattr(self, name) for name in ("mistakes", "mistake", "loss", "unit")}

    @property
    def loss(self) -> str:
        """What a tolerance is: 'loss of discounted reward'."""
        loss = loss_in_words(self.signal)
        return loss if self.reference is None else f"{loss} {reference_in_words(self.reference)}"

    @property
    def brief(self) -> str:
        """Both in a few words, without what is usual."""
        parts = [self.mistakes] if self.perturb != RANDOM else []
        unusual = self.signal != REWARD or self.reference is not None
        return ", ".join(parts + [self.loss] * unusual)

    def __str__(self) -> str:
        return f"n counts {self.mistakes}, and the tolerance is a {self.loss}"

    def to_dict(self) -> dict[str, str]:
        """Return plain values for JSON."""
        about = {"perturb": self.perturb, "mistakes": self.mistakes}
        found = {**about, "signal": self.signal, "loss": self.loss}
        return found if self.reference is None else {**found, "reference": self.reference}

    @classmethod
    def from_dict(cls, values: Any) -> Measured:
        """Restore what `to_dict` returned; InvalidInput if it is something else."""
        if not isinstance(values, dict) or not isinstance(values.get("perturb"), str):
            raise InvalidInput(f"'measured' must name a perturbation, not {values!r:.40}")
        signal = values.get("signal", REWARD)
        if not isinstance(signal, str):
            raise InvalidInput(f"'measured' must name a signal, not {signal!r:.40}")
        reference = values.get("reference")
        if reference is not None and not isinstance(reference, str):
            raise InvalidInput(f"'measured' must name a reference, not {reference!r:.40}")
        parse_perturbation(values["perturb"])
        parse_signal(signal)
        if reference is not None:
            parse_reference(reference)
        return cls(values["perturb"], signal, reference)


USUAL = Measured()
"""What the paper measures."""


def without_folder(text: str) -> str:
    """Return a perturbation with the name of its file instead of the path."""
    written = parse_perturbation(text)
    name = Path(written.argument).name
    return {"policy": f"policy:{name}", "own": name}.get(written.kind, text)


def reference_without_folder(text: str) -> str:
    """Return a reference with the name of its file instead of the path."""
    return Path(text).name if parse_reference(text).kind == "policy" else text


def mistakes_in_words(text: str) -> str:
    """Return what n counts, in the plural: 'random actions'."""
    written = parse_perturbation(text)
    at = f" at {written.argument}" if written.argument else ""
    return {
        RANDOM: "random actions",
        "stuck": f"steps with the action stuck{at}",
        "delayed": f"steps with actions delayed by {written.argument}",
        "noisy": f"noisy actions ({written.argument})",
        "dropped": "dropped actions",
        "worst": "worst-case actions"
        if not written.argument
        else f"bad actions (beam search of {written.argument})",
        "policy": f"actions of {Path(written.argument).name}",
        "own": f"actions of {Path(written.argument).name}",
    }[written.kind]
