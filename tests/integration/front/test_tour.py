"""A day on the pages, in a real browser on a real cluster: from the login to the logout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from determined_deployments.local import daemon
from determined_deployments.local.layout import Layout
from tests.integration.browser import open_browser
from tests.integration.front.test_browser import complaints
from tests.local_cluster import LocalCluster
from tests.printed import ROOT
from tests.waiting import until

DIGITS = str(ROOT / "examples/digits")
FAILS = "import sys\n\nprint('about to fail')\nraise ValueError('no luck today')\n"
PIPELINE = """\
name: asked
steps:
  - name: good
    approval: Is it good enough?
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.running(torch=True) as found:
        yield found


class Reader:
    """A person at a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def text(self) -> str:
        return str(self.driver.execute_script("return document.body.innerText"))

    def reads(self, *words: str) -> None:
        """Waits, without loading the page again, until it shows ``words``."""
        until(
            f"{words} on {self.driver.current_url}",
            lambda: all(word in self.text() for word in words),
            show=self.text,
        )

    def one(self, selector: str) -> Any:
        return until(
            f"{selector} on {self.driver.current_url}",
            lambda: next(
                (
                    one
                    for one in self.driver.find_elements("css selector", selector)
                    if one.is_displayed()
                ),
                None,
            ),
            show=self.text,
        )

    def press(self, words: str) -> None:
        """Presses the button or link that is shown with these words."""

        def found() -> Any:
            return next(
                (
                    one
                    for one in self.driver.find_elements("css selector", "button, a, summary")
                    if one.is_displayed() and one.text.strip() == words
                ),
                None,
            )

        button = until(f"{words!r} on {self.driver.current_url}", found, show=self.text)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()

    def write(self, selector: str, text: str) -> None:
        self.driver.execute_script(
            "arguments[0].value = arguments[1];"
            "arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
            self.one(selector),
            text,
        )

    def path(self) -> str:
        return str(self.driver.execute_script("return location.pathname"))


def test_a_day(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    with open_browser(tmp_path_factory.mktemp("chromium"), network=True) as driver:
        reader = Reader(driver)
        driver.get(cluster.det("open", "--no-browser").stdout.strip())
        reader.reads("What needs you", "No experiment runs")
        base = driver.current_url.partition("/det/")[0] + "/det"

        # A search from an example, first with a mistake.
        driver.get(f"{base}/experiments/new?origin=core/random.yaml")
        config = reader.one("#config").get_attribute("value")
        if "searcher" not in config:
            driver.get(f"{base}/experiments/new")
            config = reader.one("#config").get_attribute("value")
        assert "searcher" in config, config
        reader.write("#config", config.replace("searcher:", "searchr:"))
        reader.reads("searchr")
        reader.write("#config", config)
        reader.press("Submit")
        until("the experiment's page", lambda: reader.path() == "/det/experiments/1")
        # It renews itself.
        reader.reads("completed", "Best trials")
        until("its curves", lambda: driver.find_elements("css selector", ".u-over"))
        assert complaints(driver) == []

        # Its best trial becomes a version of a model, and that its champion.
        cluster.det("model", "create", "digits")
        shown = cluster.describe(1)
        checkpoints = cluster.json("experiment", "list-checkpoints", "1")
        driver.get(f"{base}/models/digits")
        reader.write("#checkpoint", checkpoints[0]["uuid"])
        reader.press("Register as the next version")
        reader.reads("is a version of digits now")
        reader.press("Move here")
        reader.reads("champion stands for version 1 now.")

        # Two trials side by side.
        ids = [trial["id"] for trial in cluster.trials(1)][:2]
        driver.get(f"{base}/compare?" + "&".join(f"trial={one}" for one in ids))
        reader.reads(*(str(one) for one in ids))

        # A trial that failed, its reason and its log; a fork of it.
        folder = tmp_path_factory.mktemp("fails")
        failing = "name: failing\nentrypoint: python3 train.py\nmax_restarts: 0\n"
        failing += "searcher: {name: single, metric: x, max_length: {batches: 1}}\n"
        failed = cluster.submit(folder, failing, train_py=FAILS)
        cluster.wait(failed)
        driver.get(f"{base}/")
        reader.reads("failing", "no luck today")
        trial = cluster.trials(failed)[0]["id"]
        driver.get(f"{base}/trials/{trial}/logs")
        reader.reads("about to fail", "no luck today")
        driver.get(f"{base}/experiments/{failed}/fork")
        text = reader.one("#config").get_attribute("value")
        reader.write("#config", text.replace("name: failing", "name: once more"))
        reader.press("Submit")
        until("the fork's page", lambda: reader.path() == f"/det/experiments/{failed + 1}")
        reader.reads("once more", f"forked from {failed}")
        assert complaints(driver) == []

        # A step of a pipeline waits for somebody.
        (folder / "pipeline.yaml").write_text(PIPELINE)
        cluster.det("pipeline", "run", str(folder / "pipeline.yaml"), "--detach")
        driver.get(f"{base}/")
        reader.reads("pipeline 1 asked", "a step waits for approval")
        driver.get(f"{base}/pipelines/1")
        reader.press("Approve…")
        reader.press("Approve")
        reader.reads("completed")

        # Keys find things.
        driver.get(f"{base}/")
        driver.find_element("tag name", "body").send_keys("/")
        reader.one("#sought").send_keys("once more")
        reader.reads("experiment")
        until(
            "it is found",
            lambda: "once more" in driver.find_element("id", "found").text,
        )
        assert complaints(driver) == []

        # Out.
        driver.get(f"{base}/")
        reader.one("[popovertarget=me]").click()
        reader.press("Log out")
        until("the login page", lambda: reader.path() == "/det/login")
        driver.get(f"{base}/experiments/1")
        assert reader.path() == "/det/login"
        assert shown["id"] == 1


def test_a_page_goes_on_when_the_service_was_killed(
    cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_browser(tmp_path_factory.mktemp("chromium")) as driver:
        reader = Reader(driver)
        driver.get(cluster.det("open", "--no-browser").stdout.strip())
        driver.get(f"{driver.current_url.partition('/det/')[0]}/det/experiments")
        note = driver.find_element("id", "away")
        service = daemon.running(Layout.of(cluster.data_dir), "service")
        assert service is not None
        service.kill()
        until("the page says it", note.is_displayed)
        cluster.up()
        until("the page goes on", lambda: not note.is_displayed())
        cluster.submit(
            tmp_path_factory.mktemp("after"),
            "name: begun after that\nentrypoint: python3 train.py\nmax_restarts: 0\n"
            "searcher: {name: single, metric: x, max_length: {batches: 1}}\n",
            train_py=FAILS,
        )
        reader.reads("begun after that")
