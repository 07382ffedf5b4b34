"""The stream that tells open pages to fetch themselves again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from determined_service.app import create_app
from determined_service.base.settings import Settings
from tests.integration.conftest import serve
from tests.waiting import TIMEOUT_S, until


class Browser:
    """A client of the pages of a served application, logged in as ``determined``."""

    def __init__(self, url: str) -> None:
        self.host = f"det.localhost:{urlsplit(url).port}"
        self.client = httpx.Client(
            base_url=url,
            headers={"Host": self.host, "Origin": f"http://{self.host}"},
            timeout=TIMEOUT_S,
        )
        form = {"username": "determined", "password": "", "to": ""}
        answer = self.client.post("/det/login", data=form)
        assert answer.status_code == 303
        # The client keeps cookies by its own address's host.
        self.client.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]

    def csrf(self) -> str:
        text = self.client.get("/det/").text
        return text.partition('name="csrf" value="')[2].partition('"')[0]


@pytest.fixture
def browser(settings: Settings) -> Iterator[Browser]:
    with serve(create_app(settings)) as url:
        found = Browser(url)
        yield found
        found.client.close()


class Listener(threading.Thread):
    """The events of a stream, as they come."""

    def __init__(self, browser: Browser, topic: str) -> None:
        super().__init__(daemon=True)
        self._browser, self._topic = browser, topic
        self.lines: list[str] = []
        self.is_open = threading.Event()
        self.start()
        assert self.is_open.wait(TIMEOUT_S)

    def run(self) -> None:
        client = self._browser.client
        with client.stream("GET", "/det/events", params={"topic": self._topic}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            self.is_open.set()
            # The test's end closes it.
            with contextlib.suppress(httpx.HTTPError):
                for line in answer.iter_lines():
                    self.lines.append(line)


def test_a_change_is_told_and_nothing_of_it(browser: Browser) -> None:
    listener = Listener(browser, "cluster")
    until("the stream has begun", lambda: "retry: 2000" in listener.lines)
    form = {"csrf": browser.csrf(), "name": "a secret name", "to": "/det/workspaces"}
    assert browser.client.post("/det/actions/workspace.create", data=form).status_code == 303
    config = "name: a secret name\nentrypoint: x\nsearcher: {name: single, metric: x}\n"
    token = browser.client.post(
        "/api/v1/auth/login",
        json={"username": "determined", "password": ""},
        headers={"Host": "127.0.0.1"},
    ).json()["token"]
    answer = browser.client.post(
        "/api/v1/experiments",
        json={"config": config, "activate": True},
        headers={"Host": "127.0.0.1", "Authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 200, answer.text
    until("it is told", lambda: "event: changed" in listener.lines)
    assert set(listener.lines) <= {"retry: 2000", "event: changed", "data:", ":", ": ", ""}


def test_the_stream_ends_with_the_session(browser: Browser) -> None:
    listener = Listener(browser, "cluster")
    answer = browser.client.post("/det/logout", data={"csrf": browser.csrf()})
    assert answer.status_code == 303
    until("the stream has ended", lambda: not listener.is_alive())


@pytest.mark.parametrize("topic", ["experiment:1/../../x", "secrets", "experiment:99", "task:a?b"])
def test_topics_that_are_none(browser: Browser, topic: str) -> None:
    answer = browser.client.get("/det/events", params={"topic": topic})
    assert answer.status_code in (400, 404)
    many = browser.client.get("/det/events", params={"topic": ["cluster"] * 9})
    assert many.status_code == 400
