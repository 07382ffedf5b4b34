"""A plotly figure as a page, and as an SVG where a headless Chromium can be driven."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_TO_SVG = """
const done = arguments[arguments.length - 1];
Plotly.toImage(document.querySelector(".plotly-graph-div"), {format: "svg"}).then(done);
"""


def write_page(figure: Any, path: Path) -> None:
    """A page that shows the figure, with the plotting library inside (about 5 MB)."""
    figure.write_html(path, include_plotlyjs=True)


def write_svg(page: Path, path: Path) -> None:
    """The figure of ``page`` as plotly itself exports it. Raises selenium's errors and ImportError
    where there is no browser to do it."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    # Named outright: selenium would ask the network which driver to use.
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    driver = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=driver)
    try:
        browser.set_script_timeout(60)
        browser.get(page.resolve().as_uri())
        exported = browser.execute_async_script(_TO_SVG)
    finally:
        browser.quit()
    path.write_text(unquote(exported.partition(",")[2]))
