"""The ends of legs, and their messages for the user."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from determined_tasks.supervision import KILL_SIGNAL, LegRecord
from tests.processes import is_alive
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService
from tests.waiting import TIMEOUT_S, until


def test_success_reports_running_logs_and_exit_in_this_order(
    legs: LegRunner, service: FakeService, fork: bool
) -> None:
    ended = legs.run({"train.py": "print('hello')"}, fork=fork)
    assert ended == {
        "exit_code": 0,
        "signal": None,
        "kind": "exited",
        "reason": None,
        "agent_id": None,
        "node": None,
        "start_id": ended["start_id"],
        "leaving": None,
    }
    assert service.text("stdout") == "hello\n"
    told = [path.rpartition("/")[2] for path in service.paths() if path.startswith("/internal")]
    assert told == ["d1", "running", "logs", "exit"]
    running = next(body for _, path, body in service.calls if path.endswith("running"))
    assert running["pid"] > 0 and running["start_id"] == ended["start_id"] != ""
    assert not list((legs.work_dir / "allocations").iterdir())


def test_exception_gives_a_traceback_of_user_code_only(
    legs: LegRunner, service: FakeService, fork: bool
) -> None:
    script = "def f():\n    raise KeyError('lr')\n\nf()\n"
    ended = legs.run({"train.py": script}, fork=fork)
    reason = "KeyError: 'lr' (train.py, line 2: raise KeyError('lr'))"
    assert ended == {
        "exit_code": 1,
        "signal": None,
        "kind": "exited",
        "reason": reason,
        "agent_id": None,
        "node": None,
        "start_id": ended["start_id"],
        "leaving": None,
    }
    shown = service.text("stderr")
    assert shown.startswith("Traceback (most recent call last):\n")
    assert shown.count("  File ") == 2
    assert 'train.py", line 4, in <module>' in shown
    assert shown.endswith("KeyError: 'lr'\n")
    assert service.text("stderr", "agent").endswith("process exited with code 1\n")


@pytest.mark.parametrize(
    ("statement", "code", "told"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("sys.exit(256 + 5)", 5, ""),
        ("os._exit(4)", 4, ""),
    ],
)
def test_exit_codes(
    legs: LegRunner, service: FakeService, fork: bool, statement: str, code: int, told: str
) -> None:
    ended = legs.run({"train.py": f"import os, sys\n{statement}"}, fork=fork)
    assert ended["exit_code"] == code
    assert ended["kind"] == "exited"
    assert service.text("stderr") == told
    assert ended["reason"] == ("last line of stderr: no data" if told else None)


REPORTS = """
import os, signal, sys
from determined import core
context = core.init()
context.train.report_training_metrics(1, {"loss": 1.0})
"""


@pytest.mark.parametrize(
    "end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)"]
)
def test_reports_that_are_lost_are_said(
    legs: LegRunner, service: FakeService, fork: bool, end: str, tmp_path: Path
) -> None:
    if "sys" not in end:  # else the exit handler would wait for the service
        service.answers["batch"] = lambda body: (503, {"message": "away"})
    storage = {"type": "directory", "container_path": str(tmp_path / "storage")}
    legs.run({"train.py": REPORTS + end}, fork=fork, config={"checkpoint_storage": storage})
    said = "ended by os._exit() or a signal before its last reports were sent"
    assert (said in service.text("stderr", "agent")) == ("sys" not in end)


def test_killed_by_the_kernel(legs: LegRunner, service: FakeService, fork: bool) -> None:
    ended = legs.run({"train.py": "import os\nos.kill(os.getpid(), 9)"}, fork=fork)
    assert (ended["exit_code"], ended["signal"], ended["kind"]) == (None, 9, "exited")
    assert ended["reason"] is None
    shown = "process was killed by signal 9 (SIGKILL), perhaps out of memory"
    assert shown in service.text("stderr", "agent")


def test_crash_in_native_code_leaves_a_trace(
    legs: LegRunner, service: FakeService, fork: bool
) -> None:
    ended = legs.run({"train.py": "import ctypes\nctypes.string_at(0)"}, fork=fork)
    assert ended["signal"] == signal.SIGSEGV
    assert "signal 11 (SIGSEGV)" in service.text("stderr", "agent")
    assert "Fatal Python error: Segmentation fault" in service.text("stderr")


def test_interrupt_is_seen_as_a_signal(legs: LegRunner, service: FakeService, fork: bool) -> None:
    script = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)"
    ended = legs.run({"train.py": script}, fork=fork)
    assert ended["signal"] == signal.SIGINT
    assert service.text("stderr").endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize(
    ("entrypoint", "reason"),
    [
        ("python3 trian.py", "entrypoint not found: trian.py is not in the model definition"),
        (["python3", "trian.py"], "entrypoint not found: trian.py is not in the model definition"),
        ("trian --lr 1", "entrypoint not found: no command 'trian' on the PATH"),
        (["trian"], "entrypoint not found: no command 'trian' on the PATH"),
        (
            "train.py --lr 1",
            "entrypoint not found: no command 'train.py' on the PATH; a script needs its interpreter: "
            "python3 train.py",
        ),
        ("./run.sh", "entrypoint not found: ./run.sh is not in the model definition"),
        ("./train.py", "entrypoint not found: ./train.py is not executable"),
        ("python3 -m trian", "entrypoint not found: no module named 'trian'"),
    ],
)
def test_entrypoint_that_does_not_exist(
    legs: LegRunner, service: FakeService, entrypoint: str | list[str], reason: str
) -> None:
    ended = legs.run({"train.py": "print(1)"}, entrypoint=entrypoint)
    assert ended["kind"] == "failed_to_start"
    assert ended["reason"].startswith(reason)
    assert reason in service.text("stderr", "agent")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            "#!/bin/sh\r\n",
            "its first line, #!/bin/sh, ends in CR LF, as on Windows: save the file with LF",
        ),
        (
            "#!/bin/no-sh -e\n",
            "No such file or directory: the interpreter of its first line, /bin/no-sh -e",
        ),
        (
            "true\n",
            "Exec format error: its first line names no interpreter (#!/bin/sh, for instance)",
        ),
    ],
)
def test_a_script_without_its_interpreter(legs: LegRunner, content: str, reason: str) -> None:
    ended = legs.run({"run.sh": content}, entrypoint="./run.sh")
    assert ended["kind"] == "failed_to_start"
    assert ended["reason"] == f"entrypoint cannot be started: ./run.sh: {reason}"


def test_the_clusters_startup_hook_comes_first(legs: LegRunner, service: FakeService) -> None:
    files: dict[str, str | bytes] = {
        "train.py": "import os; print(os.environ['A'], os.environ['B'])",
        "startup-hook.sh": "export B=$A-mine",
    }
    ended = legs.run(files, defaults={"startup_hook": "export A=cluster"})
    assert (ended["kind"], ended["exit_code"]) == ("exited", 0)
    assert service.text("stdout") == "cluster cluster-mine\n"


def test_a_startup_hook_of_the_cluster_that_fails(legs: LegRunner) -> None:
    files: dict[str, str | bytes] = {"train.py": "print(1)", "startup-hook.sh": "false"}
    ended = legs.run(files, defaults={"startup_hook": "true\n(exit 3)"})
    assert ended["kind"] == "failed_to_start"
    assert ended["reason"] == "task_container_defaults.startup_hook failed with exit code 3"


def test_model_definition_the_service_does_not_have(legs: LegRunner) -> None:
    ended = legs.run({}, model_def_hash="d3")
    assert ended["kind"] == "failed_to_start"
    assert "model definition" in ended["reason"]


def test_kill_request_ends_every_descendant(
    legs: LegRunner, service: FakeService, fork: bool
) -> None:
    """A grandchild in a separate session, whose parent is gone, and one that ignores signals."""
    script = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
written, note = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"daemon %d\\n" % os.getpid())
        os.write(note, b"d")
        time.sleep(600)
    os._exit(0)
if os.fork() == 0:
    os.write(1, b"child %d\\n" % os.getpid())
    os.write(note, b"c")
    time.sleep(600)
for _ in range(2):
    os.read(written, 1)
print("last words")
time.sleep(600)
"""
    supervisor = legs.start({"train.py": script}, fork=fork)
    service.wait(lambda: "last words" in service.text("stdout"))
    supervisor.send_signal(KILL_SIGNAL)
    assert supervisor.wait(TIMEOUT_S) == 0
    ended = service.exits["7.abc.1"]
    said = {"exit_code": None, "signal": 9, "kind": "exited", "reason": "as asked for"}
    nothing = {"agent_id": None, "node": None, "leaving": None}
    assert ended == said | nothing | {"start_id": ended["start_id"]}
    pids = [int(line.split()[1]) for line in service.text("stdout").splitlines()[:2]]
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("first", ["supervisor", "process"])
def test_stop_from_outside_is_not_the_trainings_fault(
    legs: LegRunner, service: FakeService, first: str
) -> None:
    supervisor = legs.start({"train.py": "import os, time\nprint(os.getpid())\ntime.sleep(600)"})
    service.wait(lambda: service.text("stdout"))
    pids = [int(service.text("stdout")), supervisor.pid]
    for pid in reversed(pids) if first == "supervisor" else pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.05)
    assert supervisor.wait(TIMEOUT_S) == 0
    ended = service.exits["7.abc.1"]
    assert (ended["kind"], ended["reason"]) == ("infrastructure", "stopped together with its agent")


