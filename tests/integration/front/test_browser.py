"""Every page in a real browser: accessible, without errors, nothing from elsewhere, its layout whole."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from determined_service.app import create_app
from determined_service.base.db import Database
from determined_service.base.pages import FRONT_HOME
from determined_service.base.settings import Settings
from tests import axe
from tests.integration.browser import open_browser
from tests.integration.conftest import serve
from tests.integration.front.test_two_users import QUERIES, addresses, filled
from tests.integration.service_api.test_scope import Mine, fill
from tests.integration.service_api.world import World, report
from tests.waiting import TIMEOUT_S, until

T = TypeVar("T")

NO_PAGES = re.compile(
    r"/(find|report|curves/.*|go/.*|.*/(files/.*|archive|download|open|terminal|terminal/state))|.*/lines/.*"
)
"""Answers that are no pages, the line of a log that may be another's here, and terminals: they need a process
(test_terminal.py)."""
HOSTILE = "<img src=x onerror=alert(1)>\u202e\u2066\x1b[31m\"'&;" + "long" * 25_000


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("chromium"), network=True) as found:
        found.set_script_timeout(TIMEOUT_S)
        yield found


@pytest.fixture
def served(settings: Settings) -> Iterator[tuple[FastAPI, str]]:
    """The application, and its address."""
    app = create_app(settings)
    with serve(app) as url:
        yield app, url


def at_home(url: str) -> str:
    """The address of the pages of the service at ``url``."""
    return f"http://det.localhost:{urlsplit(url).port}{FRONT_HOME}"


def log_in(driver: Any, base: str, user: str) -> None:
    driver.get(f"{base}/login")
    driver.find_element("name", "username").send_keys(user)
    driver.find_element("css selector", "form button").click()
    until("the first page", lambda: driver.current_url.endswith(f"{FRONT_HOME}/"))
    driver.get_log("browser")
    driver.get_log("performance")


def complaints(driver: Any) -> list[str]:
    """What the page's console says, and its requests to other hosts."""
    found = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    own = urlsplit(driver.current_url).netloc
    for entry in driver.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] != "Network.requestWillBeSent":
            continue
        url = urlsplit(event["params"]["request"]["url"])
        if url.scheme in ("http", "https", "ws", "wss") and url.netloc != own:
            found.append(f"a request to {url.netloc}")
    return found


def shown(driver: Any, address: str) -> None:
    driver.get(address)
    until(
        "the page's script has run",
        lambda: driver.execute_script(
            "return document.readyState === 'complete' && ![...document.querySelectorAll('time[datetime]')]"
            ".some((one) => one.textContent.endsWith('UTC'))"
        ),
    )


def with_world(app: FastAPI, url: str, make: Callable[[World], Awaitable[T]]) -> T:
    """What ``make`` makes, in this thread: the application's own connections are of another event loop."""

    async def made() -> T:
        world = World(app, url)
        world.db = Database(app.state.settings.db_url)
        try:
            return await make(world)
        finally:
            await world.close()
            await world.db.close()

    return asyncio.run(made())


async def things(world: World) -> Mine:
    return await fill(world, "zqalphaqz")


async def hostile(world: World) -> tuple[int, int]:
    """An experiment and a trial."""
    texts = {"name": HOSTILE, "labels": [HOSTILE], "notes": HOSTILE, "description": HOSTILE}
    experiment = await world.experiment(state="COMPLETED", **texts)
    trial, _ = await world.trial(experiment, hparams={HOSTILE: HOSTILE}, reason=HOSTILE)
    return experiment, trial


