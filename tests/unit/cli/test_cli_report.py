"""`det experiment report` against a service in memory."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService, Refused

PAGE = "<!doctype html>\n<title>é</title>"


@pytest.fixture(autouse=True)
def asked(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[list[tuple[str, str]]]:
    """The parameters of each request for a report."""
    found: list[list[tuple[str, str]]] = []

    def report(request: httpx.Request) -> httpx.Response:
        found.append(request.url.params.multi_items())
        if ("experimentIds", "7") in found[-1]:
            raise Refused(404, "experiment 7 does not exist")
        return httpx.Response(200, html=PAGE)

    service.routes.append(("GET", r"/api/v1/report", report))
    monkeypatch.chdir(tmp_path)
    return found


def test_an_experiment_alone(det: Det, asked: list[list[tuple[str, str]]]) -> None:
    result = det("e", "report", 1)
    assert (result.exit_code, result.stdout) == (0, "report_1.html\n")
    assert Path("report_1.html").read_text() == PAGE
    assert asked == [[("experimentIds", "1"), ("best", "0")]]


def test_a_comparison(det: Det, asked: list[list[tuple[str, str]]], tmp_path: Path) -> None:
    target = tmp_path / "both.html"
    result = det("experiment", "report", "1-2", "--trials", "5,3", "--best", 4, "-o", target)
    assert (result.exit_code, result.stdout) == (0, f"{target}\n")
    ids = [("experimentIds", "1"), ("experimentIds", "2"), ("trialIds", "5"), ("trialIds", "3")]
    assert asked == [[*ids, ("best", "4")]]
    assert det("e", "report", "--trials", "5").stdout == "report.html\n"


def test_nothing_is_written_without_a_report(
    det: Det, asked: list[list[tuple[str, str]]], tmp_path: Path
) -> None:
    result = det("e", "report", 7)
    assert (result.exit_code, result.stderr) == (1, "error: experiment 7 does not exist\n")
    result = det("e", "report")
    assert result.exit_code == 2 and "nothing is named" in result.stderr
    assert len(asked) == 1
    assert list(tmp_path.glob("*.html")) == []
