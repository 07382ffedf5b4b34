"""Launching several processes: torchrun, ranks in front of lines, and a gang that ends together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
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


def test_when_one_fails_the_others_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    begin = time.monotonic()
    done = subprocess.run(
        [*LAUNCH, "--nproc_per_node=2", "--", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert time.monotonic() - begin < 60
    assert done.returncode != 0
    assert "[rank=1] ValueError: as ordered" in done.stderr
    for rank in (0, 1):
        pid = int((tmp_path / f"pid-{rank}").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_ranks_in_front_of_lines() -> None:
    code = (
        "import sys\n"
        "sys.stdout.write('a\\nb\\r\\n'); sys.stdout.flush()\n"
        "sys.stderr.write('1%\\r2%\\rno newline'); sys.exit(7)\n"
    )
    done = subprocess.run([*WRAP, "3", sys.executable, "-c", code], capture_output=True, timeout=30)
    assert done.returncode == 7
    assert done.stdout == b"[rank=3] a\n[rank=3] b\r\n"
    assert done.stderr == b"[rank=3] 1%\r[rank=3] 2%\r[rank=3] no newline\n"


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
        assert process.wait(20) == 5


def test_the_exit_code_of_a_killed_command() -> None:
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    done = subprocess.run([*WRAP, "0", sys.executable, "-c", code], timeout=30)
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
    done = subprocess.run([*WRAP, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
