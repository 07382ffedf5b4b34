"""Tasks through the SDK."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from determined.common.api import errors
from determined.experimental import Determined
from determined.experimental.client import Task, TaskKind
from tests.unit.sdk.fake_service import FakeService, command, log_line

COMMAND = command()["id"]


def test_a_command_is_launched_read_and_ended(client: Determined, service: FakeService) -> None:
    service.commands = [command(state="STATE_QUEUED")]
    task = client.launch_task(TaskKind.COMMAND, {"entrypoint": ["true"]})
    assert service.bodies[-1]["config"] == {"entrypoint": ["true"]}
    assert (task.id, task.kind, task.state, task.has_ended) == (
        COMMAND,
        TaskKind.COMMAND,
        "QUEUED",
        False,
    )
    service.commands = [command(exitCode=None, exitSignal=9)]
    task.reload()
    assert (task.state, task.has_ended, task.exit_code) == ("TERMINATED", True, 137)
    task.kill()
    assert service.calls[-1] == ("POST", f"/api/v1/commands/{COMMAND}/kill")


def test_the_files_of_a_directory_are_sent_with_it(
    client: Determined, service: FakeService, tmp_path: Path
) -> None:
    service.commands = [command()]
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent/a.txt").write_text("hello")
    client.launch_task(TaskKind.COMMAND, {}, tmp_path / "sent")
    assert [file["path"] for file in service.bodies[-1]["files"]] == ["a.txt"]


def test_tasks_of_a_kind_are_listed_of_all_or_of_some_users(
    client: Determined, service: FakeService
) -> None:
    service.commands = [command()]
    assert [task.id for task in client.list_tasks(TaskKind.COMMAND)] == [COMMAND]
    assert "users" not in service.params[-1]
    client.list_tasks(TaskKind.COMMAND, ["ann"])
    assert service.params[-1].get_list("users") == ["ann"]


def test_a_task_of_any_kind_has_logs_and_a_configuration(
    client: Determined, service: FakeService
) -> None:
    service.commands = [command()]
    service.logs[0] = [log_line(1, "one"), log_line(2, "two")]
    task = client.get_task(COMMAND)
    assert list(task.iter_logs()) == ["[1] one\n", "[2] two\n"]
    list(task.iter_logs(rank_ids=[3]))
    assert service.params[-1].get_list("rankIds") == ["3"]
    with pytest.raises(ValueError, match="head or tail"):
        list(task.iter_logs(head=1, tail=1))
    service.routes.insert(
        0, ("GET", r"/api/v1/tasks/[^/]+/config", lambda r: {"config": json.dumps({"a": 1})})
    )
    assert task.get_config() == {"a": 1}


def test_the_reason_for_which_a_task_waits(client: Determined, service: FakeService) -> None:
    service.commands, service.jobs = [command()], [{}]
    task = client.get_task(COMMAND, TaskKind.COMMAND)
    assert task.waits_because() is None
    service.waiting = [{"reason": "no slot is free"}]
    assert task.waits_because() == "no slot is free"


def test_a_generic_task_is_created_once(client: Determined, service: FakeService) -> None:
    service.commands = [command()]
    service.warnings = ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"]
    task = client.create_generic_task("entrypoint: [x]", parent_id="p", no_pause=True)
    assert (task.id, task.kind) == (COMMAND, None)
    sent = service.bodies[-1]
    assert (sent["parentId"], sent["noPause"], "forkedFrom" in sent) == ("p", True, False)
    service.away = True
    calls = len(service.calls)
    with pytest.raises(errors.MasterNotFoundException):
        client.create_generic_task("")
    assert len(service.calls) <= calls + 1


def test_a_task_that_is_named_is_not_asked_for(client: Determined, service: FakeService) -> None:
    task = Task(client._session, "a/b")
    before = len(service.calls)
    assert (task.state, task.document, task.has_ended) == (None, {}, False)
    assert len(service.calls) == before
    task.pause()
    assert service.calls[-1][1] in ("/api/v1/tasks/a%2Fb/pause", "/api/v1/tasks/a/b/pause")
