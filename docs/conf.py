"""How Sphinx builds the site from these pages: `make docs`."""

from __future__ import annotations

import concurrent.futures
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402  (beside this file)
import live  # noqa: E402
import run_gallery  # noqa: E402

from safemargin.core.version import __version__  # noqa: E402  (ruff sorts by the path above)

project = "safemargin"
release = version = __version__
author = "the safemargin developers"
copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
smartquotes = False  # --option is no dash

# -- Markdown ----------------------------------------------------------------------------------
myst_heading_anchors = 4
myst_links_external_new_tab = False

# -- the reference of Python names --------------------------------------------------------------
default_role = "literal"  # single backticks, as in the docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

# -- how it looks --------------------------------------------------------------------------------
html_theme = "pydata_sphinx_theme"
html_title = "safemargin"
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
html_static_path: list[str] = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False


def setup(app: Any) -> None:
    """Make what the pages need before they are read, and the rest meanwhile."""
    app.connect("builder-inited", _begin)
    app.connect("source-read", _as_shown)
    app.connect("build-finished", _end)


def _begin(app: Any) -> None:
    """Write the generated pages, run the gallery, and begin the live pages.

    `sphinx-build -t quick` leaves the gallery and the live pages out.
    """
    generate.write_all(HERE / "generated")
    app.gallery, app.live = {}, None
    if app.builder.format == "html" and not app.tags.has("quick"):
        folder = Path(app.outdir) / "live"
        folder.mkdir(parents=True, exist_ok=True)
        app.live = concurrent.futures.ThreadPoolExecutor(1).submit(live.write_all, folder)
        app.gallery = run_gallery.run_all(HERE / "generated" / "gallery", folder)


def _end(app: Any, error: Exception | None) -> None:
    """Wait for the live pages."""
    if error is None and app.live is not None:
        app.live.result()


def _as_shown(app: Any, page: str, source: list[str]) -> None:
    """Show what a page of the gallery printed and drew; point links at the pages of the site."""
    source[0] = app.gallery.get(page, source[0])
    for file, shown in generate.SHOWN_AS.items():
        prefix = "../" * (page.count("/") + 1)
        source[0] = source[0].replace(f"]({prefix}{file}", f"]({prefix[3:] or ''}{shown}")
