"""A browser for tests that look at pages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import installed


@contextlib.contextmanager
def open_browser(
    profile: Path, *, log: bool = False, network: bool = False, here: str = ""
) -> Iterator[Any]:
    """Headless chromium with the profile directory ``profile``; installed from Debian's packages where
    that is possible. ``log``: keeps what pages say on their console, for ``get_log("browser")``.
    ``network``: that, and events of the browser's devtools, for ``get_log("performance")``. ``here``: a host
    name that leads to this machine."""
    webdriver = pytest.importorskip("selenium.webdriver")
    why = installed.from_debian(
        ["chromium", "chromedriver"], ["chromium", "chromium-driver"], recommended=True
    )
    if why is not None:
        pytest.skip(why)
    options = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        # Without a GPU chromium computes what WebGL draws, Prefect's graph of a run say: half of its time.
        "--disable-3d-apis",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1400,1000",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    if here:
        options.add_argument(f"--host-resolver-rules=MAP {here} 127.0.0.1")
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