def test_every_page_is_for_everybody(served: tuple[FastAPI, str], driver: Any) -> None:
    app, url = served
    base = at_home(url)
    mine = with_world(app, url, things)
    log_in(driver, base, "admin")
    faults: dict[str, list[str]] = {}
    for address in addresses():
        if NO_PAGES.fullmatch(address):
            continue
        query = "&".join(
            f"{name}={filled(str(value), mine)}" for name, value in QUERIES.get(address, {}).items()
        )
        shown(driver, f"{base}{filled(address, mine)}?{query}")
        found = complaints(driver) + axe.findings(driver)
        for width in (1300, 400):
            driver.set_window_size(width, 900)
            wide, room = driver.execute_script(
                "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            if wide > room:
                found.append(f"{wide} pixels wide in a window of {room}")
        if found:
            faults[address] = found
    assert faults == {}


def test_both_themes_have_contrast(served: tuple[FastAPI, str], driver: Any) -> None:
    app, url = served
    base = at_home(url)
    mine = with_world(app, url, things)
    log_in(driver, base, "admin")
    for theme in ("dark", "light"):
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        for address in ("/", "/experiments", f"/experiments/{mine.experiment_id}", "/settings"):
            shown(driver, f"{base}{address}")
            assert axe.findings(driver) == [], (theme, address)


def test_hostile_texts_stay_texts_and_the_layout_whole(
    served: tuple[FastAPI, str], driver: Any
) -> None:
    app, url = served
    base = at_home(url)
    experiment, trial = with_world(app, url, hostile)
    log_in(driver, base, "determined")
    for address in (
        "/",
        "/experiments",
        f"/experiments/{experiment}",
        f"/experiments/{experiment}/trials",
        f"/experiments/{experiment}/analysis",
        f"/experiments/{experiment}/about",
        f"/experiments/{experiment}/about?edit=true",
        f"/experiments/{experiment}/configuration",
        f"/experiments/{experiment}/fork",
        f"/trials/{trial}",
        f"/compare?trial={trial}",
    ):
        for width in (1300, 400):
            driver.set_window_size(width, 900)
            shown(driver, f"{base}{address}")
            assert complaints(driver) == [], address
            wide, room = driver.execute_script(
                "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert wide <= room, (address, width)
        assert driver.find_elements("css selector", "img[onerror]") == [], address


async def compared(world: World) -> tuple[int, list[int]]:
    """An experiment with hostile names, and its two trials, which have reported."""
    experiment, _ = await hostile(world)
    ids = []
    for loss in (2.0, 1.0):
        leg = await world.start(experiment, *await world.trial(experiment, hparams={HOSTILE: loss}))
        await leg.store(*(report(step, "validation", loss=loss / step) for step in range(1, 9)))
        ids.append(leg.trial_id)
    return experiment, ids


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_opens_from_the_disk_without_a_network(
    settings: Settings, driver: Any, tmp_path: Path, theme: str
) -> None:
    app = create_app(settings)
    files = []
    with serve(app) as url:
        experiment, trials = with_world(app, url, compared)
        login = {"username": "determined", "password": ""}
        token = httpx.post(f"{url}/api/v1/auth/login", json=login).json()["token"]
        for named in ({"experimentIds": experiment}, {"trialIds": trials}):
            answer = httpx.get(
                f"{url}/api/v1/report", params=named, headers={"Authorization": f"Bearer {token}"}
            )
            files.append(tmp_path / f"{len(files)}.html")
            files[-1].write_bytes(answer.raise_for_status().content)
    # The service is gone.
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get_log("browser")
    driver.get_log("performance")
    for file in files:
        driver.get(file.as_uri())
        assert len(driver.find_elements("css selector", "figure canvas")) == 1
        assert driver.find_elements("css selector", "img, link, iframe") == []
        driver.execute_script(
            "const field = document.getElementById('smooth'); field.value = 0.9;"
            "field.dispatchEvent(new Event('input', { bubbles: true }));"
        )
        found = complaints(driver) + axe.findings(driver)
        assert found == [], file
        for width in (1300, 400):
            driver.set_window_size(width, 900)
            wide, room = driver.execute_script(
                "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert wide <= room, (file, width)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_page_says_that_the_service_is_away(settings: Settings, driver: Any) -> None:
    with serve(create_app(settings)) as url:
        log_in(driver, at_home(url), "determined")
        shown(driver, f"{at_home(url)}/")
        note = driver.find_element("id", "away")
        assert not note.is_displayed()
    until("the page says it", note.is_displayed)
    assert "The service does not answer." in note.text
