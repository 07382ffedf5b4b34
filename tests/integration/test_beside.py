"""`det run --here`, and programs beside its task: exec, attach, dump."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.local_cluster import DET, LocalCluster
from tests.waiting import TIMEOUT_S, until

PROGRAM = """
import os, pathlib, time
import determined.core

def waiting():
    # On one line: wherever it is asked there, it is in that line.
    while not os.path.exists("go"): time.sleep(0.1)

with determined.core.init():
    pathlib.Path("made").mkdir()
    pathlib.Path("made/result.txt").write_text("by the task")
    pathlib.Path("given.txt").write_text("by the task")
    os.symlink("/etc/passwd", "link")
    print("begun", flush=True)
    waiting()
raise SystemExit(7)
"""


def begin(cluster: LocalCluster, folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A run of this program in the folder, once it has begun; and its task."""
    return cluster.begin_here(folder, "--slots", "0", "--", "python3", "train.py")


def until_waiting(stacks: Callable[[], str]) -> str:
    """The stacks once the program waits: it prints "begun" before it reaches the wait."""

    def said() -> str:
        found = stacks()
        return found if "waiting (train.py:7)" in found else ""

    return until("the program waits", said)


def test_a_program_of_this_directory_and_others_beside_it(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "given.txt").write_text("sent")
    (tmp_path / ".detignore").write_text("data\n")
    (tmp_path / "data").write_text("too large")
    run, task_id = begin(cluster, tmp_path)

    # A program beside it: its directory and variables, without its token.
    script = "ls data; cat made/result.txt given.txt; echo ${DET_SESSION_TOKEN-none} $DET_TASK_ID; exit 5"
    done = subprocess.run(
        [*DET, "exec", task_id[:8], "--", "sh", "-c", script],
        env=cluster.env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 5, done.stderr
    assert done.stdout == f"by the taskby the tasknone {task_id}\n" and "data" in done.stderr
    given = subprocess.run(
        [*DET, "exec", task_id, "cat"],
        env=cluster.env,
        input="typed\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert given.stdout == "typed\n"
    stacks = ("exec", task_id, "--", "python3", "-P", "-m", "determined.exec.stacks")
    said = until_waiting(lambda: cluster.det(*stacks).stdout)
    assert "python3 train.py" in said

    # Who goes without a word takes the program with them.
    visitor = subprocess.Popen(
        [*DET, "exec", task_id, "--", "sh", "-c", "echo $$; exec sleep 600"],
        env=cluster.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert visitor.stdout is not None
    # The shell's, until it becomes the other program.
    beside = int(visitor.stdout.readline())
    program = psutil.Process(beside)
    until("the program beside the task", program.cmdline, equals=["sleep", "600"])
    visitor.kill()
    visitor.wait()
    until("it has ended", lambda: not psutil.pid_exists(beside))

    # Type into a terminal to end the program.
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(DET[0], [*DET, "attach", task_id], cluster.env)
    (tmp_path / "given.txt").write_text("changed here")
    said = b""
    try:
        # Earlier input is lost.
        while b"the task's Python processes" not in said:
            said += os.read(terminal, 1 << 16)
        os.write(terminal, b"tty && touch go && exit 3\n")
        while data := os.read(terminal, 1 << 16):
            said += data
    except OSError:  # the other end is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3, said.decode()
    assert b"/dev/pts/" in said

    out, err = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 7, out + err
    assert "made/result.txt (new)" in err
    assert "given.txt was changed here meanwhile, and stays as it is" in err
    assert (tmp_path / "given.txt").read_text() == "changed here"
    assert (tmp_path / f"given.txt.from-{task_id[:8]}").read_text() == "by the task"
    assert (tmp_path / "made/result.txt").read_text() == "by the task"
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "data").exists()
    ended = subprocess.run(
        [*DET, "exec", task_id, "ls"], env=cluster.env, capture_output=True, text=True
    )
    assert ended.returncode == 1 and "does not run now: there is nothing to enter" in ended.stderr


def test_a_killed_programs_files_come_back(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "given.txt").write_text("sent")
    run, _ = begin(cluster, tmp_path)
    assert run.stderr is not None
    run.send_signal(signal.SIGINT)
    assert "interrupt once more to kill it" in run.stderr.readline()
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 137, err
    assert "2 files came back" in err and (tmp_path / "given.txt").read_text() == "by the task"


def test_the_position_of_a_trial(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    searcher = "{name: single, metric: x, max_length: 1}"
    config = f"{{name: x, entrypoint: python3 train.py, max_restarts: 0, searcher: {searcher}}}"
    (tmp_path / "x.yaml").write_text(config)
    created = cluster.det("e", "create", str(tmp_path / "x.yaml"), str(tmp_path))
    experiment_id = created.stdout.split()[-1]

    def begun() -> str:
        trials = cluster.session().get(f"/api/v1/experiments/{experiment_id}/trials")["trials"]
        if not trials:
            return ""
        found = str(trials[0]["id"])
        return found if "begun" in cluster.det("t", "logs", found).stdout else ""

    trial_id = until("the trial has begun", begun)
    dumped = until_waiting(lambda: cluster.det("trial", "dump", trial_id).stdout)
    assert "forking/python.py" not in dumped
    cluster.det("e", "kill", experiment_id)
