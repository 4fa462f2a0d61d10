"""Module names as hashes recorded them before modules were grouped into packages.

The identities of environments and policies contain names of classes and modules. Studies and
margins files keep those hashes, so a module that moves must be hashed under its first name.
"""

from __future__ import annotations

_MOVED = {
    "cli": "app=cli bundled=commands.bundled console demo margins=commands.margins"
    " options=commands.base pages=commands.pages"
    " paper_studies=reproduce show_attention show_plan"
    " show_validation=show show_zoo=zoo.show study=commands.study watch=commands.watch",
    "core": "files importing=locate progress=collection read_only records seeding settings"
    " text=console version=provenance",
    "criticality": "batch=lanes coalescing estimation=criticality plans rollouts stopping",
    "environments.doctor": "examining=doctor exploration=walker",
    "margins": "bounds density file=margins_file fitting=margins lookup=margins methods=bounds"
    " natural_proxies",
    "margins.bounds": "boosted=bounds.boosted calibrated=bounds.calibrated"
    " conformal=bounds.conformal isotonic=bounds.isotonic paper=bounds.paper sample=bounds.sample"
    " table=bounds.table tolerance=bounds.tolerance",
    "monitor": "attention audit decisions drift evaluation_watch live_proxy monitor notifications"
    " overseen overseers pictures=fleet.pictures remote=remote_overseer reservoir=draws"
    " simulation=hindsight steering",
    "policies": "actions proxies zoo",
    "replay": "captions critical_moments films highlights pictures=replay recordings stills"
    " summaries=outlines trials video whatif",
    "study": "blobs collection disk_faults export findings=trust folders forecast grouping"
    " pilot planning plays plots provenance restop=readings selection"
    " signing single_runs status store study suggestions=cheaper tuples",
    "validation": "comparison=compare exchangeability=law_test gaps heldout paper_tables"
    " validating=validation",
    "web": "explorer=web.app fleet margin_tables report",
    "web.fleet": "agents=fleet.agents journal=fleet.journal"
    " local=fleet.local messages=fleet.messages people=fleet.people"
    " restore=fleet.restore state=fleet.state track=fleet.track",
}
"""For each package its modules that once stood elsewhere, as new=old or, if equal, as one name."""


FORMER_MODULES = {
    f"safemargin.{package}.{new}": f"safemargin.{old or new}"
    for package, modules in _MOVED.items()
    for new, _, old in (entry.partition("=") for entry in modules.split())
}
"""Today's full module name → the name that hashes contain."""


def recorded_module(name: str) -> str:
    """Return the name under which a module enters a hash."""
    return FORMER_MODULES.get(name, name)


def recorded_class(cls: type) -> str:
    """Return 'package.module.Class', with the module as hashes contain it."""
    return f"{recorded_module(cls.__module__)}.{cls.__qualname__}"
