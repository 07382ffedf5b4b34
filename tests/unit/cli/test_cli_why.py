"""`det experiment describe`: why."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService, experiment, log_line, trial


@pytest.fixture
def troubled(service: FakeService) -> FakeService:
    """A search with a failed trial, and one that waits."""
    service.experiments[1] = experiment()
    service.trials[1] = [
        trial(3, "ERROR", restarts=1, reason="process exited with code 3"),
        trial(4, "QUEUED"),
    ]
    leg = {"trialId": 3, "state": "STATE_ERROR", "agentId": "a1", "exitCode": 3}
    service.explanations[1] = {
        "legs": [
            {**leg, "runId": 1, "reason": "agent a1 lost for 31 s"},
            {**leg, "runId": 2, "reason": "process exited with code 3"},
        ],
        "waiting": [
            {"trialId": 4, "since": "2026-01-02T03:04:05Z", "reason": "0 of 2 are free"},
        ],
    }
    service.logs[3] = [log_line(n, f"line {n}") for n in range(1, 30)]
    return service


def test_tables(det: Det, troubled: FakeService) -> None:
    result = det("e", "describe", 1)
    assert result.exit_code == 0, result.stderr
    titles = [block.splitlines()[0] for block in result.stdout.split("\n\n")]
    assert titles[:5] == ["Experiments", "Trials", "Runs", "Waiting", "Failed trials"]
    assert titles[5] == "End of the logs of trial 3 (all: det t logs 3)"
    for words in ("agent a1 lost for 31 s", "0 of 2 are free", "[29] line 29"):
        assert words in result.stdout
    assert "[5] line 5\n" not in result.stdout


def test_of_many_trials_tables_show_the_newest(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("determined.cli.following.explanation.SHOWN", 2)
    service.experiments[1] = experiment()
    service.trials[1] = [
        trial(3, "ERROR", restarts=1, reason="process exited with code 3"),
        *(trial(number, "COMPLETED") for number in range(4, 9)),
    ]
    service.explanations[1] = {"legs": [], "waiting": [], "waitingTotal": 7}
    result = det("e", "describe", 1)
    assert result.exit_code == 0, result.stderr
    blocks = result.stdout.split("\n\n")
    shown = [line.split()[0] for line in blocks[1].splitlines()]
    assert "7" in shown
    assert "8" in shown
    assert not {"3", "4", "5", "6"} & set(shown)
    assert "the newest 2 of 6 trials" in result.stderr
    assert "0 of 7 requests that wait" in result.stderr
    assert "process exited with code 3" in result.stdout
    assert service.explained_with == [{"limit": "2"}]
    (document,) = json.loads(det("e", "describe", 1, "--json").stdout)
    assert [one["id"] for one in document["trials"]] == [3, 4, 5, 6, 7, 8]


def test_json_has_it_all(det: Det, troubled: FakeService) -> None:
    (document,) = json.loads(det("e", "describe", 1, "--json").stdout)
    assert document["id"] == 1
    assert [leg["runId"] for leg in document["trials"][0]["legs"]] == [1, 2]
    assert document["trials"][1]["legs"] == []
    assert document["waiting"][0]["reason"] == "0 of 2 are free"
    (failure,) = document["failures"]
    assert (failure["trialId"], failure["restarts"]) == (3, 1)
    assert failure["lastLogs"][-1] == "[29] line 29"


def test_csv_does_not_change(det: Det, troubled: FakeService) -> None:
    plain = det("e", "describe", 1, "--csv").stdout
    assert "0 of 2 are free" not in plain
    assert len(plain.split("\n\n")) == 2


def test_few_logs_of_many_failures(det: Det, troubled: FakeService) -> None:
    troubled.trials[1] = [trial(n, "ERROR", reason="same") for n in range(1, 9)]
    (document,) = json.loads(det("e", "describe", 1, "--json").stdout)
    assert len(document["failures"]) == 8
    assert [bool(f["lastLogs"]) for f in document["failures"]] == [False, False, True, *[False] * 5]
    assert document["failures"][7]["lastLogs"] is None
    asked = [path for _, path in troubled.calls if path.endswith("/logs")]
    assert len(asked) == 3


def test_ignored_fields_are_listed_after_the_tables(det: Det, service: FakeService) -> None:
    service.experiments[1] = experiment()
    service.remarks = ["bind_mounts is stored but ignored: x"]
    result = det("e", "describe", 1)
    assert result.exit_code == 0, result.stderr
    assert "experiment 1: bind_mounts is stored but ignored: x" in result.stderr
    assert json.loads(det("e", "describe", 1, "--json").stdout)[0]["remarks"] == service.remarks
