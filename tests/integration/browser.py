"""A browser for tests that look at pages."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def open_browser(profile: Path, *, log: bool = False, network: bool = False) -> Iterator[Any]:
    """Headless chromium with the profile directory ``profile``; installed from Debian's packages where
    that is possible. ``log``: keeps what pages say on their console, for ``get_log("browser")``.
    ``network``: that, and events of the browser's devtools, for ``get_log("performance")``."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            pytest.skip("needs chromium and chromium-driver, and cannot install them here")
        for command in (["update", "-qq"], ["install", "-y", "-qq", "chromium", "chromium-driver"]):
            done = subprocess.run(
                ["apt-get", *command],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                pytest.skip(f"apt-get {command[0]} failed: {done.stderr.strip()[-300:]}")
    options = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1400,1000",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    if log:
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if network:
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()