def test_shell_names_a_missing_program(legs: LegRunner) -> None:
    ended = legs.run({"train.py": ""}, entrypoint="echo hi && trian --lr 1")
    assert ended["exit_code"] == 127
    assert ended["reason"] == "the shell did not find a command"


def test_grandchild_that_keeps_the_pipes_open_does_not_keep_the_leg_alive(
    legs: LegRunner, service: FakeService
) -> None:
    script = """
import subprocess, sys
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("done")
"""
    ended = legs.run({"train.py": script})
    assert ended["exit_code"] == 0
    assert service.text("stdout") == "done\n"


def test_killed_supervisor_takes_the_process_with_it(
    legs: LegRunner, service: FakeService, fork: bool
) -> None:
    script = "import os, time\nprint(os.getpid())\ntime.sleep(600)"
    supervisor = legs.start({"train.py": script}, fork=fork)
    service.wait(lambda: service.text("stdout"))
    pid = int(service.text("stdout"))
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    until("the end of the process", lambda: not is_alive(pid))


def test_interrupted_in_a_process_of_a_stock_worker(legs: LegRunner, service: FakeService) -> None:
    script = "import os, time\nprint(os.getpid())\ntime.sleep(600)"
    supervisor = legs.start({"train.py": script}, stock=True)
    service.wait(lambda: service.text("stdout"))
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(TIMEOUT_S) != 0
    ended = service.exits["7.abc.1"]
    assert (ended["kind"], ended["reason"]) == ("infrastructure", "the supervisor was interrupted")
    assert not is_alive(int(service.text("stdout")))
    assert not list((legs.work_dir / "allocations").iterdir())


