"""Prints what a gate found."""

from __future__ import annotations

from safemargin.cli.console import print_records
from safemargin.cli.options import print_note
from safemargin.validation.gate import GateResult
from safemargin.validation.gate_files import interval, matters_text, more_text, number, picture


def print_gate(found: GateResult) -> None:
    """Print the verdict of each check, and that of the gate."""
    print_records(
        f"{found.new} beside {found.old} in {found.environment}",
        found.checks,
        ("check", lambda check: check.name),
        ("old", lambda check: number(check.old)),
        ("new", lambda check: number(check.new)),
        ("change", lambda check: number(check.change)),
        ("interval", interval),
        ("matters", matters_text),
        ("verdict", lambda check: check.verdict or "for information"),
        ("power", lambda check: None if check.power is None else f"{check.power:.2f}"),
        ("more moments", more_text),
    )
    print(picture(found))
    print(
        f"\n{found.new_moments} natural moments beside {found.old_moments}, "
        f"{'paired by their starts' if found.paired else 'not paired'}; "
        f"all checks share an error rate of {found.error_rate:g}"
    )
    for note in found.notes:
        print_note(note)
    print(found.sentence)
