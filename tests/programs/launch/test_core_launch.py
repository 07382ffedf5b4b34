"""Launching several processes: their environment, ranks in front of lines, and a gang that ends together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from determined_tasks.log_lines import parse
from determined_tasks.why_ended import WhyEnded
from tests.processes import is_alive
from tests.waiting import TIMEOUT_S, until

LAUNCH = [sys.executable, "-m", "determined.launch.torch_distributed"]
WRAP = [sys.executable, "-m", "determined.launch.wrap_rank"]

WORKER = """
import sys
import torch
import torch.distributed
from determined import core

torch.distributed.init_process_group("gloo")
with core.init(distributed=core.DistributedContext.from_torch_distributed()) as context:
    dist = context.distributed
    total = torch.tensor([dist.rank + 1.0])
    torch.distributed.all_reduce(total)
    print("sum", total.item(), "of", dist.allgather(dist.local_rank), sys.argv[1:], flush=True)
torch.distributed.destroy_process_group()
"""


def test_two_processes_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKER)
    command = [*LAUNCH, "--nproc_per_node=2", "--", "python3", "train.py", "--lr", "0.1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "sum" in line) == [
        f"[rank={rank}] sum 3.0 of [0, 1] ['--lr', '0.1']" for rank in (0, 1)
    ]


FAILS = """
import os, sys, time, pathlib
rank = os.environ["RANK"]
pathlib.Path(f"pid-{rank}").write_text(str(os.getpid()))
while not all(pathlib.Path(f"pid-{one}").exists() for one in (0, 1)):
    time.sleep(0.01)
if rank == "1":
    raise ValueError("as ordered")
time.sleep(300)
"""


def test_a_failure_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    done = subprocess.run(
        [*LAUNCH, "--nproc_per_node=2", "--", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode != 0
    assert "[rank=1] ValueError: as ordered" in done.stderr
    for rank in (0, 1):
        pid = int((tmp_path / f"pid-{rank}").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


WITHOUT_A_GROUP = """
import determined as det
workers = det.core.DistributedContext.from_torch_distributed()
with det.core.init(distributed=workers):
    if workers.rank == 1:
        raise RuntimeError("rank one is broken")
    workers.gather(1)
"""
WITH_ONE = """
import sys
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    END
dist.barrier()
"""
ALONE = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError(7)
time.sleep(600)
"""
OURS = [*LAUNCH, "--nproc_per_node=2", "--"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]


RAISES = WITH_ONE.replace("END", "raise ValueError(7)")
EXITS = WITH_ONE.replace("END", "sys.exit('no data')")


@pytest.mark.parametrize(
    ("launcher", "code", "words"),
    [
        (OURS, RAISES, "rank 1: ValueError: 7 (train.py, line 6: "),
        (OURS, EXITS, "rank 1: last line of stderr: no data"),
        (OURS, WITHOUT_A_GROUP, "rank 1: RuntimeError: rank one is broken (train.py, line 6: "),
        (TORCHRUN, RAISES, "rank 1: ValueError: 7 (train.py, line 6: "),
        # No line has a rank: torchrun says at its end which worker it saw fail first.
        (TORCHRUN, ALONE, "rank 1: ValueError: 7 (train.py, line 4: raise ValueError(7))"),
        (TORCHRUN, WITHOUT_A_GROUP, "RuntimeError: rank one is broken (train.py, line 6: "),
    ],
)
def test_why_it_failed_names_the_rank_that_did(
    tmp_path: Path, launcher: list[str], code: str, words: str
) -> None:
    (tmp_path / "train.py").write_text(code)
    command = [*launcher, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=TIMEOUT_S)
    why = WhyEnded(tmp_path)
    for line in done.stderr.splitlines(keepends=True):
        why.feed(parse(line), "stderr")
    assert done.returncode == 1 and why.text is not None
    assert why.text.startswith(words), done.stderr.decode()


