"""`det experiment plot` against a service in memory."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import httpx
import pytest

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService, Refused

PAGE = "<!doctype html>\n<title>é</title>"


@pytest.fixture(autouse=True)
def page(service: FakeService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def plot(request: httpx.Request, id: str) -> httpx.Response:
        if id != "1":
            raise Refused(404, f"experiment {id} does not exist")
        return httpx.Response(200, html=PAGE)

    service.routes.append(("GET", r"/api/v1/experiments/(\d+)/plot", plot))
    monkeypatch.chdir(tmp_path)


def test_the_page_is_written_and_its_path_printed(det: Det) -> None:
    result = det("e", "plot", 1)
    assert (result.exit_code, result.stdout) == (0, "experiment_1.html\n")
    assert Path("experiment_1.html").read_text() == PAGE


def test_another_file(det: Det, tmp_path: Path) -> None:
    target = tmp_path / "one.html"
    assert det("experiment", "plot", 1, "-o", target).stdout == f"{target}\n"
    assert target.read_text() == PAGE


def test_no_directory_is_made_that_was_not_asked_for(
    det: Det, service: FakeService, tmp_path: Path
) -> None:
    missing = tmp_path / "plots"
    result = det("e", "plot", 1, "-o", missing / "one.html")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: {missing}: no such directory; create it first\n"
    assert not missing.exists()
    assert service.called("GET", "/api/v1/experiments/1/plot") == 0


def test_an_unknown_experiment_leaves_no_file(det: Det, tmp_path: Path) -> None:
    result = det("e", "plot", 7)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: experiment 7 does not exist\n"
    assert list(tmp_path.glob("*.html")) == []


@pytest.mark.parametrize("found", [True, False])
def test_a_browser_shows_it(det: Det, monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or found)
    result = det("e", "plot", 1, "--open")
    assert opened == [Path("experiment_1.html").resolve().as_uri()]
    assert ("no browser" in result.stderr) == (not found)
    assert result.exit_code == 0
