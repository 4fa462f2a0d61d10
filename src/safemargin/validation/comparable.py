"""Whether two studies can be compared at all, and whether their games can be paired."""

from __future__ import annotations

from safemargin.core.settings import Settings
from safemargin.errors import StudyMismatch
from safemargin.validation.baseline import Baseline

BEHAVIOUR = ("safemargin", "gymnasium", "ale-py", "mujoco")
"""Libraries of which another version may be another environment, or other measurements."""


def refuse_incomparable(old: Baseline, new: Baseline, *, other_versions: bool) -> list[str]:
    """Raise StudyMismatch if two studies measure different things; return notes on the rest."""
    ours, theirs = new.environment, old.environment
    if ours["identity"] != theirs["identity"]:
        raise StudyMismatch(
            f"{new.source} was measured in another environment ({ours['name']}, "
            f"{ours['identity'][:19]}…) than {old.source} ({theirs['name']}, "
            f"{theirs['identity'][:19]}…); collect both in the same one"
        )
    made = [Settings.from_mapping({**each.settings, "seed": 0}) for each in (new, old)]
    differences = made[0].differences(made[1])
    if differences:
        raise StudyMismatch(
            f"{new.source} was made with other settings than {old.source} "
            f"({'; '.join(differences)}); only the seed may differ"
        )
    if old.proxies.ndim != new.proxies.ndim:
        raise StudyMismatch(
            f"the proxy {new.proxy!r} looks at n in only one of {new.source} and {old.source}; "
            "name another with --proxy"
        )
    every = sorted({*old.versions, *new.versions})
    other = {
        name: f"{name} {new.versions.get(name, 'none')}, not {old.versions.get(name, 'none')}"
        for name in every
        if new.versions.get(name) != old.versions.get(name)
    }
    behaviour = [other[name] for name in BEHAVIOUR if name in other]
    if behaviour and not other_versions:
        raise StudyMismatch(
            f"{new.source} was made with other versions than {old.source} "
            f"({'; '.join(behaviour)}); collect the baseline again, or compare anyway with "
            "--other-versions"
        )
    return [f"other versions: {'; '.join(other.values())}"] if other else []


def is_paired(old: Baseline, new: Baseline) -> bool:
    """Return whether the games of both studies began alike: the same seed, the same resets."""
    common = min(len(old.game_seeds), len(new.game_seeds))
    same = (old.game_seeds[:common] == new.game_seeds[:common]).all()
    return old.seed == new.seed and bool(same)
