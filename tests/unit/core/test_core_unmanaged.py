"""A script outside of the cluster: signs of life, output, the end."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import httpx
import pytest
from core_service import FakeService, make_info, refusal

import determined as det
from determined.core import _log_shipper, _unmanaged
from determined.core._connection import Connection
from determined.core._log_shipper import LogShipper
from determined.core._unmanaged import UnmanagedScript
from tests.waiting import until

TRIAL = "/api/v1/trials/7"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_log_shipper, "INTERVAL", 0.01)
    monkeypatch.setattr(_unmanaged, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(_unmanaged, "RETRY_S", 0.01)


def bodies(service: FakeService, path: str) -> list[Any]:
    with service.lock:
        return [body for _, called, body in service.calls if called == path]


def lines(service: FakeService) -> list[dict[str, Any]]:
    return [line for body in bodies(service, "/api/v1/task/logs") for line in body["logs"]]


def test_output_is_shipped(
    service: FakeService, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = sys.stdout, sys.stderr
    shipper = LogShipper(connection, "3.r", 1)
    shipper.start()
    print("one")
    print("tw", end="")
    until("the lines", lambda: lines(service))
    print("o")
    print(det.LOG_FORMAT % {
        "levelname": "WARNING", "process": 7, "name": "n", "message": "careful"
    }, file=sys.stderr)  # fmt: skip
    sys.stdout.writelines(["three\n", "unfinished"])
    assert sys.stdout.encoding and not sys.stdout.isatty()
    shipper.close()
    shipper.close()
    assert (sys.stdout, sys.stderr) == streams
    sent = lines(service)
    by_stream = {
        name: [line["log"] for line in sent if line["stdtype"] == name]
        for name in ("stdout", "stderr")
    }
    assert by_stream["stdout"] == ["one\n", "two\n", "three\n", "unfinished"]
    assert by_stream["stderr"] == ["WARNING: [7] n: careful\n"]
    assert {line["level"] for line in sent} == {"LOG_LEVEL_INFO", "LOG_LEVEL_WARNING"}
    assert {(line["taskId"], line["rankId"]) for line in sent} == {("3.r", 1)}
    # The script's streams still get the output.
    assert capsys.readouterr().out == "one\ntwo\nthree\nunfinished"


def test_lines_are_sent_again_under_the_same_number(
    service: FakeService, connection: Connection
) -> None:
    failures = iter(range(3))

    def away(method: str, path: str, body: Any) -> httpx.Response | None:
        return refusal(503, "starting") if next(failures, None) is not None else None

    service.before = away
    shipper = LogShipper(connection, "3.r", 0)
    shipper.start()
    print("one")
    until("four attempts", lambda: len(bodies(service, "/api/v1/task/logs")) > 3)
    print("two")
    shipper.close()
    sent = bodies(service, "/api/v1/task/logs")
    assert [body["seq"] for body in sent] == [0, 0, 0, 0, 1]
    assert [line["log"] for line in sent[-1]["logs"]] == ["two\n"]


def test_a_forked_child_keeps_nothing(service: FakeService, connection: Connection) -> None:
    shipper = LogShipper(connection, "3.r", 0)
    shipper.start()
    child = os.fork()
    if child == 0:
        print("the child's")
        os._exit(0 if not shipper._lines else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    shipper.close()
    assert lines(service) == []


@pytest.mark.parametrize("failed", [True, False])
def test_signs_of_life_and_the_end(
    service: FakeService, connection: Connection, failed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failures = iter(range(2))

    def away(method: str, path: str, body: Any) -> httpx.Response | None:
        if path == TRIAL and next(failures, None) is not None:
            return refusal(503, "starting")
        return None

    service.before = away
    script = UnmanagedScript(connection, make_info(), 0)
    script.start()
    until("four attempts", lambda: len(bodies(service, TRIAL)) > 3)
    script.close(failed)
    said = [record.message for record in caplog.records if "of life" in record.message]
    # Once for the outage, not at each try.
    assert said == [
        "the service does not receive signs of life; sending goes on: starting",
        "the service receives signs of life again",
    ]
    script.close(not failed)
    sent = bodies(service, TRIAL)
    assert sent[-1] == {"state": "STATE_ERROR" if failed else "STATE_COMPLETED"}
    assert all(body == {} for body in sent[:-1])


def test_the_other_ranks_only_print(service: FakeService, connection: Connection) -> None:
    script = UnmanagedScript(connection, make_info(), 1)
    script.start()
    print("from rank 1")
    script.close(failed=False)
    assert bodies(service, TRIAL) == []
    assert [line["rankId"] for line in lines(service)] == [1]


def test_another_rank_says_that_it_failed(service: FakeService, connection: Connection) -> None:
    script = UnmanagedScript(connection, make_info(), 1)
    script.start()
    script.close(failed=True)
    assert bodies(service, TRIAL) == [{"state": "STATE_ERROR"}]


def test_a_trial_that_a_user_has_ended(
    service: FakeService, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    def over(method: str, path: str, body: Any) -> httpx.Response | None:
        return refusal(409, "trial 7 has ended: killed by the user") if path == TRIAL else None

    service.before = over
    caplog.set_level(logging.ERROR)
    script = UnmanagedScript(connection, make_info(), 0)
    script.start()
    until("the message", lambda: "killed by the user" in caplog.text)
    with pytest.raises(det.errors.AllocationEnded, match="trial 7 has ended"):
        connection.check()
    script.close(failed=True)


def superseded(method: str, path: str, body: Any) -> httpx.Response:
    return refusal(409, "run 2 of trial 7 has ended: its script has started again, as run 3")


def test_every_request_says_its_run() -> None:
    cookies = []

    def note(request: httpx.Request) -> httpx.Response:
        cookies.append(request.headers.get("Cookie"))
        return httpx.Response(200, json={})

    for unmanaged in (True, False):
        connection = Connection(make_info(), httpx.MockTransport(note), unmanaged=unmanaged)
        connection.get("/api/v1/master")
        connection.post(f"{TRIAL}/progress", json={"progress": 1})
    assert cookies == ["determined-run=7.2"] * 2 + [None] * 2


def test_a_script_that_started_again_elsewhere_ends_in_an_error(
    service: FakeService, connection: Connection
) -> None:
    """Also one that has nothing more to report; and it does not wait for its output to be taken."""
    script = UnmanagedScript(connection, make_info(), 1)
    script.start()
    service.before = superseded
    print("one")
    until("the lines", lambda: lines(service))
    print("two")
    script.close(failed=False)
    assert [line["log"] for line in lines(service)] == ["one\n"]

    script = UnmanagedScript(connection, make_info(), 0)
    script.start()
    with pytest.raises(det.errors.AllocationEnded, match="as run 3"):
        script.close(failed=False)
    assert not isinstance(sys.stdout, _log_shipper._Tee)


def test_the_reason_of_a_scripts_end_is_in_its_log(
    service: FakeService, connection: Connection
) -> None:
    script = UnmanagedScript(connection, make_info(), 0)
    script.start()
    for error in (ValueError("no such data"), SystemExit("gave up"), SystemExit(3), SystemExit()):
        script.note(error)
    script.close(failed=True)
    said = [line["log"] for line in lines(service)]
    assert said == ["ValueError: no such data\n", "gave up\n"]
