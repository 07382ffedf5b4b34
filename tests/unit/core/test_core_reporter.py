"""Reports arrive once, in order, and refusals are raised."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from core_service import FakeService, ended, refusal

from determined import errors
from determined.common import unsent
from determined.common.api.errors import MasterNotFoundException
from determined.core._connection import Connection
from determined.core._reporter import Reporter
from tests.waiting import TIMEOUT_S, until
from tests.work import work_of


def test_reports_arrive_in_order_with_their_fields(
    service: FakeService, reporter: Reporter
) -> None:
    for step in range(50):
        reporter.report(
            "training", step, {"loss": step / 2}, [{"loss": 1.0}] if step == 0 else None
        )
    reporter.report("mine", 3, {"x": float("nan")})
    reporter.flush()
    assert [r["steps_completed"] for r in service.reports] == [*range(50), 3]
    first, last = service.reports[0], service.reports[-1]
    assert first["batch_metrics"] == [{"loss": 1.0}]
    assert "batch_metrics" not in service.reports[1]
    assert (last["group"], last["metrics"]) == ("mine", {"x": "NaN"})
    assert last["end_time"].endswith("+00:00")
    assert service.body("/metrics/batch")["run_id"] == 2


def test_nothing_is_sent_and_no_thread_runs_before_the_first_report(
    service: FakeService, reporter: Reporter
) -> None:
    reporter.flush()
    reporter.close()
    assert service.calls == []
    assert "determined-reports" not in [thread.name for thread in threading.enumerate()]


def test_later_mutation_does_not_change_a_report(service: FakeService, reporter: Reporter) -> None:
    metrics: dict[str, Any] = {"loss": 1.0, "history": [1]}
    reporter.report("training", 1, metrics)
    metrics["loss"] = 2.0
    metrics["history"].append(2)
    reporter.flush()
    assert service.reports[0]["metrics"] == {"loss": 1.0, "history": [1]}


def test_batches_are_limited_by_number_and_size(
    service: FakeService, connection: Connection
) -> None:
    reporter = Reporter(connection, 7, 2, interval=60, max_reports=10, max_bytes=2000)
    for step in range(25):
        reporter.report("training", step, {"x": 1.0})
    reporter.report("training", 25, {"text": "y" * 5000})
    reporter.close()
    assert len(service.reports) == 26
    assert max(service.batches) <= 10
    assert service.batches[-1] == 1


def test_an_idle_half_batch_goes_out_by_itself(service: FakeService, reporter: Reporter) -> None:
    reporter.report("training", 1, {"x": 1.0})
    until("the report", lambda: service.reports)


def test_a_validation_does_not_wait_for_the_batch(
    service: FakeService, connection: Connection
) -> None:
    reporter = Reporter(connection, 7, 2, interval=60)
    reporter.report("training", 1, {"x": 1.0})
    reporter.report("validation", 1, {"x": 1.0})
    until("both reports", lambda: len(service.reports), equals=2)
    reporter.close()


def test_a_note_exists_while_reports_are_unsent(
    service: FakeService, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path))
    reporter = Reporter(connection, 7, 2, interval=60)
    for _ in range(2):
        reporter.post_latest("/status", {"state": "training"})
        assert unsent.found(tmp_path) == []
        reporter.report("training", 1, {"x": 1.0})
        assert unsent.found(tmp_path) == [os.getpid()]
        reporter.flush()
        assert unsent.found(tmp_path) == []
    reporter.report("training", 2, {"x": 1.0})
    reporter.close()
    assert unsent.found(tmp_path) == []


def test_a_lost_answer_does_not_make_duplicates(service: FakeService, reporter: Reporter) -> None:
    lost = iter([True, True, False])

    def lose(_: str, path: str, __: Any) -> httpx.Response | None:
        if path.endswith("/batch") and next(lost, False):
            raise httpx.ReadTimeout("lost")
        return None

    service.after = lose
    reporter.report("training", 1, {"x": 1.0})
    reporter.report("training", 2, {"x": 1.0})
    reporter.flush()
    assert [r["steps_completed"] for r in service.reports] == [1, 2]
    assert len(service.paths("POST")) > 2


def test_reports_wait_for_a_service_that_is_away(service: FakeService, reporter: Reporter) -> None:
    away = threading.Event()
    away.set()
    service.before = lambda *_: refusal(503, "starting") if away.is_set() else None
    reporter.report("training", 1, {"x": 1.0})
    with pytest.raises(MasterNotFoundException, match="1 wait"):
        reporter.flush()
    reporter.report("training", 2, {"x": 1.0})
    away.clear()
    until("both reports", lambda: [r["steps_completed"] for r in service.reports], equals=[1, 2])


def test_reports_lost_at_the_end_are_an_error(service: FakeService, reporter: Reporter) -> None:
    def down(*_: Any) -> httpx.Response:
        raise httpx.ConnectError("refused")

    service.before = down
    reporter.report("training", 8, {"x": 1.0})
    with pytest.raises(errors.ReportsLost, match="steps_completed=8"):
        reporter.close()


def test_a_latest_value_that_is_lost_at_the_end_is_an_error(
    service: FakeService, reporter: Reporter
) -> None:
    service.before = lambda *_: refusal(503, "starting")
    reporter.post_latest("/api/v1/trials/7/progress", {"progress": 0.5})
    with pytest.raises(errors.ReportsLost, match="progress could not be stored: no answer for"):
        reporter.close()


def test_full_memory_blocks_the_loop_instead_of_dropping(
    service: FakeService, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    away = threading.Event()
    away.set()
    service.before = lambda *_: refusal(503, "starting") if away.is_set() else None
    reporter = Reporter(connection, 7, 2, interval=0.01, capacity=10, spool_bytes=1000)
    loop = threading.Thread(
        target=lambda: [reporter.report("training", i, {"a": 1.0, "b": 2.0}) for i in range(20)]
    )
    loop.start()
    until("the warning", lambda: "training waits" in caplog.text)
    assert loop.is_alive()
    away.clear()
    loop.join(TIMEOUT_S)
    reporter.close()
    assert [r["steps_completed"] for r in service.reports] == list(range(20))


def test_beyond_memory_reports_wait_in_a_file(
    service: FakeService, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    away = threading.Event()
    away.set()
    service.before = lambda *_: refusal(503, "starting") if away.is_set() else None
    reporter = Reporter(connection, 7, 2, interval=0.01, capacity=10, max_reports=7)
    for step in range(500):
        reporter.report("training", step, {"a": 1.0, "b": float("nan")})
    assert len(reporter._outgoing) + len(reporter._pending) <= 10
    assert len(reporter._spool) > 400
    # The service comes back, and goes away again after half of the reports.
    away.clear()
    until("a hundred reports", lambda: len(service.reports) > 100)
    away.set()
    for step in range(500, 600):
        reporter.report("training", step, {"a": 1.0})
    away.clear()
    reporter.close()
    assert [r["steps_completed"] for r in service.reports] == list(range(600))
    assert service.reports[3]["metrics"] == {"a": 1.0, "b": "NaN"}
    assert len(reporter._spool) == 0
    assert "training waits" not in caplog.text


def test_a_refused_report_is_named_also_when_it_waited_in_a_file(
    service: FakeService, connection: Connection
) -> None:
    away = threading.Event()
    away.set()

    def before(method: str, path: str, body: Any) -> httpx.Response | None:
        if away.is_set():
            return refusal(503, "starting")
        steps = [report["steps_completed"] for report in (body or {}).get("reports", [])]
        return refusal(400, "no") if 33 in steps else None

    service.before = before
    reporter = Reporter(connection, 7, 2, interval=0.01, capacity=5)
    for step in range(50):
        reporter.report("mine", step, {"a": 1.0})
    away.clear()
    with pytest.raises(errors.ReportRefused, match=r"\(mine, steps_completed=33\)"):
        reporter.close()
    assert [r["steps_completed"] for r in service.reports] == [i for i in range(50) if i != 33]


def test_a_refused_report_raises_at_the_next_one_and_the_others_are_stored(
    service: FakeService, reporter: Reporter
) -> None:
    def refuse(_: str, __: str, body: Any) -> httpx.Response | None:
        bad = any(r["steps_completed"] == 4 for r in body["reports"])
        return refusal(400, "metric x is too strange") if bad else None

    service.before = refuse
    for step in range(8):
        reporter._accept("training", step, {"x": 1.0})  # as if all came before the first answer
    until("seven reports", lambda: len(service.reports), equals=7)
    with pytest.raises(errors.ReportRefused, match=r"steps_completed=4.*too strange"):
        until("the refusal", lambda: not reporter.report("training", 9, {"x": 1.0}))
    reporter.flush()
    steps = [r["steps_completed"] for r in service.reports]
    assert [step for step in steps if step < 8] == [0, 1, 2, 3, 5, 6, 7]


def test_a_refused_report_raises_at_close(service: FakeService, reporter: Reporter) -> None:
    service.before = lambda *_: refusal(403, "not yours")
    reporter.report("training", 1, {"x": 1.0})
    with pytest.raises(errors.ReportRefused, match="not yours"):
        reporter.close()


def test_a_lasting_fault_of_the_service_is_not_retried_for_ever(
    service: FakeService, reporter: Reporter
) -> None:
    service.before = lambda *_: refusal(500, "broken")
    reporter.report("training", 1, {"x": 1.0})
    with pytest.raises(errors.ReportRefused, match="broken"):
        reporter.flush()


def test_an_ended_allocation_stops_the_process(service: FakeService, reporter: Reporter) -> None:
    service.before = ended
    reporter.report("training", 1, {"x": 1.0})
    with pytest.raises(SystemExit, match="has ended") as caught:
        until("the end of the process", lambda: not reporter.report("training", 2, {"x": 1.0}))
    assert isinstance(caught.value, errors.AllocationEnded)


def test_only_the_latest_progress_is_sent(service: FakeService, connection: Connection) -> None:
    reporter = Reporter(connection, 7, 2, interval=60)
    for step in range(100):
        reporter.post_latest("/api/v1/trials/7/progress", {"progress": step / 100, "is_raw": True})
    reporter.flush()
    assert service.paths() == ["/api/v1/trials/7/progress"]
    assert service.body("/progress") == {"progress": 0.99, "is_raw": True}
    reporter.close()


def test_dropped_progress_is_not_sent_and_the_rest_still_is(
    service: FakeService, connection: Connection
) -> None:
    reporter = Reporter(connection, 7, 2, interval=0.2)
    path = "/api/v1/trials/7/progress"
    reporter.post_latest(path, {"progress": 0.5, "is_raw": True})
    reporter.drop_latest(path)
    reporter.flush()
    time.sleep(0.3)  # the thread looks, and finds nothing
    reporter.report("training", 1, {"x": 1.0})
    reporter.close()
    assert service.paths() == ["/api/v1/trials/7/metrics/batch"]


def test_a_closed_reporter_takes_nothing(reporter: Reporter) -> None:
    reporter.report("training", 1, {"x": 1.0})
    reporter.close()
    reporter.close()
    with pytest.raises(RuntimeError, match="closed"):
        reporter.report("training", 2, {"x": 1.0})


def test_many_threads_lose_nothing(service: FakeService, reporter: Reporter) -> None:
    def work(group: str) -> None:
        for step in range(200):
            reporter.report(group, step, {"x": 1.0})

    threads = [threading.Thread(target=work, args=(f"g{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reporter.flush()
    for i in range(4):
        own = [r["steps_completed"] for r in service.reports if r["group"] == f"g{i}"]
        assert own == list(range(200))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_send_its_parents_reports(
    service: FakeService, connection: Connection
) -> None:
    reporter = Reporter(connection, 7, 2, interval=60)
    reporter.report("training", 1, {"x": 1.0})
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        reporter.report("training", 2, {"x": 1.0})
        reporter.flush()
        os.write(write, orjson.dumps([r["steps_completed"] for r in service.reports]))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert orjson.loads(os.read(read, 1000)) == [2]
    reporter.close()
    assert [r["steps_completed"] for r in service.reports] == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_childs_reports_are_stored_before_it_goes_on(
    service: FakeService, connection: Connection
) -> None:
    """It may end without a last word: a data loader's worker, a process of a pool."""
    reporter = Reporter(connection, 7, 2, interval=60)
    reporter.report("training", 1, {"x": 1.0})
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        for step in (2, 3):
            reporter.report("training", step, {"x": 1.0})
        os.write(write, orjson.dumps([r["steps_completed"] for r in service.reports]))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert orjson.loads(os.read(read, 1000)) == [2, 3]
    assert service.reports == []
    reporter.close()


