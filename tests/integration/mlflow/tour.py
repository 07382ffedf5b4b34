"""A walk through MLflow's pages in a real browser: the answers, and the messages of its console.

``python -m tests.integration.mlflow.tour SERVICE EXPERIMENT MODEL FOLDER`` takes pictures of all pages of a
running cluster. It logs in as `determined`, with the password in the variable ``DET_PASS``, else with none.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.integration.browser import open_browser
from tests.waiting import TIMEOUT_S, until

PATIENCE_S = 30.0
"""Of the program for a page; a picture is taken of what is there then."""
HARMLESS = "ResizeObserver loop completed"
"""Chromium says it when a chart is laid out over two frames."""
SETTLED = 5
"""Looks in a row, a tenth of a second apart, at which no request was under way."""


@dataclass(frozen=True)
class Page:
    """``path``: behind the ``#``. ``words``: the text that the page must show before it counts as loaded."""

    name: str
    path: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Answered:
    """A request of a page, and its answer's status; 0: there was none, for the reason ``failed``."""

    method: str
    url: str
    status: int
    failed: str = ""


def pages(api: httpx.Client, experiment: int, model: str) -> list[Page]:
    """The pages of an experiment's search, of its best run, of the model and the model's version 1."""
    experiments = f"/experiments/{experiment}"
    found = api.post(
        "/mlflow/api/2.0/mlflow/runs/search",
        json={
            "experiment_ids": [str(experiment)],
            "order_by": ["metrics.`validation/accuracy` DESC"],
            "filter": "tags.`mlflow.parentRunId` LIKE 'search-%'",
            "max_results": 6,
        },
    )
    found.raise_for_status()
    ids = [run["info"]["run_id"] for run in found.json()["runs"]]
    run = f"{experiments}/runs/{ids[0]}"
    logged = found.json()["runs"][0]["outputs"]["model_outputs"][-1]["model_id"]
    both = f"?runs={json.dumps(ids)}&experiments={json.dumps([str(experiment)])}"
    trial = f"trial-{ids[0]}"
    best = "orderByKey=metrics.%60validation%2Faccuracy%60&orderByAsc=false"
    return [
        Page("experiments", "/experiments", ("Experiments", f"#{experiment}")),
        Page("search-runs", f"{experiments}/runs", ("matching runs",)),
        Page("runs", f"{experiments}/runs?{best}", (trial, "accuracy")),
        Page("charts", f"{experiments}/runs?{best}&compareRunsMode=CHART", (trial, "accuracy")),
        Page("run", run, (trial, "learning_rate")),
        Page("run-metrics", f"{run}/model-metrics", ("accuracy",)),
        Page("run-system", f"{run}/system-metrics", ("cpu",)),
        Page("run-artifacts", f"{run}/artifacts", ("checkpoints",)),
        Page("search", f"{experiments}/runs/search-{experiment}", ("searcher.name",)),
        Page("compare", f"/compare-runs{both}", ("Comparing", "learning_rate")),
        Page("logged-models", f"{experiments}/models", (trial,)),
        Page("logged-model", f"{experiments}/models/{logged}", (trial,)),
        Page("models", "/models", (model,)),
        Page("model", f"/models/{model}", (model, "Version 1")),
        Page("version", f"/models/{model}/versions/1", ("Version 1", trial)),
    ]


