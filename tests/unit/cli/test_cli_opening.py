"""``det notebook open`` and ``det tensorboard open``."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService, command

ID = command()["id"]
URL = "http://task.localhost/visit"


@pytest.mark.parametrize("noun", ["notebook", "tensorboard"])
def test_the_browser_is_opened_unless_it_is_not_wanted(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch, noun: str
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: not opened.append(url))
    running = command(state="STATE_RUNNING", serviceAddress="/proxy/x/")
    service.routes[:0] = [
        ("GET", rf"/api/v1/{noun}s/[^/]+", lambda _: {noun: running}),
        ("POST", r"/api/v1/tasks/[^/]+/visits", lambda _: {"url": URL}),
    ]
    printed = det(noun, "open", ID, "--no-browser")
    assert (printed.exit_code, printed.stdout, opened) == (0, f"{URL}\n", [])
    assert det(noun, "open", ID).stdout == ""
    assert opened == [URL]
