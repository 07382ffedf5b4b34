"""A leg that is started twice, by supervisors that share no directory: as pods of one Job."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from determined_tasks import context_dir
from determined_tasks.start_ids import FILE, MACHINE, VARIABLE, of_leg
from determined_tasks.supervision import KILL_SIGNAL
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService
from tests.waiting import TIMEOUT_S

STAYS = "echo here; env | grep -c START_ID; sleep 600"


def first_wins(service: FakeService) -> None:
    """The service's answers to STARTING and EXIT (tests/integration/control/test_notices.py has the real
    ones)."""
    known: list[str] = []

    def starting(body: dict[str, Any]) -> tuple[int, Any]:
        known.append(body["start_id"])
        if known[0] != body["start_id"]:
            return 409, {"message": "allocation 7.abc.1 was started before this start of it"}
        return 200, None

    def ended(body: dict[str, Any]) -> tuple[int, Any]:
        return (200, None) if body["start_id"] == known[0] else (409, {"message": "another start"})

    service.answers |= {"starting": starting, "exit": ended}


def pod(name: str) -> dict[str, Any]:
    return {"env": {VARIABLE: f"uid-{name}"}, "entrypoint": STAYS}


def test_a_second_pod_runs_nothing_and_ends_nothing(
    legs: LegRunner, service: FakeService, tmp_path: Path
) -> None:
    first_wins(service)
    first = legs.start({}, **pod("1"))
    service.wait(lambda: "here" in service.text("stdout"))
    legs.work_dir = tmp_path / "another"
    second = legs.start({}, **pod("2"))
    assert second.wait(TIMEOUT_S) == 0
    assert first.poll() is None and service.exits == {}
    told = [path.rpartition("/")[2] for path in service.paths() if "/allocations/" in path]
    assert told.count("running") == 1
    assert "was started before this start of it" in service.text("stderr", "agent")
    assert not list((legs.work_dir / "allocations").iterdir())
    first.send_signal(KILL_SIGNAL)
    assert first.wait(TIMEOUT_S) == 0
    assert service.exits["7.abc.1"]["start_id"] == "uid-1"
    # The process knows nothing of it.
    assert service.text("stdout") == "here\n0\n"


def test_a_service_of_the_release_before_knows_no_question(
    legs: LegRunner, service: FakeService
) -> None:
    service.answers["starting"] = lambda _: (404, {"detail": "Not Found"})
    process = legs.start({}, **pod("1"))
    service.wait(lambda: "here" in service.text("stdout"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0


def test_a_service_that_is_away_is_asked_again(legs: LegRunner, service: FakeService) -> None:
    tries: list[str] = []

    def away_at_first(body: dict[str, Any]) -> tuple[int, Any]:
        tries.append(body["start_id"])
        return (503, {"message": "away"}) if len(tries) < 3 else (200, None)

    service.answers["starting"] = away_at_first
    assert legs.run({}, env={VARIABLE: "uid-1"}, entrypoint="true")["exit_code"] == 0
    assert tries == ["uid-1"] * 3


def test_lines_say_the_machine_that_wrote_them(legs: LegRunner, service: FakeService) -> None:
    legs.run({}, env={MACHINE: "node-a"}, entrypoint="echo here; env | grep -c MACHINE")
    machines = {body.get("machine") for _, path, body in service.calls if path.endswith("/logs")}
    assert machines == {"node-a"}
    assert service.text("stdout") == "here\n0\n"


def test_a_supervisor_that_takes_over_goes_on_with_the_start(tmp_path: Path) -> None:
    root = context_dir.allocation_dir(tmp_path, "7.abc.1")
    root.mkdir(parents=True)
    first = of_leg(root)
    assert of_leg(root) == first
    (root / FILE).unlink()
    assert of_leg(root) != first
