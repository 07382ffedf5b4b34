"""A machine that goes away: what a leg's supervisor tells the service, and how the leg ends."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from determined.common.wire import paths
from determined_tasks.supervision import KILL_SIGNAL
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService
from tests.waiting import TIMEOUT_S

ENOUGH = {"grace_seconds": 200.0}
SHORT = {"grace_seconds": 2.0}
# It ends once the service was told, as a process that sees the preemption signal.
HEEDS = (
    "import pathlib, time\nprint('here')\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.01)\n"
)
STAYS = "echo here; sleep 600"


def notices(service: FakeService) -> list[dict[str, Any]]:
    return [body for _, path, body in service.calls if path.endswith("/notice")]


def test_the_service_is_told_and_a_clean_end_is_told_as_it_is(
    legs: LegRunner, service: FakeService, tmp_path: Path
) -> None:
    script = HEEDS.format(str(tmp_path / "told"))
    process = legs.start({"train.py": script}, place=ENOUGH)
    service.wait(lambda: "here" in service.text("stdout"))
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    service.wait(lambda: notices(service))
    assert not service.exits
    (tmp_path / "told").touch()
    assert process.wait(TIMEOUT_S) == 0
    (notice,) = notices(service)
    assert notice["reason"] == "agent-1 was told to end within 200 s"
    # A part of the seconds is kept for the report of the end.
    assert 0 < notice["seconds"] <= 190
    ended = service.exits["7.abc.1"]
    assert (ended["exit_code"], ended["kind"]) == (0, "exited")
    assert notice["start_id"] == ended["start_id"] != ""
    assert "its machine is going away" in service.text("stderr", "agent")


def test_what_does_not_end_in_time_is_killed_and_told(
    legs: LegRunner, service: FakeService
) -> None:
    process = legs.start({}, entrypoint="trap '' TERM; " + STAYS, place=SHORT)
    service.wait(lambda: "here" in service.text("stdout"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    ended = service.exits["7.abc.1"]
    assert (ended["exit_code"], ended["kind"]) == (None, "infrastructure")
    # The service knows from the agent, perhaps, why the machine goes away.
    assert ended["leaving"] == "agent-1 was told to end within 2 s"
    assert ended["reason"] == "its process had not ended after 1 s and was killed"
    words = f"its machine is going away: {ended['leaving']}; {ended['reason']}"
    assert words in service.text("stderr", "agent")


def test_a_failure_after_the_notice_is_not_the_training_codes(
    legs: LegRunner, service: FakeService, tmp_path: Path
) -> None:
    script = HEEDS.format(str(tmp_path / "told")) + "raise SystemExit(3)"
    process = legs.start({"train.py": script}, place=ENOUGH)
    service.wait(lambda: "here" in service.text("stdout"))
    process.send_signal(signal.SIGTERM)
    service.wait(lambda: notices(service))
    (tmp_path / "told").touch()
    assert process.wait(TIMEOUT_S) == 0
    ended = service.exits["7.abc.1"]
    assert ended["kind"] == "infrastructure"
    assert ended["leaving"] == "agent-1 was told to end within 200 s"
    assert ended["reason"] == "process exited with code 3"


def test_a_service_that_is_away_is_told_when_it_is_back(
    legs: LegRunner, service: FakeService, tmp_path: Path
) -> None:
    tries: list[Any] = []

    def away_at_first(body: Any) -> tuple[int, Any]:
        tries.append(body)
        return (503, {"message": "away"}) if len(tries) < 3 else (200, None)

    service.answers["notice"] = away_at_first
    script = HEEDS.format(str(tmp_path / "told"))
    process = legs.start({"train.py": script}, place=ENOUGH)
    service.wait(lambda: "here" in service.text("stdout"))
    process.send_signal(signal.SIGTERM)
    service.wait(lambda: notices(service))
    (tmp_path / "told").touch()
    assert process.wait(TIMEOUT_S) == 0
    assert service.exits["7.abc.1"]["exit_code"] == 0


def test_a_service_that_stays_away_keeps_no_process_alive(
    legs: LegRunner, service: FakeService, tmp_path: Path
) -> None:
    service.answers["notice"] = lambda _: (503, {"message": "away"})
    process = legs.start({}, entrypoint=STAYS, place=SHORT)
    service.wait(lambda: "here" in service.text("stdout"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    assert "was killed" in service.exits["7.abc.1"]["reason"]


@pytest.mark.parametrize(
    ("kind", "entrypoint", "end"),
    [
        ("COMMAND", STAYS, "infrastructure"),
        ("COMMAND", "trap 'echo ended; exit 0' TERM; echo here; sleep 600 & wait", "exited"),
        (
            "NOTEBOOK",
            "trap 'echo ended; exit 0' TERM; echo here; sleep 600 & wait",
            "infrastructure",
        ),
    ],
)
def test_what_is_no_trial_gets_the_signal(
    legs: LegRunner, service: FakeService, kind: str, entrypoint: str, end: str
) -> None:
    process = legs.start({}, entrypoint=entrypoint, task_type=kind, place=ENOUGH)
    service.wait(lambda: "here" in service.text("stdout"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
    ended = service.exits["7.abc.1"]
    assert ended["kind"] == end
    if end == "infrastructure":
        assert ended["leaving"] == "agent-1 was told to end within 200 s"
    assert ("ended\n" in service.text("stdout")) == ("trap" in entrypoint)


def test_a_kill_by_the_user_ends_it_at_once(legs: LegRunner, service: FakeService) -> None:
    process = legs.start({}, entrypoint=STAYS, place=ENOUGH)
    service.wait(lambda: "here" in service.text("stdout"))
    process.send_signal(signal.SIGTERM)
    service.wait(lambda: notices(service))
    process.send_signal(KILL_SIGNAL)
    assert process.wait(TIMEOUT_S) == 0
    assert service.exits["7.abc.1"]["reason"] == "as asked for"


def test_before_the_process_runs_nothing_is_to_be_stored(
    legs: LegRunner, service: FakeService
) -> None:
    go = threading.Event()
    path = paths.MODEL_DEFINITION.format(hash="d1")
    service.gets[path] = lambda: service.model_defs["d1"] if go.wait(TIMEOUT_S) else b""
    process = legs.start({"train.py": "print('here')"}, place=ENOUGH)
    service.wait(lambda: path in service.paths())
    process.send_signal(signal.SIGTERM)
    go.set()
    assert process.wait(TIMEOUT_S) == 0
    assert service.exits["7.abc.1"]["kind"] == "infrastructure"
    assert not notices(service) and service.text("stdout") == ""
