"""`det experiment delete`, `set gc-policy`, `det checkpoint delete` and `rm`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from determined.experimental import Checkpoint, Determined, Experiment, _deletion
from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import URL, FakeService, Refused, experiment

A = "11111111-2222-3333-4444-555555555555"
B = "21111111-2222-3333-4444-555555555555"


class Deleting:
    """A service that deletes: ``ends`` lists its successive answers to requests for the progress."""

    def __init__(self, service: FakeService) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.ends: list[Any] = []
        service.routes[:0] = [
            ("DELETE", r"/api/v1/experiments/(\d+)", self._delete_experiment),
            ("GET", r"/api/v1/experiments/(\d+)", self._read),
            ("PATCH", r"/api/v1/experiments/(\d+)", self._patch),
            ("GET", r"/experiments/(\d+)/preview_gc", self._preview),
            ("DELETE", r"/api/v1/checkpoints", self._delete),
            ("POST", r"/api/v1/checkpoints/rm", self._delete),
            ("GET", r"/api/v1/deletions/(\d+)", self._read),
        ]

    def _delete_experiment(self, request: httpx.Request, id: str) -> Any:
        self.asked.append(("delete", int(id)))
        if id == "2":
            raise Refused(409, "experiment 2 is ACTIVE")
        return {}

    def _read(self, request: httpx.Request, id: str) -> Any:
        answer = self.ends.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _patch(self, request: httpx.Request, id: str) -> Any:
        self.asked.append(("policy", json.loads(request.content)["checkpointStorage"]))
        return {"experiment": experiment(int(id))}

    def _preview(self, request: httpx.Request, id: str) -> Any:
        row = {"TrialID": 3, "StepsCompleted": 10, "State": "COMPLETED", "SearcherMetric": 0.5}
        return {"checkpoints": [{**row, "UUID": A, "Resources": {"weights": 10}}]}

    def _delete(self, request: httpx.Request) -> Any:
        body = json.loads(request.content)
        self.asked.append((request.method, body))
        return {"deletionId": None if body["checkpointUuids"] == [B] else 7}


@pytest.fixture
def deleting(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Deleting:
    monkeypatch.setattr(_deletion.time, "sleep", lambda seconds: None)
    return Deleting(service)


GONE = Refused(404, "experiment does not exist")


def state(name: str, **more: Any) -> dict[str, Any]:
    return {"experiment": experiment(state=name, **{"reason": None, **more})}


def test_experiments_are_asked_for_and_waited_for(det: Det, deleting: Deleting) -> None:
    failed = state("DELETE_FAILED", reason="cannot delete /data: Read-only file system")
    deleting.ends = [state("DELETING"), GONE, failed]
    result = det("e", "delete", 1, 2, 3, "--yes")
    assert [number for _, number in deleting.asked] == [1, 2, 3]
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "deleted experiment 1",
        "error: experiment 2 is ACTIVE",
        "error: experiment 3 could not be deleted: cannot delete /data: Read-only file system",
        "2 of 3 failed",
    ]


def test_nobody_to_ask(det: Det, deleting: Deleting) -> None:
    for command in (["e", "delete", "1"], ["c", "delete", A], ["c", "rm", A, "--glob", "*"]):
        result = det(*command)
        assert result.exit_code == 1
        assert "--yes" in result.stderr
    assert deleting.asked == []


def test_checkpoints(det: Det, deleting: Deleting) -> None:
    deleting.ends = [{"state": "STATE_REQUESTED"}, {"state": "STATE_DONE"}]
    result = det("c", "delete", f"{A},{B}", "-y")
    assert (result.exit_code, result.stderr) == (0, "deleted 2 checkpoints\n")
    assert deleting.asked == [("DELETE", {"checkpointUuids": [A, B]})]
    assert det("c", "delete", B, "-y").stderr == f"deleted checkpoint {B}\n"


def test_files_of_a_checkpoint(det: Det, deleting: Deleting) -> None:
    deleting.ends = [{"state": "STATE_FAILED", "reason": "cannot delete /data/x"}]
    result = det("c", "rm", A, "--glob", "*.pt", "--glob", "logs/**", "--yes")
    assert result.exit_code == 1
    assert "cannot delete /data/x" in result.stderr
    body = {"checkpointUuids": [A], "checkpointGlobs": ["*.pt", "logs/**"]}
    assert deleting.asked == [("POST", body)]


def test_without_files_a_checkpoint_is_refreshed(det: Det, deleting: Deleting) -> None:
    deleting.ends = [{"state": "STATE_DONE"}]
    result = det("c", "rm", A)  # nothing to confirm: nothing is deleted
    assert (result.exit_code, result.stderr) == (0, f"refreshed checkpoint {A}\n")
    assert deleting.asked == [("POST", {"checkpointUuids": [A], "checkpointGlobs": []})]


def test_a_policy(det: Det, deleting: Deleting) -> None:
    options = ["--save-experiment-best=1", "--save-trial-best=2", "--save-trial-latest=3"]
    asked = det("e", "set", "gc-policy", 5, *options)
    assert asked.exit_code == 1
    assert A in asked.stdout
    assert "would delete 1 checkpoint now" in asked.stderr
    assert deleting.asked == []
    done = det("e", "set", "gc-policy", 5, *options, "--yes")
    assert done.exit_code == 0
    policy = {"saveExperimentBest": 1, "saveTrialBest": 2, "saveTrialLatest": 3}
    assert deleting.asked == [("policy", policy)]
    assert det("e", "set", "gc-policy", 5, *options[:2]).exit_code == 2


def test_the_sdk(service: FakeService, deleting: Deleting) -> None:
    session = Determined(URL, "determined", "secret", transport=service.transport)._session
    assert Checkpoint(session, A).delete() == 7
    assert Checkpoint(session, B).delete() is None
    assert Checkpoint(session, A).remove_files(["*.pt"]) == 7
    Experiment(3, session).delete()
    assert deleting.asked[-1] == ("delete", 3)
