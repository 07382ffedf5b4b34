"""Trials that take all processes, memory or processor time of their machine. Gains: the end of others' work.

Each runs beside a neighbour, with control groups where this machine lets them be made, and without. Each mend
was taken back once, and its test failed (docs/inside/security.md, red runs).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import secrets
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from determined_tasks import leg_groups
from determined_tasks.leg_groups import GroupsUnavailable, LegGroup
from determined_tasks.limits import Limits
from determined_tasks.supervision import LegRecord
from tests import accounts
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService, archive
from tests.waiting import TIMEOUT_S, until

PROCESSES = 60
MEMORY = 192 << 20

NEIGHBOUR = """
import os, subprocess, sys, time
print("here", flush=True)
while not os.path.exists(os.path.join(DIRECTORY, "go")):
    subprocess.run(["true"], check=True)
    time.sleep(0.05)
print("lives on", flush=True)
"""

BOMB = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""
"""All of its processes fork, each in a session of its own, and none ever gives up."""

BUSY = """
import os
os.sched_setaffinity(0, [PROCESSOR])
for _ in range(PROCESSES - 1):
    if os.fork() == 0:
        os.setsid()
        break
while True:
    pass
"""

LEAVES = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        os.environ.clear()
        os.execve("/bin/sleep", ["sleep", "1000"], {})
print("left", flush=True)
time.sleep(1000)
"""

HOG = """
import os, time
children = []
for _ in range(4):
    # No process alone has too much.
    if os.fork() == 0:
        held = bytearray(os.urandom(1 << 20) * 80)
        time.sleep(1000)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def people() -> Iterator[list[pwd.struct_passwd]]:
    with accounts.made(2) as made:
        yield made


@pytest.fixture
def homes() -> Iterator[list[Path]]:
    try:
        found = leg_groups.homes(f"determined-test-{secrets.token_hex(4)}")
    except GroupsUnavailable as error:
        pytest.skip(f"no control groups can be made here: {error}")
    yield found
    leg_groups.sweep(found, [])
    for home in found:
        home.rmdir()


@pytest.fixture(params=["groups", "none"])
def limits(request: pytest.FixtureRequest) -> dict[str, Any]:
    found = request.getfixturevalue("homes") if request.param == "groups" else []
    return asdict(Limits(PROCESSES, MEMORY, 128, tuple(map(str, found))))


@pytest.fixture
def legs(service: FakeService) -> Iterator[LegRunner]:
    with accounts.passable_folder() as folder:
        runner = LegRunner(service, folder / "agent")
        yield runner
        runner.close()


@pytest.fixture
def service() -> Iterator[FakeService]:
    service = FakeService()
    yield service
    service.close()


def start(legs: LegRunner, name: str, code: str, limits: Any, uid: int) -> subprocess.Popen[str]:
    hash_ = hashlib.sha256(code.encode()).hexdigest()
    legs.service.model_defs[hash_] = archive({"train.py": code})
    return legs.start(
        {},
        allocation_id=name,
        model_def_hash=hash_,
        agent_user={"uid": uid},
        place={"limits": limits},
    )


@pytest.fixture
def neighbour(
    legs: LegRunner, service: FakeService, limits: dict[str, Any], people: list[pwd.struct_passwd]
) -> Iterator[None]:
    """Runs while the test does, and must have been able to go on."""
    with accounts.passable_folder() as folder:
        code = NEIGHBOUR.replace("DIRECTORY", repr(str(folder)))
        process = start(legs, "n.1", code, limits, people[1].pw_uid)
        until(
            "the neighbour runs",
            lambda: "here" in service.text("stdout"),
            show=lambda: service.logs,
        )
        yield
        (folder / "go").touch()
        assert process.wait(TIMEOUT_S) == 0
        assert service.exits["n.1"]["exit_code"] == 0, service.text("stderr")


def said(service: FakeService) -> str:
    return "".join(line["log"] for line in service.logs if line["source"] == "agent")


def processes_of(uid: int) -> list[int]:
    return [
        one.pid
        for one in psutil.process_iter(["uids", "status"])
        if one.info["uids"].real == uid and one.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.usefixtures("neighbour")
def test_a_fork_bomb_ends_its_own_trial(
    legs: LegRunner, service: FakeService, limits: dict[str, Any], people: list[pwd.struct_passwd]
) -> None:
    """The machine's processes: no other user could start one."""
    uid = people[0].pw_uid
    process = start(legs, "b.1", BOMB, limits, uid)
    if not limits["homes"]:
        # The supervisor gets no notice; in the end the user kills the trial.
        until("the bomb has all", lambda: len(processes_of(uid)) >= PROCESSES)
        process.send_signal(signal.SIGUSR1)
    assert process.wait(TIMEOUT_S) == 0
    assert processes_of(uid) == []
    if limits["homes"]:
        words = f"too many processes: a leg has {PROCESSES} with their threads at most"
        assert words in service.exits["b.1"]["reason"]
        assert words in said(service)


def test_an_end_for_want_of_processes_is_explained(
    legs: LegRunner, service: FakeService, limits: dict[str, Any], people: list[pwd.struct_passwd]
) -> None:
    code = "import os, time\nwhile os.fork() != 0: pass\ntime.sleep(1000)"
    process = start(legs, "b.2", code, limits, people[0].pw_uid)
    assert process.wait(TIMEOUT_S) == 0
    assert "limits.processes of the agent's settings" in service.exits["b.2"]["reason"]
    assert processes_of(people[0].pw_uid) == []


