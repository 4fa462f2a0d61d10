"""Pages, styles and scripts as files, and the script of Plotly."""

from __future__ import annotations

from functools import cache
from importlib import metadata, resources

from safemargin.errors import InvalidInput, MissingExtra

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


def page(name: str) -> str:
    """Return the text of one file; InvalidInput if there is none with that name."""
    known = {entry.name for entry in resources.files(__package__).iterdir()}
    if name not in known or not name.endswith(tuple(KINDS)):
        raise InvalidInput(f"there is no page {name!r}")
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


@cache
def plotly_script() -> str:
    """Return the script of the installed plotly package, so that nothing comes from the network."""
    try:
        metadata.version("plotly")
        return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")
    except (metadata.PackageNotFoundError, OSError) as error:
        raise MissingExtra("an interactive page", extra="web") from error
