"""A real browser, and pages in it."""

from __future__ import annotations

import shutil
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


class Page:
    """What a person does with the explorer, in a few words."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def script(self, code: str) -> Any:
        return self.driver.execute_script("return " + code)

    def wait(self, code: str, seconds: float = 120) -> Any:
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
