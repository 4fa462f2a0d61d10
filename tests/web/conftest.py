"""What tests of pages share: a browser, a fleet and its server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.browser import BROWSER, DRIVER
from selenium import webdriver

import safemargin as sm

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

    from safemargin.web.fleet import Fleet


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    profile = tmp_path_factory.mktemp("chromium")
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]
    for argument in (*arguments, "--window-size=1400,1000", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's own cannot be had as root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sm.AuditLog]:
    with sm.AuditLog(tmp_path / "watch.db", write=True) as opened:
        yield opened


@pytest.fixture
def fleet(log: sm.AuditLog) -> Fleet:
    from safemargin.web.fleet import Fleet

    return Fleet(log)


@pytest.fixture
def client(fleet: Fleet) -> Iterator[TestClient]:
    from fastapi.testclient import TestClient
    from helpers.fleet_client import ADDRESS, TOKEN

    from safemargin.web.access import Access
    from safemargin.web.fleet_app import create_fleet_app

    with TestClient(create_fleet_app(fleet, Access(TOKEN)), base_url=ADDRESS) as opened:
        yield opened
