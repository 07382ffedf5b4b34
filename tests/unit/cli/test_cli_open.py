"""``det open``."""

from __future__ import annotations

import orjson
import pytest

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService

ENTER = "/det/enter?ticket=x&to="


@pytest.fixture
def asked(service: FakeService) -> list[str]:
    """The pages for which tickets were asked."""
    found: list[str] = []

    def ticket(request: object) -> dict[str, str]:
        to = orjson.loads(request.content)["to"]  # type: ignore[attr-defined]
        found.append(to)
        return {"url": f"http://det.localhost:8080{ENTER}{to}"}

    service.routes[:0] = [
        ("POST", "/api/v1/pages/tickets", ticket),
        ("GET", "/api/v1/models/my%20model", lambda _: {"model": {"id": 3}}),
    ]
    return found


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ([], "/det/"),
        (["7"], "/det/experiments/7"),
        (["trial", "12"], "/det/trials/12"),
        (["model", "my model"], "/det/models/3"),
        (["task", "a b"], "/det/tasks/a%20b"),
        (["/det/experiments?q=x"], "/det/experiments?q=x"),
        (["cluster"], "/det/cluster"),
    ],
)
def test_a_page_is_opened_logged_in(
    det: Det,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    page: str,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: not opened.append(url))
    printed = det("open", *words)
    assert (printed.exit_code, printed.stdout) == (0, ""), printed.stderr
    assert "http://det.localhost:8080/det/ is open" in printed.stderr
    assert (asked, len(opened)) == ([page], 1)
    printed = det("open", *words, "--no-browser")
    assert (printed.stdout, len(opened)) == (f"http://det.localhost:8080{ENTER}{page}\n", 1)


def test_without_a_browser_the_address_is_printed(
    det: Det, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    printed = det("open")
    assert "open this address within a minute" in printed.stderr
    assert printed.stdout.startswith("http://det.localhost:8080/det/enter")


@pytest.mark.parametrize("words", [["trial"], ["7", "8"], ["shape", "3"]])
def test_what_is_no_page_is_refused(det: Det, asked: list[str], words: list[str]) -> None:
    printed = det("open", *words)
    assert printed.exit_code == 2
    assert "det open trial 12" in " ".join(printed.stderr.split())
