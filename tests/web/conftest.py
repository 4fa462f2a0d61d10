"""A browser for the tests of pages."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from helpers.browser import BROWSER, DRIVER
from selenium import webdriver


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