class Tour:
    """A browser that is logged in to MLflow's pages of a service."""

    def __init__(
        self, driver: Any, service: str, user: str, password: str, patience_s: float = TIMEOUT_S
    ) -> None:
        self._driver = driver
        self._patience = patience_s
        self._service = service
        self._sent: dict[str, tuple[str, str]] = {}
        self._open: set[str] = set()
        self.answered: list[Answered] = []
        self.said: list[str] = []
        self._log_in(user, password)

    def _log_in(self, user: str, password: str) -> None:
        driver = self._driver
        driver.execute_cdp_cmd("Network.enable", {})
        driver.get(f"{self._service}/mlflow/")
        for name, text in (("username", user), ("password", password)):
            driver.find_element("name", name).clear()
            driver.find_element("name", name).send_keys(text)
        driver.find_element("tag name", "button").click()
        self._until_shown("Experiments")
        self.settle()
        # Its answer to the first visit is the form, with 401.
        self.answered.clear()
        self.said.clear()

    def visit(self, page: Page) -> None:
        """Reload the page, and wait until it shows its words and sends no more requests."""
        self._driver.get("about:blank")
        self._driver.get(f"{self._service}/mlflow/#{page.path}")
        for words in page.words:
            self._until_shown(words)
        self.settle()

    def text(self) -> str:
        """The text of the page."""
        return str(
            self._driver.execute_script("return document.body ? document.body.innerText : ''")
        )

    def settle(self) -> None:
        """Waits until the page asks for nothing more."""
        quiet = 0

        def is_settled() -> bool:
            nonlocal quiet
            self._read()
            quiet = 0 if self._open else quiet + 1
            return quiet >= SETTLED

        until(
            "a page that asks for nothing more",
            is_settled,
            self._patience,
            show=lambda: str(self._asked()),
        )

    def picture(self, path: Path) -> None:
        """Write a PNG of the page."""
        path.write_bytes(self._driver.get_screenshot_as_png())

    def refused(self) -> list[Answered]:
        """Requests that got an error or no answer, except requests that the page cancelled."""
        return [
            one
            for one in self.answered
            if one.status >= 400 or (not one.status and "ABORTED" not in one.failed)
        ]

    def _until_shown(self, words: str) -> None:
        until(
            f"{words!r} on the page", lambda: words in self.text(), self._patience, show=self._shown
        )

    def _shown(self) -> str:
        self._read()
        return f"{self._driver.current_url}\n{self.text()}\n{self.refused()}\n{self.said}"

    def _asked(self) -> list[tuple[str, str]]:
        return [self._sent[one] for one in self._open]

    def _read(self) -> None:
        for method, event in self._events():
            request = event.get("requestId", "")
            if method == "Network.requestWillBeSent":
                if event["request"]["url"].startswith("http"):
                    self._sent[request] = (event["request"]["method"], event["request"]["url"])
                    self._open.add(request)
            elif request not in self._sent:
                continue
            elif method == "Network.responseReceived":
                status = event["response"]["status"]
                self.answered.append(Answered(*self._sent[request], status))
            elif method == "Network.loadingFinished":
                self._open.discard(request)
            elif method == "Network.loadingFailed":
                self._open.discard(request)
                self.answered.append(Answered(*self._sent[request], 0, event.get("errorText", "")))
        self.said += [
            f"{line['level']} {line['message']}"
            for line in self._driver.get_log("browser")
            if line["level"] == "SEVERE" and HARMLESS not in line["message"]
        ]

    def _events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in self._driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            yield message["method"], message["params"]


def main() -> None:
    service, experiment, model, folder = sys.argv[1:]
    user, password = "determined", os.environ.get("DET_PASS", "")
    Path(folder).mkdir(parents=True, exist_ok=True)
    login = httpx.post(
        f"{service}/api/v1/auth/login", json={"username": user, "password": password}
    )
    login.raise_for_status()
    headers = {"Authorization": f"Bearer {login.json()['token']}"}
    with (
        tempfile.TemporaryDirectory() as profile,
        httpx.Client(base_url=service, headers=headers, timeout=180) as api,
        open_browser(Path(profile), network=True) as driver,
    ):
        tour = Tour(driver, service, user, password, PATIENCE_S)
        for page in pages(api, int(experiment), model):
            try:
                tour.visit(page)
            except Exception as error:
                print(f"{page.name}: {error}"[:3000])
            tour.picture(Path(folder) / f"{page.name}.png")
            print(f"{page.name}: {len(tour.answered)} answers")
            for one in tour.refused():
                print(f"  {one}")
            for said in tour.said:
                print(f"  {said}")
            tour.answered.clear()
            tour.said.clear()


if __name__ == "__main__":
    main()
