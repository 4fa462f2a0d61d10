"""Draw the pictures of the explorer and of the fleet anew, as a browser shows them.

    safemargin demo --folder runs/demo --no-browser
    python docs/images/redraw.py runs/demo/study

Needs Chromium and its driver. Look at the pictures before you commit them.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))

from helpers.browser import BROWSER, DRIVER, Page  # noqa: E402
from helpers.fleet_server import Person, running  # noqa: E402
from PIL import Image  # noqa: E402
from selenium import webdriver  # noqa: E402

FLEET = ("--agents", "12", "--budget", "600/hour", "zoo:beamrider-a3c", "zoo:beamrider-a3c")


def main(study: str) -> None:
    """Draw both."""
    browser = open_browser()
    try:
        draw_explorer(browser, study)
        draw_fleet(browser)
    finally:
        browser.quit()


def open_browser() -> webdriver.Chrome:
    """Return a browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in ("--headless=new", "--disable-gpu", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


def draw_explorer(browser: webdriver.Chrome, study: str) -> None:
    """The explorer at the most critical moment of a study, once its what-if trials are there."""
    command = [sys.executable, "-m", "safemargin", "explore", study, "--no-browser", "--json"]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            size(browser, 1400, 990)
            browser.get(json.loads(server.stdout.readline())["address"])
            page = Page(browser)
            page.wait("document.getElementById('frame').naturalWidth > 0", 300)
            page.wait("view.margins !== null", 60)
            time.sleep(5)  # the film goes on in the background
            keep(browser, "explorer.png")
        finally:
            server.terminate()


def draw_fleet(browser: webdriver.Chrome) -> None:
    """Twelve agents, one of them steered by somebody."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), *FLEET) as server,
        Person(server.address, "Ben") as ben,
    ):
        called = ben.entry("call")["agent"]
        size(browser, 1440, 760)
        browser.get(server.address)
        page = Page(browser)
        page.wait("view.connected && view.agents.length === 12", 60)
        index = page.script(f"view.agents.findIndex(agent => agent.name === {called!r})")
        browser.execute_script("look(arguments[0])", index)
        page.press("t")
        page.wait(f"view.agents[{index}].control !== null", 60)
        time.sleep(4)  # until the timeline shows something
        page.wait("!document.querySelector('header').textContent.includes('none calling')", 180)
        keep(browser, "fleet.png")


def size(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Set the size of the page itself."""
    metrics: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics | {"mobile": False})


def keep(browser: webdriver.Chrome, name: str) -> None:
    """Keep what the browser shows, in few colours, which takes a third of the space."""
    shown = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    shown.quantize(256, dither=Image.Dither.NONE).save(ROOT / "docs/images" / name, optimize=True)
    print(ROOT / "docs/images" / name)


if __name__ == "__main__":
    main(sys.argv[1])
