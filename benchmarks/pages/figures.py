"""First byte of each page beside an empty cluster's, the time until it is drawn, 200 trials compared, and the
service's CPU with 100 open pages while nothing changes.

Rows of the past are written straight to the tables (:mod:`.data`); nothing runs beside the service. With
``SMALL=1`` in the environment they are a hundredth.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Thread

import httpx

from benchmarks.large_experiment import Service, cpu_s, service
from benchmarks.pages.browser import browser
from benchmarks.pages.data import CONFIG, Sizes, fill

ROUNDS = 5
STREAMS = 100
QUIET_S = 60.0
LIMIT_MS = 150
"""What a page's first byte may take beyond an empty cluster's."""


def main() -> None:
    sizes = Sizes()
    if os.environ.get("SMALL"):
        sizes = Sizes(500, 300, 200, 300, 10_000, 10_000)
    with service() as empty:
        _submit(empty)
        with _visitor(empty.url) as visitor:
            before = {name: _cost(empty, visitor, path) for name, path in _pages(1).items()}
    with service() as full:
        _submit(full)
        fill(full.database, sizes)
        print(f"{sizes}")
        _first_bytes(full, before, sizes.curves)
        _drawn(full, sizes.curves)
        _open_pages(full)


def _submit(running: Service) -> None:
    body = {"config": CONFIG, "modelDefinition": [], "activate": False}
    running.client.post("/api/v1/experiments", json=body).raise_for_status()


def _pages(trials: int) -> dict[str, str]:
    """The pages, by what they show. Experiment 1 and trial 1 are the large ones. Charts ask for curves with
    ``quick`` first, and for all extremes then."""
    ids = [f"trial={number}" for number in range(1, trials + 1)]
    curves = "&".join(f"id={number}" for number in range(1, trials + 1))
    return {
        "home": "/",
        "experiments": "/experiments",
        "experiments by best metric": "/experiments?sort=best&order=asc",
        "experiments, a word": "/experiments?q=resnet",
        "experiments, a label and an owner": "/experiments?q=label:label-7+owner:admin",
        "experiments, a hyperparameter": "/experiments?q=lr%3C0.0001",
        "experiments, the metric": "/experiments?q=metric%3C0.001",
        "experiments, a chosen column": "/experiments?column=hp.lr&column=best",
        "experiment": "/experiments/1",
        "experiment, its trials": "/experiments/1/trials",
        "experiment, its curves": "/curves/experiments/1",
        "trial": "/trials/1",
        "trial, a million points at first": "/curves/trials?id=1&metric=training.loss&quick=true",
        "trial, a million points": "/curves/trials?id=1&metric=training.loss",
        "trial, its log": "/trials/1/logs",
        "compare, best 30": "/compare?experiment=1",
        f"compare, {trials} trials": f"/compare?{'&'.join(ids)}",
        f"compare, {trials} curves at first": f"/curves/trials?{curves}&metric=validation.loss&quick=true",
        f"compare, {trials} curves": f"/curves/trials?{curves}&metric=validation.loss",
        "cluster": "/cluster",
        "tasks": "/tasks",
        "models": "/models",
        "workspaces": "/workspaces",
    }


@contextlib.contextmanager
def _visitor(url: str) -> Iterator[httpx.Client]:
    host = url.replace("127.0.0.1", "det.localhost")
    # The name of the pages' host leads to this machine in browsers only.
    headers = {"Host": host.removeprefix("http://"), "Accept": "text/html", "Origin": host}
    with httpx.Client(base_url=f"{url}/det", headers=headers, timeout=120) as client:
        answer = client.post("/login", data={"username": "determined", "password": "", "to": ""})
        cookies = [one.partition(";")[0] for one in answer.headers.get_list("set-cookie")]
        client.headers["Cookie"] = "; ".join(cookies)
        yield client


@dataclass(frozen=True)
class Cost:
    """Milliseconds until an answer begins (the median of some), and of the processors: the service's and
    Postgres's."""

    first_byte: float
    service: float
    postgres: float


def _cost(running: Service, client: httpx.Client, path: str) -> Cost | None:
    """None: this page is not there."""
    with client.stream("GET", path) as answer:
        if not answer.is_success:
            return None
    took = []
    before = running.cpu()
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with client.stream("GET", path) as answer:
            for _ in answer.iter_raw(1):
                break
            took.append((time.perf_counter() - began) * 1000)
    service_s, postgres_s = (
        (now - then) / ROUNDS * 1000 for now, then in zip(running.cpu(), before, strict=True)
    )
    return Cost(statistics.median(took), service_s, postgres_s)


_NOTHING = Cost(0, 0, 0)


def _first_bytes(full: Service, before: dict[str, Cost | None], trials: int) -> None:
    load = os.getloadavg()[0]
    print(f"the machine's load is {load:.0f} on {os.cpu_count()} cores")
    print(
        f"{'first byte, ms':40} {'empty':>8} {'full':>8} {'beyond':>8} {'CPU of service':>15} {'Postgres':>9}"
    )
    with _visitor(full.url) as visitor:
        for (name, path), of_empty in zip(_pages(trials).items(), before.values(), strict=True):
            took = _cost(full, visitor, path)
            if took is None:
                print(f"{name:40} not there")
                continue
            least = of_empty or _NOTHING
            beyond = took.first_byte - least.first_byte
            late = "  more than allowed" if beyond > LIMIT_MS else ""
            print(
                f"{name:40} {least.first_byte:8.0f} {took.first_byte:8.0f} {beyond:8.0f} "
                f"{took.service:15.0f} {took.postgres:9.0f}{late}"
            )


def _drawn(full: Service, trials: int) -> None:
    if shutil.which("chromedriver") is None:
        print("there is no chromedriver: nothing is drawn")
        return
    print(f"{'drawn in Chromium, ms':40} {'text':>8} {'curves':>8}")
    host = full.url.replace("127.0.0.1", "det.localhost")
    with browser(host, "determined", "") as window:
        for name, path in _pages(trials).items():
            if path.startswith("/curves"):
                continue
            with contextlib.suppress(TimeoutError):
                window.draw(f"/det{path}")
            try:
                found = window.draw(f"/det{path}")
            except TimeoutError as error:
                print(f"{name:40} {error}")
                continue
            print(f"{name:40} {found.text:8.0f} {found.curves:8.0f}")


def _open_pages(full: Service) -> None:
    """CPU of the service while pages in sight hold their streams, and nothing changes."""
    with _visitor(full.url) as visitor:
        streams = [
            Thread(target=_listen, args=(visitor, number), daemon=True) for number in range(STREAMS)
        ]
        for one in streams:
            one.start()
        time.sleep(10)
        began = cpu_s(full.process)
        time.sleep(QUIET_S)
        share = (cpu_s(full.process) - began) / QUIET_S
        print(f"CPU of the service with {STREAMS} open pages: {share:.1%} of a core")


def _listen(visitor: httpx.Client, number: int) -> None:
    topic = ("cluster", "experiment:1", "trial:1")[number % 3]
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.Client(base_url=visitor.base_url, headers=visitor.headers, timeout=None) as own,
        own.stream("GET", f"/events?topic={topic}") as answer,
    ):
        for _ in answer.iter_raw():
            continue