def test_an_accident_without_an_account(
    legs: LegRunner, service: FakeService, homes: list[Path]
) -> None:
    """As the agent itself, a trial could leave its control group; one that means no harm is held."""
    limits = Limits(PROCESSES, MEMORY, 128, tuple(map(str, homes)))
    code = "import os, time\nwhile os.fork() != 0: time.sleep(0.005)\ntime.sleep(1000)"
    process = legs.start({"train.py": code}, place={"limits": asdict(limits)})
    assert process.wait(TIMEOUT_S) == 0
    assert "limits.processes of the agent's settings" in service.exits["7.abc.1"]["reason"]


@pytest.mark.usefixtures("neighbour")
def test_a_memory_hog_ends_its_own_trial(
    legs: LegRunner, service: FakeService, limits: dict[str, Any], people: list[pwd.struct_passwd]
) -> None:
    """The machine's memory: the kernel would end the largest process, perhaps another user's."""
    process = start(legs, "m.1", HOG, limits, people[0].pw_uid)
    assert process.wait(TIMEOUT_S) == 0
    ended = service.exits["m.1"]
    assert ended["kind"] == "exited", ended
    assert ended["reason"].startswith("out of memory, by the limit of 192 MiB of each leg"), ended
    assert processes_of(people[0].pw_uid) == []


@pytest.fixture
def sharing(homes: list[Path]) -> dict[str, Any]:
    """Limits by which legs share the processor time."""
    if not leg_groups.share_cpu(homes):
        pytest.skip("no control groups for processor time can be made here")
    return asdict(Limits(PROCESSES, MEMORY, 128, tuple(map(str, homes))))


def busy(processes: int) -> str:
    """A program that computes in this number of processes and sessions, on one processor."""
    processor = min(os.sched_getaffinity(0))
    return BUSY.replace("PROCESSES", str(processes)).replace("PROCESSOR", str(processor))


def seconds_of(uid: int) -> float:
    """Processor time of what runs under an account."""
    found = 0.0
    for pid in processes_of(uid):
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            found += times.user + times.system
    return found


def test_many_processes_get_no_more_processor_time_than_a_neighbours_one(
    legs: LegRunner, service: FakeService, sharing: dict[str, Any], people: list[pwd.struct_passwd]
) -> None:
    """The machine's processor time: a process of each other leg would get one part in 25."""
    hog, victim = (one.pw_uid for one in people)
    processes = [
        start(legs, "c.1", busy(24), sharing, hog),
        start(legs, "c.2", busy(1), sharing, victim),
    ]
    until("both compute", lambda: min(seconds_of(hog), seconds_of(victim)) > 0.5)
    before = seconds_of(hog), seconds_of(victim)
    until("they have computed", lambda: seconds_of(hog) - before[0] > 2)
    assert seconds_of(victim) - before[1] > 1
    for process in processes:
        process.send_signal(signal.SIGUSR1)
    for process in processes:
        assert process.wait(TIMEOUT_S) == 0


def test_a_leg_computes_no_longer_than_it_may(
    legs: LegRunner, service: FakeService, sharing: dict[str, Any], people: list[pwd.struct_passwd]
) -> None:
    """The machine's processor time, where nobody else computes just now."""
    process = start(legs, "c.3", busy(1), sharing | {"cpus": 0.25}, people[0].pw_uid)
    group = LegGroup.of(Limits.from_json(sharing), "c.3")

    def is_held() -> bool:
        files = (folder / "cpu.stat" for folder in group.folders)
        lines = (file.read_text().splitlines() for file in files if file.exists())
        counted = dict(line.split() for found in lines for line in found)
        return int(counted.get("nr_throttled", 0)) > 2

    until("it has met its limit", is_held)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(TIMEOUT_S) == 0


def test_a_process_has_a_limit_of_open_files_and_ends_before_the_cluster(
    legs: LegRunner, service: FakeService, limits: dict[str, Any], people: list[pwd.struct_passwd]
) -> None:
    code = (
        "import json, resource\n"
        "score = int(open('/proc/self/oom_score_adj').read())\n"
        "print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE), score]))\n"
    )
    process = start(legs, "f.1", code, limits, people[0].pw_uid)
    assert process.wait(TIMEOUT_S) == 0
    assert json.loads(service.text("stdout")) == [[128, 128], 500]


def test_nothing_goes_on_without_its_supervisor(
    legs: LegRunner, service: FakeService, homes: list[Path], people: list[pwd.struct_passwd]
) -> None:
    """Processes that nothing names as the leg's: no parent, no session, no environment."""
    limits = Limits(PROCESSES, MEMORY, 128, tuple(map(str, homes)))
    for name in ("k.1", "k.2"):
        process = start(legs, name, LEAVES, asdict(limits), people[0].pw_uid)
        until("it leaves some", lambda: any("left" in line["log"] for line in service.logs))
        service.logs.clear()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    record = LegRecord.read(legs.work_dir / "allocations/k.1")
    assert record is not None
    assert len(processes_of(people[0].pw_uid)) >= 10
    # The agent that sees it die; and the next one, where even the record is gone.
    record.clear_up()
    assert not any(folder.exists() for folder in LegGroup.of(limits, "k.1").folders)
    assert leg_groups.sweep(homes, []) == ["k.2"]
    assert processes_of(people[0].pw_uid) == []
