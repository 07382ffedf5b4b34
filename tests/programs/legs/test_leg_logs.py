"""Task logs: everything, in order, once, for any bytes."""

from __future__ import annotations

import signal

import pytest

from determined.common.api import Session
from determined_tasks import log_shipping
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService
from tests.waiting import TIMEOUT_S


def test_odd_bytes(legs: LegRunner, service: FakeService, fork: bool) -> None:
    script = r"""
import sys
out = sys.stdout.buffer
out.write(b"a\0b\n")
out.write(b"x" * 1_000_000 + b"\n")
out.write(b"caf\xe9 caf\xc3\xa9\n")
out.write(b"windows\r\n")
out.write(b"\n")
out.write(b"no end")
"""
    legs.run({"train.py": script}, fork=fork)
    assert [line["log"] for line in service.logs] == [
        "a\0b\n",
        "x" * 1_000_000 + "\n",
        "caf\\xe9 café\n",
        "windows\r\n",
        "\n",
        "no end",
    ]


def test_partial_last_line_of_a_crash_is_kept(
    legs: LegRunner, service: FakeService, fork: bool
) -> None:
    script = "import os\nprint('step 1')\nprint('step 2 …', end='')\nos.kill(os.getpid(), 9)"
    legs.run({"train.py": script}, fork=fork)
    assert service.text("stdout") == "step 1\nstep 2 …"


def test_many_lines_stay_in_order_and_streams_apart(
    legs: LegRunner, service: FakeService, fork: bool
) -> None:
    script = """
import sys
for i in range(20000):
    print("out", i)
    if i % 10 == 0:
        print("err", i, file=sys.stderr)
"""
    legs.run({"train.py": script}, fork=fork)
    assert service.text("stdout") == "".join(f"out {i}\n" for i in range(20000))
    assert service.text("stderr") == "".join(f"err {i}\n" for i in range(0, 20000, 10))


def test_order_between_streams(legs: LegRunner, service: FakeService, fork: bool) -> None:
    script = """
import sys, time
for i in range(10):
    print(i, file=sys.stderr if i % 2 else sys.stdout)
    time.sleep(0.02)
"""
    legs.run({"train.py": script}, fork=fork)
    assert [int(line["log"]) for line in service.logs] == list(range(10))
    times = [line["t"] for line in service.logs]
    assert times == sorted(times)


def test_level_and_rank_are_read_from_the_line(legs: LegRunner, service: FakeService) -> None:
    script = """
import logging, determined
logging.basicConfig(format=determined.LOG_FORMAT, level=logging.DEBUG)
logging.getLogger("a.b").warning("careful")
logging.getLogger("a.b").debug("detail")
print("[rank=3] INFO: [77] root: hello")
print("plain INFO: text")
"""
    legs.run({"train.py": script})
    found = {
        line["log"].split(": ")[-1]: (line["level"], line["rank"], line["stdtype"])
        for line in service.logs
    }
    assert found == {
        "careful\n": ("WARNING", None, "stderr"),
        "detail\n": ("DEBUG", None, "stderr"),
        "hello\n": ("INFO", 3, "stdout"),
        "text\n": (None, None, "stdout"),
    }
    assert "INFO: [77] root: hello\n" in service.text("stdout")


def test_lines_arrive_while_the_process_runs(legs: LegRunner, service: FakeService) -> None:
    script = """
import time
print("begin", flush=True)
print("50%", end="\\r")
time.sleep(600)
"""
    supervisor = legs.start({"train.py": script})
    service.wait(lambda: "50%" in service.text("stdout"))
    assert service.text("stdout") == "begin\n50%\r"
    supervisor.send_signal(signal.SIGTERM)
    supervisor.wait(TIMEOUT_S)


def test_outage_of_the_service_loses_and_repeats_nothing(
    legs: LegRunner, service: FakeService
) -> None:
    """Refused for a while, then an answer lost after the batch was stored."""
    outcomes = [503, 503, 502, "lost", 200, 503]

    def logs(body: object) -> tuple[int, object]:
        outcome = outcomes.pop(0) if outcomes else 200
        if outcome == "lost":
            del service.answers["logs"]
            service._post("/internal/v1/logs", body)
            service.answers["logs"] = logs
            return 503, {}
        return (200, None) if outcome == 200 else (int(outcome), {})

    service.answers["logs"] = logs
    script = "import time\nfor i in range(30):\n    print(i)\n    time.sleep(0.03)"
    legs.run({"train.py": script})
    assert service.text("stdout") == "".join(f"{i}\n" for i in range(30))
    assert not outcomes


def test_exit_is_reported_when_the_service_is_back(legs: LegRunner, service: FakeService) -> None:
    refused = [503, 503, 503]
    service.answers["exit"] = lambda body: (refused.pop(), {}) if refused else (200, None)
    assert legs.run({"train.py": "exit(3)"})["exit_code"] == 3


def test_a_batch_the_service_refuses_does_not_block_the_rest(
    legs: LegRunner, service: FakeService
) -> None:
    def logs(body: dict[str, list[dict[str, str]]]) -> tuple[int, object]:
        return (400, {}) if "bad" in body["lines"][0]["log"] else (200, None)

    service.answers["logs"] = logs  # type: ignore[assignment]
    script = "import time\nprint('bad')\ntime.sleep(0.6)\nprint('good')"
    legs.run({"train.py": script})
    assert service.text("stdout") == "good\n"


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shipping, "MEMORY_BYTES", 2000)
    monkeypatch.setattr(log_shipping, "BATCH_BYTES", 500)


def test_lines_beyond_memory_wait_in_a_file(tmp_path, small_memory: None) -> None:  # type: ignore[no-untyped-def]
    queue = log_shipping._Queue(tmp_path / "spool")
    lines = [b"line %d" % i for i in range(2000)]
    taken: list[bytes] = []
    for i, line in enumerate(lines):
        queue.put(line)
        if i % 100 == 99:
            taken += queue.take(300)
    assert queue.bytes < 2100
    assert (tmp_path / "spool").stat().st_size > 5000
    while len(queue):
        taken += queue.take(300)
    assert taken == lines
    queue.close()
    assert not (tmp_path / "spool").exists()


def test_full_disk_asks_the_process_to_wait(tmp_path, small_memory: None) -> None:  # type: ignore[no-untyped-def]
    queue = log_shipping._Queue(tmp_path / "missing" / "spool")
    lines = [b"line %d" % i for i in range(600)]
    for line in lines:
        queue.put(line)
    assert queue.is_full
    taken: list[bytes] = []
    while len(queue):
        taken += queue.take(500)
    assert taken == lines
    assert not queue.is_full


def test_batches_are_cut_by_time_and_size(tmp_path, service: FakeService) -> None:  # type: ignore[no-untyped-def]
    import threading

    with Session(service.url, "token") as link:
        shipper = log_shipping.LegLogShipper(
            link, {"task_id": "t", "allocation_id": "a"}, tmp_path / "s"
        )
        thread = threading.Thread(target=shipper.run)
        thread.start()
        for i in range(50):
            shipper.put(f"{i}\n", time_s=1.0, stdtype="stdout")
        service.wait(lambda: service.logs)
        assert len(service.seen) == 1
        shipper.finish()
        thread.join(TIMEOUT_S)
    assert [line["log"] for line in service.logs] == [f"{i}\n" for i in range(50)]
