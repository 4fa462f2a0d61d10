"""Every link inside the documentation leads somewhere; building the site checks its own again.

Links to other sites are checked for form and host only, because tests do without a network: `make
links` asks the sites themselves.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from helpers.documents import PAGES
from helpers.paths import ROOT

LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)|<a href=\"([^\"]+)\"")
HOSTS = (
    *("docs.ray.io", "github.com", "keepachangelog.com", "minari.farama.org", "openreview.net"),
    "semver.org",
)
"""The other sites that pages link to."""
MADE_BY_THE_SITE = ("generated/", "live/")


def links_of(page: str) -> list[str]:
    """The addresses of a page's links and pictures, without those in code."""
    text = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / page).read_text("utf-8"))
    return [first or second for first, second in LINK.findall(text)]


def headings(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found = re.findall(r"(?m)^#+ (.+)$", path.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_resolves(page: str) -> None:
    broken = []
    for link in links_of(page):
        target, _, anchor = link.partition("#")
        made = target.removeprefix("../").startswith(MADE_BY_THE_SITE)
        # What the blocks of a gallery page draw: building the site fails where one does not.
        made |= page.startswith("docs/gallery/") and target.endswith(".png")
        if re.match(r"\w+:", link) or made:
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        if not path.exists() or (anchor and anchor not in headings(path)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_another_site_is_well_formed(page: str) -> None:
    for link in links_of(page):
        if re.match(r"\w+:", link):
            parts = urlsplit(link)
            assert (parts.scheme, parts.port, parts.username) == ("https", None, None), link
            assert parts.hostname in HOSTS, f"{link}: is this host right?"
            assert re.fullmatch(r"[\w./~?=&#%-]+", link.removeprefix("https://")), link


def test_links_are_found() -> None:
    assert sum(len(links_of(page)) for page in PAGES) > 100
    assert "images/growth.png" in links_of("docs/criticality.md")