def test_ranks_in_front_of_lines() -> None:
    code = (
        "import sys\n"
        "sys.stdout.write('a\\nb\\r\\n'); sys.stdout.flush()\n"
        "sys.stderr.write('1%\\r2%\\rno newline'); sys.exit(7)\n"
    )
    done = subprocess.run(
        [*WRAP, "3", sys.executable, "-c", code], capture_output=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 7
    assert done.stdout == b"[rank=3] a\n[rank=3] b\r\n"
    assert done.stderr == b"[rank=3] 1%\r[rank=3] 2%\r[rank=3] no newline\n"


def test_scripts_that_were_written_for_determineds_wrapper() -> None:
    command = [*WRAP, "--no-redirect-stdio", "RANK", "sh", "-c", "echo out; echo err >&2"]
    env = {**os.environ, "RANK": "2"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[rank=2] out\n", "[rank=2] err\n")
    helped = subprocess.run([*WRAP, "--help"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert helped.returncode == 0
    assert "--no-redirect-stdio" in helped.stdout


def test_a_line_that_does_not_end() -> None:
    code = "import sys; sys.stdout.write('x' * 5_000_000); sys.stdout.write('y\\n')"
    done = subprocess.run(
        [*WRAP, "3", sys.executable, "-c", code], capture_output=True, timeout=TIMEOUT_S
    )
    parts = done.stdout.decode().splitlines()
    assert len(parts) == 3
    assert all(part.startswith("[rank=3] x") for part in parts)
    assert "".join(part.removeprefix("[rank=3] ") for part in parts) == "x" * 5_000_000 + "y"


DAEMON = """
import os, pathlib, sys
from determined.launch import _gang, _workers

def start():
    # Its child has its output, and outlives it.
    worker = _workers.execute(0, ["sh", "-c", "sleep 300 & echo $! > daemon; exit 3"], os.environ)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    return [worker]

sys.exit(_gang.Gang(start).wait())
"""


def test_a_worker_that_has_ended_before_anybody_waits(tmp_path: Path) -> None:
    try:
        done = subprocess.run([sys.executable, "-c", DAEMON], cwd=tmp_path, timeout=TIMEOUT_S)
        assert done.returncode == 3
    finally:
        os.kill(int((tmp_path / "daemon").read_text()), signal.SIGKILL)


def test_a_signal_is_passed_on() -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [*WRAP, "RANK", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RANK": "0"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[rank=0] ready\n"
        process.terminate()
        assert process.stdout.read() == "[rank=0] told\n"
        assert process.wait(TIMEOUT_S) == 5


def test_the_exit_code_of_a_killed_command() -> None:
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    done = subprocess.run([*WRAP, "0", sys.executable, "-c", code], timeout=TIMEOUT_S)
    assert done.returncode == 137


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a rank and a command are needed"),
        (["NO_SUCH_VARIABLE", "true"], "NO_SUCH_VARIABLE is not set"),
        (["0", "no-such-program"], "no-such-program: No such file"),
    ],
)
def test_mistakes(arguments: list[str], words: str) -> None:
    done = subprocess.run([*WRAP, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


ENVIRONMENT = """
import json, os, sys
import helper
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS")
print(json.dumps({
    **{name: os.environ[name] for name in names},
    "argv": sys.argv[1:],
    "name": __name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "forked": "torch" in sys.modules,
    "parent": os.getppid(),
    "port": os.environ["MASTER_PORT"],
}))
"""


def launch(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [*LAUNCH, "--nproc_per_node=2", "--", *words]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **env},
    )


@pytest.mark.parametrize(
    ("words", "forked"),
    [
        (["work/train.py"], True),
        (["python3", "-m", "work.train"], True),
        (["python3", "-W", "ignore", "work/train.py"], False),
    ],
)
def test_workers_are_forked_where_that_is_the_same(
    tmp_path: Path, words: list[str], forked: bool
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(ENVIRONMENT)
    for place in (folder, tmp_path):
        (place / "helper.py").write_text("value = 7\n")
    done = launch(tmp_path, *words, "--lr", "0.1", OMP_NUM_THREADS="6")
    assert done.returncode == 0, done.stderr
    seen = {line[: len("[rank=0]")]: json.loads(line[9:]) for line in done.stdout.splitlines()}
    for rank in ("0", "1"):
        worker = seen[f"[rank={rank}]"]
        assert (worker["RANK"], worker["LOCAL_RANK"]) == (rank, rank)
        assert (worker["WORLD_SIZE"], worker["LOCAL_WORLD_SIZE"]) == ("2", "2")
        assert (worker["GROUP_RANK"], worker["OMP_NUM_THREADS"]) == ("0", "3")
        assert (worker["argv"], worker["name"], worker["main"]) == (
            ["--lr", "0.1"],
            "__main__",
            True,
        )
        assert worker["forked"] is forked
    assert len({worker["parent"] for worker in seen.values()}) == 1


def test_a_file_that_hides_an_imported_module_wins(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import typing_extensions; print(typing_extensions.mine)\n")
    (tmp_path / "typing_extensions.py").write_text("mine = True\n")
    done = launch(tmp_path, "train.py")
    assert sorted(done.stdout.splitlines()) == ["[rank=0] True", "[rank=1] True"], done.stderr


def test_the_code_of_the_first_that_fails_counts(tmp_path: Path) -> None:
    code = 'if [ "$RANK" = 1 ]; then exit 7; fi; trap "exit 9" TERM; sleep 60 & wait'
    done = launch(tmp_path, "sh", "-c", code)
    assert done.returncode == 7
    assert "rank 1 ended with exit code 7, ending the others" in done.stderr


def test_one_that_ignores_its_end_is_killed(tmp_path: Path) -> None:
    code = "trap '' TERM; if [ \"$RANK\" = 1 ]; then kill -9 $$; fi; while :; do sleep 0.1; done"
    done = launch(tmp_path, "sh", "-c", code)
    assert done.returncode == -signal.SIGKILL
    assert "rank 1 was killed by signal 9 (SIGKILL)" in done.stderr


WAITS = """
import os, pathlib, signal, sys, time
def told(number, frame):
    print("told", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(getattr(signal, sys.argv[1]), told)
pathlib.Path("pid-" + os.environ["RANK"]).write_text(str(os.getpid()))
print("ready", flush=True)
time.sleep(300)
"""


def waiting_gang(folder: Path, told_by: str) -> subprocess.Popen[str]:
    """A gang of two that has begun to wait."""
    (folder / "train.py").write_text(WAITS)
    gang = subprocess.Popen(
        [*LAUNCH, "--nproc_per_node=2", "--", "train.py", told_by],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert gang.stdout is not None
    lines = {gang.stdout.readline() for _ in range(2)}
    assert lines == {"[rank=0] ready\n", "[rank=1] ready\n"}
    return gang


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_signals_reach_every_worker(tmp_path: Path, name: str) -> None:
    with waiting_gang(tmp_path, name) as gang:
        gang.send_signal(getattr(signal, name))
        assert gang.stdout is not None
        assert sorted(gang.stdout) == [f"[rank={rank}] told {name}\n" for rank in (0, 1)]
        assert gang.wait(TIMEOUT_S) == 0


# Rank 1 ends by the signal at once. What rank 0 does then SIGTERM would cut off.
SAVES = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def await_file(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
def save(number, frame):
    await_file("ended")
    print("saving", flush=True)
    await_file("seen")
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGINT, save if rank == "0" else signal.SIG_DFL)
pathlib.Path(f"ready-{rank}").touch()
time.sleep(300)
"""


def test_one_that_saves_at_the_end_is_not_hurried(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    with subprocess.Popen(
        [*LAUNCH, "--nproc_per_node=2", "--", "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as gang:
        assert gang.stdout is not None
        assert gang.stderr is not None
        try:
            until("both ready", lambda: len(list(tmp_path.glob("ready-?"))), equals=2)
            gang.send_signal(signal.SIGINT)
            assert "rank 1 was killed by signal 2 (SIGINT), waiting for" in gang.stderr.readline()
            (tmp_path / "ended").touch()
            # The launcher passes this on when it is through with the end of rank 1.
            assert gang.stdout.readline() == "[rank=0] saving\n"
            (tmp_path / "seen").touch()
            assert gang.stdout.read() == "[rank=0] saved\n"
            assert gang.wait(TIMEOUT_S) == -signal.SIGINT
        finally:
            gang.kill()


def test_no_worker_outlives_its_launcher(tmp_path: Path) -> None:
    with waiting_gang(tmp_path, "SIGTERM") as gang:
        gang.kill()
        assert gang.wait(TIMEOUT_S) == -signal.SIGKILL
    for rank in (0, 1):
        pid = int((tmp_path / f"pid-{rank}").read_text())
        until(f"the end of rank {rank}", lambda pid=pid: not is_alive(pid))


def test_torchrun_for_its_own_options(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os; print(os.environ['TORCHELASTIC_MAX_RESTARTS'], os.environ['WORLD_SIZE'])\n"
    )
    done = subprocess.run(
        [*LAUNCH, "--nproc_per_node=2", "--max-restarts=1", "--", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert sorted(done.stdout.splitlines()) == ["[rank=0] 1 2", "[rank=1] 1 2"], done.stderr


def test_gangs_side_by_side_have_different_ports(tmp_path: Path) -> None:
    script = WORKER.replace("total.item()", "os.environ['MASTER_PORT'], total.item()")
    (tmp_path / "train.py").write_text(f"import os\n{script}")
    command = [*LAUNCH, "--nproc_per_node=2", "--", "train.py"]
    gangs = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    ports = []
    for gang in gangs:
        out, _ = gang.communicate(timeout=TIMEOUT_S)
        assert gang.returncode == 0
        ports += {line.split()[2] for line in out.splitlines() if " sum " in line}
    assert len(set(ports)) == len(ports) == 2