def test_leg_in_a_process_of_a_stock_worker(legs: LegRunner, service: FakeService) -> None:
    ended = legs.run({"train.py": "print('hello')\nexit(3)"}, stock=True)
    assert ended["exit_code"] == 3
    assert service.text("stdout") == "hello\n"


def test_a_killed_supervisors_processes_can_be_ended(legs: LegRunner, service: FakeService) -> None:
    script = "import os, time\nprint(os.getpid())\ntime.sleep(600)"
    supervisor = legs.start({"train.py": script}, stock=True)
    service.wait(lambda: service.text("stdout"))
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    record = LegRecord.read(legs.work_dir / "allocations" / "7.abc.1")
    assert record is not None
    assert not record.supervisor.is_alive()
    assert record.user is not None
    assert record.user.is_alive()
    assert record.tmp is not None
    assert Path(record.tmp).is_dir()
    record.clear_up()
    assert not Path(record.tmp).exists()
    until("the end of the process", lambda: not record.user.is_alive())


def test_processes_outside_a_killed_legs_session_are_ended_too(
    legs: LegRunner, service: FakeService
) -> None:
    """Like a notebook's kernels: processes in separate sessions, whose parent died with the supervisor."""
    script = (
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)\ntime.sleep(600)"
    )
    supervisor = legs.start({"train.py": script})
    service.wait(lambda: service.text("stdout"))
    left = int(service.text("stdout"))
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    record = LegRecord.read(legs.work_dir / "allocations" / "7.abc.1")
    assert record is not None and record.user is not None
    until("the end of the process", lambda: not record.user.is_alive())
    assert is_alive(left)
    record.clear_up()
    assert not is_alive(left)


def test_disk_that_cannot_be_written_is_told(legs: LegRunner, tmp_path: Path) -> None:
    """A file where the directory of allocations belongs: nothing can be made below it."""
    legs.work_dir.mkdir()
    (legs.work_dir / "allocations").write_text("")
    ended = legs.run({"train.py": "print(1)"})
    assert ended["kind"] == "infrastructure"
    assert "agent-1 cannot run the leg" in ended["reason"]