def test_a_report_costs_the_loop_little(service: FakeService, connection: Connection) -> None:
    """It sends nothing itself, and it does no more when many others wait to be sent."""
    senders: set[int] = set()
    service.before = lambda *_: senders.add(threading.get_ident())
    reporter = Reporter(connection, 7, 2, interval=60, max_reports=10_000)
    metrics = {f"metric_{i}": i + 0.5 for i in range(10)}

    def report_100() -> None:
        for step in range(100):
            reporter.report("training", step, metrics)

    report_100()
    first, *_, last = [work_of(report_100) for _ in range(20)]
    assert last < 1.1 * first
    reporter.close()
    assert len(service.reports) == 2100
    assert senders
    assert threading.get_ident() not in senders


AT_EXIT = """
import sys, httpx
sys.path.insert(0, {folder!r})
from core_service import FakeService, make_info, refusal
from determined.core._connection import Connection
from determined.core._reporter import Reporter
service = FakeService()
if {refuse}:
    service.before = lambda *_: refusal(400, "no such trial")
import atexit
atexit.register(lambda: print("stored", len(service.reports)))
reporter = Reporter(Connection(make_info(), httpx.MockTransport(service.handle)), 7, 2, interval=60)
for step in range(3):
    reporter.report("training", step, {{"x": 1.0}})
"""


@pytest.mark.parametrize("refuse", [False, True])
def test_a_script_that_never_closes_its_context(refuse: bool) -> None:
    script = AT_EXIT.format(folder=str(Path(__file__).parent), refuse=refuse)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if refuse:
        assert done.returncode == 1
        assert "no such trial" in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "stored 3\n", "")
