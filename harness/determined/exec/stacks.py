"""``python3 -m determined.exec.stacks``: where each Python process of the task is at this moment.

By py-spy where it is installed and may look into the processes; else by the processes themselves, if they
use the Core API, which has them answer a signal (:mod:`determined.common.stacks`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from determined.common import stacks
from determined.common.printable import one_line
from determined.common.wire import doors

MOST = 256
_FORKED = "determined/common/forking/python.py"
SECONDS = 20.0
ANSWER_SECONDS = 3.0
WORDS = 120


@dataclass(frozen=True)
class Process:
    """A process of the task. ``rank``: as it is told by its environment, or None."""

    pid: int
    words: str
    is_python: bool
    rank: int | None


def processes(env: Mapping[str, str]) -> list[Process]:
    """Those of the task that this account may look at, without those beside it."""
    parents = _parents()
    root = int(env.get(doors.SUPERVISOR, "0") or 0)
    own = _ancestors(os.getpid(), parents)
    # What is below it is beside the task: the process of this connection.
    at = own.index(root) if root in own else len(own) if not root else 0
    entered = own[at - 1] if at else 0
    main, words = json.loads(env.get(doors.MAIN) or '[0, ""]')
    found: list[Process] = []
    for pid in sorted(parents):
        above = _ancestors(pid, parents)
        if (root and root not in above[1:]) or entered in above or len(found) >= MOST:
            continue
        one = _look(pid, words if pid == main else "")
        if one is not None and not (one.is_python and doors.PROGRAM in one.words):
            found.append(one)
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def _parents() -> dict[int, int]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                after = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(folder.name)] = int(after[1])
    return found


def _ancestors(pid: int, parents: Mapping[int, int]) -> list[int]:
    """The process itself, its parent, and so on."""
    found = []
    while pid and pid not in found:
        found.append(pid)
        pid = parents.get(pid, 0)
    return found


def _look(pid: int, words: str) -> Process | None:
    folder = Path("/proc", str(pid))
    try:
        words = words or (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(
            errors="replace"
        )
        name = (folder / "exe").readlink().name
        variables = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return None  # it has gone, or is another account's
    given = dict(one.partition(b"=")[::2] for one in variables)
    rank = given.get(b"RANK", b"").decode(errors="replace")
    return Process(
        pid,
        one_line(words.strip())[:WORDS],
        name.startswith("python"),
        int(rank) if rank.isdecimal() else None,
    )


def dump(one: Process, env: Mapping[str, str]) -> str:
    """The stacks of its threads, or why there are none."""
    py_spy = shutil.which("py-spy", path=env.get("PATH"))
    why = "no py-spy is installed here: pip install py-spy in the image or environment of the task"
    if py_spy is not None:
        try:
            done = subprocess.run(
                [py_spy, "dump", "--pid", str(one.pid)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"py-spy: {error}"
        else:
            if done.returncode == 0:
                return _without_platform(done.stdout).rstrip()
            why = " ".join(done.stderr.split())[:300] or f"py-spy ended with {done.returncode}"
    answer = ask(one.pid, Path(env.get(doors.RUN_DIR, "/run/determined")))
    if answer is not None:
        answer = _without_platform(answer)
        return f"{answer.rstrip()}\n(by the process itself; {why})"
    return f"no stack: {why}; and the process does not use the Core API, which would tell"


def _without_platform(text: str) -> str:
    """Without the frames below the task's own program, where that runs in a fork of the agent's."""
    lines, is_below = [], False
    for line in text.splitlines():
        is_below = bool(line.strip()) and (is_below or _FORKED in line)
        if not is_below:
            lines.append(line)
    return "\n".join(lines)


def ask(pid: int, run_dir: Path) -> str | None:
    """Signal the process and return the stacks that it writes. None if it has no handler, or hangs in native
    code that holds off signals."""
    path = stacks.path_of(run_dir, pid)
    if not path.exists() or not stacks.is_caught(pid):
        return None
    before = path.stat().st_size
    try:
        os.kill(pid, stacks.SIGNAL)
    except OSError:
        return None
    deadline = time.monotonic() + ANSWER_SECONDS
    size = before
    while time.monotonic() < deadline:
        time.sleep(0.05)
        now = path.stat().st_size
        if now > before and now == size:
            break
        size = now
    with path.open("rb") as file:
        file.seek(before)
        return file.read(1 << 20).decode(errors="replace") or None


def main() -> int:
    """1: nothing could be looked at."""
    env = os.environ
    found = [one for one in processes(env) if one.is_python]
    if not found:
        print("no Python process of the task can be looked at here", file=sys.stderr)
        return 1
    for one in found:
        rank = "" if one.rank is None else f"rank {one.rank}, "
        print(f"===== {rank}process {one.pid}: {one.words}", flush=True)
        print(dump(one, env) + "\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
