"""Several ids at once: `det experiment kill 1 2 3`, `det trial kill 1 2`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService, Refused, experiment, trial

ACTIONS = ("kill", "cancel", "pause", "activate", "archive", "unarchive")


@pytest.fixture
def picky(service: FakeService) -> FakeService:
    """A service that refuses whatever is asked of number 2."""

    def act(request: httpx.Request, id: str, *rest: str) -> Any:
        if id == "2":
            raise Refused(409, "number 2 has ended")
        return {}

    for noun, pattern in (("experiments", r"(\d+)/(\w+)"), ("trials", r"(\d+)/kill")):
        service.routes.insert(0, ("POST", rf"/api/v1/{noun}/{pattern}", act))
    service.experiments = {number: experiment(number) for number in (1, 2, 3)}
    service.trials[1] = [trial(number) for number in (1, 2, 3)]
    return service


@pytest.mark.parametrize("action", ACTIONS)
def test_one_refusal_stops_no_other(det: Det, picky: FakeService, action: str) -> None:
    result = det("e", action, 1, 2, 3)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert "experiment 1" in lines[0]
    assert lines[1] == "error: number 2 has ended"
    assert "experiment 3" in lines[2]
    assert lines[3:] == ["1 of 3 failed"]
    asked = [path for method, path in picky.calls if method == "POST" and "experiments" in path]
    assert asked == [f"/api/v1/experiments/{one}/{action}" for one in (1, 2, 3)]


def test_trials_too(det: Det, picky: FakeService) -> None:
    result = det("t", "kill", "1,2", 3)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "killed trial 1", "error: number 2 has ended", "killed trial 3", "1 of 3 failed",
    ]  # fmt: skip


def test_all_is_well(det: Det, picky: FakeService) -> None:
    result = det("e", "pause", "1,3", 3)
    assert (result.exit_code, result.stderr) == (0, "paused experiment 1\npaused experiment 3\n")


@pytest.mark.parametrize("words", [["1", "two"], ["-1"], [","], ["1.5"]])
def test_what_is_no_id_is_a_usage_error(det: Det, service: FakeService, words: list[str]) -> None:
    assert det("e", "kill", *words).exit_code == 2
    assert service.calls == []


def test_a_service_that_is_away_is_said_once(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    service.away = True
    result = det("e", "kill", 1, 2, 3)
    assert result.exit_code == 1
    assert result.stderr.count("no answer from the service") == 1


def test_wait_for_several(det: Det, service: FakeService) -> None:
    service.experiments = {1: experiment(1, "COMPLETED"), 2: experiment(2, "ERROR")}
    result = det("e", "wait", 2, 1, "--polling-interval", 0.1)
    assert (result.exit_code, result.stderr) == (
        1,
        "experiment 2: ERROR\nexperiment 1: COMPLETED\n",
    )
    assert det("e", "wait", 1).exit_code == 0


def test_describe_takes_both_forms(det: Det, service: FakeService) -> None:
    service.experiments = {i: experiment(i) for i in (1, 2)}
    service.trials[1] = [trial(3)]
    assert det("e", "describe", "1,2").stdout == det("e", "describe", 1, 2).stdout
