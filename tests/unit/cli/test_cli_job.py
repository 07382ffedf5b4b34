"""`det job`, and the settings of an experiment that schedulers use."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService, experiment, job

QUEUE = "/api/v1/job-queues"


def test_list(det: Det, service: FakeService) -> None:
    service.jobs = [job(1, "SCHEDULED", allocatedSlots=4), job(2), job(3, "SCHEDULED_BACKFILLED")]
    rows = list(csv.DictReader(io.StringIO(det("job", "list", "--csv").stdout)))
    shown = [
        (row["#"], row["Job Name"], row["Slots (acquired/needed)"], row["State"]) for row in rows
    ]
    assert shown == [
        ("", "digits (1)", "4/4", "SCHEDULED"),
        ("2", "digits (2)", "0/4", "QUEUED"),
        ("", "digits (3)", "0/4", "SCHEDULED_BACKFILLED"),
    ]
    assert {(row["Resource Pool"], row["Priority"], row["Weight"]) for row in rows} == {
        ("default", "42", "1")
    }
    assert "higher priority" not in det("job", "list").stderr
    service.jobs[0]["higherPriorityFirst"] = True
    said = "on Kubernetes a higher priority is more important: resource pool default"
    assert said in det("job", "list").stderr
    whole = {"jobs": service.jobs}
    assert json.loads(det("j", "ls", "--json").stdout) == whole
    assert yaml.safe_load(det("job", "ls", "--yaml").stdout) == whole
    det("job", "list", "-p", "gpu", "--reverse", "--pages", "1", "--limit", 2)
    asked = service.params[-1]
    assert (asked["resourcePool"], asked["orderBy"], asked["limit"]) == (
        "gpu",
        "ORDER_BY_DESC",
        "2",
    )
    assert det("job", "list", "--yaml", "--csv").exit_code == 2


@pytest.mark.parametrize(
    ("args", "change", "said"),
    [
        (["-p", "3"], {"priority": 3}, "priority set to 3"),
        (["--weight", "2.5"], {"weight": 2.5}, "weight set to 2.5"),
        (["--resource-pool", "gpu"], {"resourcePool": "gpu"}, "moved to resource pool gpu"),
        (["--ahead-of", "9"], {"aheadOf": "9"}, "moved ahead of job 9"),
        (["--behind-of", "9"], {"behindOf": "9"}, "moved behind job 9"),
    ],
)
def test_update(
    det: Det, service: FakeService, args: list[str], change: dict[str, Any], said: str
) -> None:
    service.remarks = ["not heeded"]
    done = det("j", "update", 7, *args)
    assert (done.exit_code, done.stderr) == (0, f"warning: not heeded\njob 7: {said}\n")
    assert (service.calls[-1], service.bodies[-1]) == (
        ("POST", QUEUE),
        {"updates": [{"jobId": "7", **change}]},
    )


@pytest.mark.parametrize(
    "args", [[], ["-p", 1, "-w", 1], ["-p", 0], ["-p", 100], ["-w", -1], ["-p", "high"]]
)
def test_an_update_changes_one_thing(det: Det, service: FakeService, args: list[Any]) -> None:
    assert det("job", "update", 7, *args).exit_code == 2
    assert service.called("POST", QUEUE) == 0


def test_update_batch(det: Det, service: FakeService) -> None:
    done = det("job", "update-batch", "7.priority=3", "8.resource_pool=gpu", "9.ahead-of=7")
    assert done.exit_code == 0, done.stderr
    assert service.bodies[-1]["updates"] == [
        {"jobId": "7", "priority": 3},
        {"jobId": "8", "resourcePool": "gpu"},
        {"jobId": "9", "aheadOf": "7"},
    ]
    for wrong in ("7", "7.priority", "7.priority=", "7.rank=3", ".priority=3", "7.priority=x"):
        refused = det("job", "update-batch", wrong)
        assert refused.exit_code == 2
        assert repr(wrong) in refused.stderr


def test_explain(det: Det, service: FakeService) -> None:
    service.jobs = [job(7)]
    forecast = "starts when trial 3 ends"
    service.waiting = [
        {"trialId": 4, "since": None, "slotsWanted": 4, "reason": "wants 4", "forecast": forecast}
    ]
    shown = det("job", "explain", 7)
    assert service.calls[-1] == ("GET", f"{QUEUE}/7/explanation")
    assert "wants 4" in shown.stdout
    assert forecast in shown.stdout
    assert json.loads(det("job", "explain", 7, "--json").stdout)["waiting"] == service.waiting
    service.waiting = []
    assert det("job", "explain", 7).stderr == "none of its trials waits for slots\n"


@pytest.mark.parametrize(
    ("args", "resources", "said"),
    [
        (["priority", 3], {"priority": 3}, "set priority of experiment 1 to 3"),
        (["weight", 2.5], {"weight": 2.5}, "set weight of experiment 1 to 2.5"),
        (["max-slots", 4], {"maxSlots": 4}, "set max_slots of experiment 1 to 4"),
        (["max-slots", "none"], {"maxSlots": None}, "set max_slots of experiment 1 to none"),
    ],
)
def test_settings(
    det: Det, service: FakeService, args: list[Any], resources: dict[str, Any], said: str
) -> None:
    service.experiments[1] = experiment()
    done = det("e", "set", args[0], 1, *args[1:])
    assert (done.exit_code, done.stderr) == (0, f"{said}\n")
    assert service.bodies[-1] == {"id": 1, "resources": resources}
    assert det("e", "set", "max-slots", 1, "few").exit_code == 2
