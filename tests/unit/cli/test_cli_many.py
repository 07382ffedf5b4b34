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
    """A service that refuses every request about number 2."""

    def act(request: httpx.Request, id: str, *rest: str) -> Any:
        if id == "2":
            raise Refused(409, "number 2 has ended")
        return {}

    service.routes.insert(0, ("POST", r"/api/v1/trials/(\d+)/kill", act))
    service.refusals = {2: "number 2 has ended"}
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
    assert picky.called("POST", f"/api/v1/experiments/{action}") == 1
    assert picky.bodies[-1] == {"experimentIds": [1, 2, 3]}


def test_trials_too(det: Det, picky: FakeService) -> None:
    result = det("t", "kill", "1,2", 3)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "killed trial 1", "error: number 2 has ended", "killed trial 3", "1 of 3 failed",
    ]  # fmt: skip


def test_all_is_well(det: Det, picky: FakeService) -> None:
    result = det("e", "pause", "1,3", 3)
    assert (result.exit_code, result.stderr) == (0, "paused experiment 1\npaused experiment 3\n")


@pytest.mark.parametrize(
    "words", [["1", "two"], ["-1"], [","], ["1.5"], ["3-1"], ["1-"], ["1-99999999"], []]
)
def test_an_invalid_id_is_a_usage_error(det: Det, service: FakeService, words: list[str]) -> None:
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


@pytest.fixture
def mine(service: FakeService) -> FakeService:
    """Six experiments of mine; 2 and 4 have ended, 5 and 6 have a label."""
    labels: dict[int, list[str]] = {5: ["sweep"], 6: ["sweep", "big"]}
    for number in range(1, 7):
        state = "COMPLETED" if number in (2, 4) else "RUNNING"
        service.experiments[number] = experiment(number, state, labels=labels.get(number, []))
    return service


def sent(service: FakeService, action: str) -> list[list[int]]:
    """The ids of each request."""
    return [
        body["experimentIds"]
        for (method, path), body in zip(service.calls, service.bodies, strict=True)
        if (method, path) == ("POST", f"/api/v1/experiments/{action}")
    ]


def test_ranges_are_ids(det: Det, mine: FakeService) -> None:
    result = det("e", "pause", "1-3,5", 3, "--yes")
    assert result.exit_code == 0
    assert sent(mine, "pause") == [[1, 2, 3, 5]]
    assert det("e", "describe", "1-2").stdout == det("e", "describe", 1, 2).stdout


def test_all_are_mine_that_it_can_be_done_to(det: Det, mine: FakeService) -> None:
    assert det("e", "kill", "--all", "--yes").exit_code == 0
    assert sent(mine, "kill") == [[1, 3, 5, 6]]
    assert det("e", "archive", "--all", "--yes").exit_code == 0
    assert sent(mine, "archive") == [[2, 4]]
    (asked,) = (one for one in mine.params if one.get("archived") == "false")
    assert asked["users"] == "determined"


def test_labels_choose(det: Det, mine: FakeService) -> None:
    listed = det("e", "list", "--label", "sweep").stdout.splitlines()[1:]
    assert [line.split()[0] for line in listed] == ["5", "6"]
    det("e", "kill", "--label", "sweep", "--yes")
    det("e", "kill", "--label", "sweep", "--label", "big", "--yes")
    assert sent(mine, "kill") == [[5, 6], [6]]


@pytest.mark.parametrize("words", [["--all"], ["--label", "sweep"], ["5-6"]])
def test_a_filtered_choice_is_shown_and_confirmed(
    det: Det, mine: FakeService, words: list[str]
) -> None:
    refused = det("e", "kill", *words)
    assert refused.exit_code == 1
    assert "experiments? There is no terminal to ask at; confirm with --yes" in refused.stderr
    assert [line.split()[0] for line in refused.stderr.splitlines()][-3:-1] == ["5", "6"]
    assert sent(mine, "kill") == []


def test_a_question_is_answered(
    det: Det, mine: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True])
    asked: list[str] = []

    def ask(question: str, **_: object) -> bool:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr("determined.cli.arguments.confirmation.at_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", ask)
    assert det("e", "pause", "--label", "sweep").exit_code == 1
    assert sent(mine, "pause") == []
    assert det("e", "pause", "--label", "sweep").exit_code == 0
    assert sent(mine, "pause") == [[5, 6]]
    assert asked == ["Pause 2 experiments?"] * 2


def test_nothing_to_do_is_said(det: Det, mine: FakeService) -> None:
    result = det("e", "activate", "--label", "sweep")
    assert (result.exit_code, result.stderr) == (
        0,
        "there is nothing to activate: no experiment of yours with label sweep is in such a state\n",
    )
    assert det("e", "kill", 1, "--all").exit_code == 2


def test_many_are_asked_for_in_parts(det: Det, service: FakeService) -> None:
    service.experiments = {number: experiment(number) for number in range(1, 121)}
    service.refusals = {7: "no"}
    result = det("e", "kill", "1-120", "--yes")
    assert list(map(len, sent(service, "kill"))) == [50, 50, 20]
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, "1 of 120 failed")


def test_the_existing_part_of_a_range(det: Det, mine: FakeService) -> None:
    result = det("e", "kill", "6-99", "--yes")
    assert (result.exit_code, result.stderr) == (
        0,
        "93 of these 94 IDs have no experiment\nkilled experiment 6\n",
    )
    assert det("e", "kill", "7-99").stderr == "error: no experiment has one of these IDs\n"
    assert det("e", "kill", 6, 7).stderr.splitlines() == [
        "killed experiment 6", "error: not found: experiment 7 does not exist", "1 of 2 failed",
    ]  # fmt: skip


def test_a_range_of_trials_is_asked_for(det: Det, picky: FakeService) -> None:
    refused = det("t", "kill", "1-3")
    assert (refused.exit_code, picky.called("POST", "/api/v1/trials/1/kill")) == (1, 0)
    assert "Kill 3 trials (1-3)?" in refused.stderr
    assert det("t", "kill", "1-3", "--yes").stderr.splitlines()[0] == "killed trial 1"
