"""Build reproduction/README.md and its figures from the stored studies: make reproduce.

Nothing is simulated. The page's text is in page.md; {{double braces}} there are filled in by the
function of that name in one of MODULES.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import faults
import figures
import lander_tables
import learned_tables
import regret
import supervision
import tables
from stored import Refused, stored_studies

HERE = Path(__file__).parent
MODULES = (tables, learned_tables, supervision, regret, lander_tables, faults, figures)
NOTE = "<!-- Built by `make reproduce` from page.md and studies/. Do not edit. -->\n\n"


def build_page(template: str, studies: tables.Studies) -> str:
    """Return the page with every table filled in."""

    def fill(found: re.Match[str]) -> str:
        name = found[1]
        (maker,) = [vars(module)[name] for module in MODULES if name in vars(module)]
        text: str = maker(studies)
        return text

    return NOTE + re.sub(r"\{\{(\w+)\}\}", fill, template)


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=Path, default=HERE / "studies", metavar="FOLDER")
    parser.add_argument(
        "-o", "--output", type=Path, default=HERE, metavar="FOLDER", help="for README.md, images/"
    )
    options = parser.parse_args()
    began = time.monotonic()
    studies = stored_studies(options.studies)
    if not studies:
        parser.error(f"there is no finished study in {options.studies}")
    page = options.output / "README.md"
    try:
        text = build_page((HERE / "page.md").read_text(encoding="utf-8"), studies)
        options.output.mkdir(parents=True, exist_ok=True)
        pictures = figures.draw_all(studies, options.output / "images")
        page.write_text(text, encoding="utf-8")
    except Refused as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot write to {options.output}: {error}")
    print(f"{page} and {len(pictures)} figures in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
