"""The explorer and the report in a real browser: scrub, jump, move a slider, ask what if."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import safemargin as sm
from safemargin.cli import main

pytest.importorskip("fastapi")
pytest.importorskip("plotly")
pytest.importorskip("selenium")

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="no browser to test in: apt-get install chromium chromium-driver",
)


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


@pytest.fixture(scope="module")
def explorer(drawn_study: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "safemargin.cli", "explore", str(drawn_study)]
    process = subprocess.Popen(
        [*command, "--json", "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["address"]
    process.send_signal(2)
    process.communicate(timeout=30)


class Page:
    """What a person does with the explorer, in a few words."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def script(self, code: str) -> Any:
        return self.driver.execute_script("return " + code)

    def wait(self, code: str, seconds: float = 30) -> Any:
        return WebDriverWait(self.driver, seconds, 0.1).until(lambda _: self.script(code))

    def text(self, name: str) -> str:
        return str(self.driver.find_element(By.ID, name).text)

    def click(self, name: str) -> None:
        self.driver.find_element(By.ID, name).click()

    def press(self, *keys: str) -> None:
        self.driver.find_element(By.TAG_NAME, "body").send_keys(*keys)

    def slide(self, name: str, value: float) -> None:
        self.driver.execute_script(
            "const slider = document.getElementById(arguments[0]);"
            "slider.value = arguments[1]; slider.dispatchEvent(new Event('input'));",
            name,
            value,
        )

    def complaints(self) -> list[str]:
        logged = self.driver.get_log("browser")
        return [entry["message"] for entry in logged if entry["level"] == "SEVERE"]


@pytest.fixture
def page(chromium: webdriver.Chrome, explorer: str) -> Page:
    opened = Page(chromium)
    chromium.get("about:blank")
    chromium.get(explorer)
    opened.wait("view.episode !== null && document.getElementById('frame').naturalWidth > 0")
    return opened


def test_it_opens_on_the_worst_moment(page: Page) -> None:
    assert page.script("view.step === view.study.start.step")
    assert page.script("view.marks[0] === view.step")
    assert page.text("margin") == str(page.script("view.margins[view.step]"))
    assert "of" in page.text("facts")
    assert page.script("document.querySelectorAll('#scores .score').length") == 2
    assert "STAY" in page.wait("document.getElementById('scores').textContent")
    assert page.script("document.querySelectorAll('#timeline .scatterlayer .trace').length") == 4
    assert not page.complaints()


def test_scrub_step_and_play(page: Page) -> None:
    page.slide("scrubber", 7)
    assert page.script("view.step") == 7
    page.wait("document.getElementById('frame').src.includes('/frames/7?')")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert page.script("view.step") == 8
    assert page.script("location.hash.endsWith('/8')")
    page.press(" ")
    page.wait("view.step > 10")
    page.press(" ")
    assert not page.script("view.playing")
    page.press(Keys.END)
    assert page.text("margin-text") == "the episode has ended"
    assert not page.complaints()


def test_jump_from_mark_to_mark(page: Page) -> None:
    page.slide("limit", 3)  # everything is marked, so marks lie all over the episode
    page.wait("view.marks.length > 1")
    page.press(Keys.HOME)
    page.press("n")
    first = page.script("view.step")
    assert first == min(page.script("view.marks"))
    page.press("n")
    assert page.script("view.step") - first >= 20
    page.press("p")
    assert page.script("view.step") == first
    page.driver.find_elements(By.CSS_SELECTOR, "#moment-list li")[-1].click()
    assert page.script("view.step === view.marks[view.marks.length - 1]")
    assert not page.complaints()


def test_tolerance_and_confidence_answer_at_once(page: Page) -> None:
    margins: Callable[[], list[int]] = lambda: page.script("view.margins")  # noqa: E731
    page.slide("tolerance", 200)
    page.wait("Math.min(...view.margins) === 4 || view.margins.includes(4)")
    generous = margins()
    page.slide("tolerance", 0)
    page.wait("Math.max(...view.margins) < 4")
    assert all(few <= many for few, many in zip(margins(), generous, strict=True))
    page.slide("confidence", 5)
    page.wait("view.margins === null")
    assert "needs 99 natural moments" in page.text("margin-note")
    assert page.text("margin") == "–"
    assert not page.complaints()


def test_margins_on_the_page_are_those_of_python(page: Page, drawn_study: Path) -> None:
    with sm.Study.open(drawn_study) as study:
        margins = study.fit(0.8)
    highest = margins.highest_proxy
    proxies = np.concatenate([np.linspace(0, 1.1 * highest, 300), margins.bound.grid[0]])
    page.driver.execute_script("window.proxies = arguments[0]", proxies.tolist())
    for tolerance in (0.0, 0.3, 1.0, 2.5, 1e9):
        found = page.script(
            "proxies.map(proxy => view.tables.at("
            f"view.tables.tables.find(each => each.confidence === 0.8), proxy, {tolerance}))"
        )
        assert found == margins.lookup(proxies, tolerance).margin.tolist()


def test_two_clicks_to_another_episodes_worst_moment(page: Page) -> None:
    rows = page.driver.find_elements(By.CSS_SELECTOR, "#episode-list li")
    name = rows[2].get_attribute("data-name")
    rows[2].click()
    page.wait(f"view.episode.name === '{name}'")
    page.wait("document.querySelector('#episode-list .here') !== null")
    assert page.script("view.step === view.marks[0]")
    assert not page.complaints()


def test_what_if(page: Page) -> None:
    page.press("w")
    page.wait("shown.data !== null && shown.data.state === 'done'", 60)
    page.wait("Object.keys(shown.takes).length === 3", 60)
    assert page.script("document.querySelectorAll('#losses .boxlayer .trace').length") == 3
    captions = page.script("document.getElementById('screens').textContent")
    assert "what happened" in captions
    assert "worst trial" in captions
    assert "differs" not in captions
    page.wait("[...document.querySelectorAll('#screens img')].every(image => image.naturalWidth)")
    page.driver.find_elements(By.CSS_SELECTOR, "#n-chips button")[0].click()
    page.wait("shown.n === 1 && Object.keys(shown.takes).length === 3", 60)
    page.wait("shown.offset > 2")
    page.click("what-if-close")
    assert not page.script("document.getElementById('what-if-dialog').open")
    assert not page.complaints()


def test_the_report_opens_from_a_mail_attachment(
    chromium: webdriver.Chrome, drawn_study: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(drawn_study), "-o", str(target)]) == 0
    page = Page(chromium)
    page.driver.get(target.as_uri())
    page.wait("document.querySelectorAll('#densities .heatmaplayer image').length === 3")
    assert page.script("performance.getEntriesByType('resource').length") == 0  # all is inside
    assert page.script("document.querySelectorAll('#cards .card img').length") == 10
    assert "random action" in page.text("lead")
    page.slide("tolerance", 200)
    page.slide("lookup-proxy", 1)
    page.wait("document.getElementById('lookup').textContent === '4'")
    page.slide("confidence", 5)
    page.wait("document.getElementById('margin-note').textContent.includes('99 natural moments')")
    assert not page.complaints()
