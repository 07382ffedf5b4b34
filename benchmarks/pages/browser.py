"""Pages in a headless Chromium: how long until they are drawn, and many of them left open."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from selenium import webdriver

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-3d-apis",
    "--no-first-run",
    "--disable-background-networking",
    "--window-size=1300,1000",
)
# The last paint of the page's content, in milliseconds after the navigation began.
_PAINTED = """
const navigation = performance.getEntriesByType("navigation")[0];
const paints = performance.getEntriesByType("paint").map((one) => one.startTime);
return [navigation.responseStart, Math.max(navigation.domContentLoadedEventEnd, ...paints),
        [...document.querySelectorAll("figure[data-chart]")].every((one) =>
          one.querySelector("canvas") || one.querySelector(".drawing").textContent)];
"""
CHART_S = 30.0


@dataclass(frozen=True)
class Drawn:
    """One visit, in milliseconds: the first byte, the page as text, and with its curves."""

    first_byte: float
    text: float
    curves: float


class Browser:
    """A browser that is logged in."""

    def __init__(self, driver: webdriver.Chrome, base: str) -> None:
        self.driver = driver
        self.base = base

    def draw(self, path: str) -> Drawn:
        """Opens the page. Raises TimeoutError when its curves are not drawn within :data:`CHART_S`."""
        began = time.monotonic()
        self.driver.get(self.base + path)
        while True:
            first, text, done = self.driver.execute_script(_PAINTED)
            took = (time.monotonic() - began) * 1000
            if done:
                return Drawn(first, text, max(text, took))
            if took > CHART_S * 1000:
                raise TimeoutError(f"the curves of {path} are not drawn after {CHART_S:.0f} s")
            time.sleep(0.01)


@contextmanager
def browser(base: str, username: str, password: str) -> Iterator[Browser]:
    """Chromium, logged in at ``base`` (scheme and host)."""
    with tempfile.TemporaryDirectory(prefix="det-bench-browser-") as folder:
        options = webdriver.ChromeOptions()
        for one in (*_ARGUMENTS, f"--user-data-dir={folder}"):
            options.add_argument(one)
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        driver = webdriver.Chrome(options=options, service=service)
        try:
            driver.get(f"{base}/det/login")
            driver.find_element("name", "username").send_keys(username)
            if password:
                driver.find_element("name", "password").send_keys(password)
            driver.find_element("css selector", "form button").click()
            yield Browser(driver, base)
        finally:
            driver.quit()
