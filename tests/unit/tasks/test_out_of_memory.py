"""Out of memory: on the machine it does not count as the trial's failure, in a container it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from determined_tasks import exit_reason
from determined_tasks.entrypoint import StartMethod
from determined_tasks.exit_reason import LegResult, OomKills

PYTHON = StartMethod("program", ("python3", "train.py"))
SHELL = StartMethod("program", ("sh", "-c", "python3 train.py | tee log"))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(exit_reason, "oom_kills", lambda: OomKills(machine=8, container=2))
    yield


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize(
    ("before", "kind", "words"),
    [
        (OomKills(7, 2), "infrastructure", "killed: the machine is out of memory (137)"),
        (OomKills(7, None), "infrastructure", "killed: the machine is out of memory (137)"),
        # The machine's counter includes kills in its containers.
        (
            OomKills(7, 1),
            "exited",
            "process was killed by signal 9 (SIGKILL): out of memory, by the limit of its container",
        ),
        (
            OomKills(8, 2),
            "exited",
            "process was killed by signal 9 (SIGKILL), perhaps out of memory",
        ),
        (
            OomKills(None, None),
            "exited",
            "process was killed by signal 9 (SIGKILL), perhaps out of memory",
        ),
    ],
)
def test_whose_failure_it_is(before: OomKills, kind: str, words: str) -> None:
    found = exit_reason.describe(signal.SIGKILL, PYTHON, hook_pending=None, oom_before=before)
    assert (found.kind, str(found)) == (kind, words)


@pytest.mark.usefixtures("now")
def test_below_a_shell() -> None:
    def end(before: OomKills) -> LegResult:
        return exit_reason.describe(137 << 8, SHELL, hook_pending=None, oom_before=before)

    assert end(OomKills(7, 2)).kind == "infrastructure"
    assert end(OomKills(7, 1)) == LegResult(
        137, None, "exited", "out of memory, by the limit of its container"
    )
    assert end(OomKills(8, 2)).reason == "a command was killed by signal 9, perhaps out of memory"


@pytest.fixture
def small_container() -> Iterator[Path]:
    """A control group of 64 MiB."""
    root = Path("/sys/fs/cgroup")
    one = root / "memory" if (root / "memory").is_dir() else root
    group = one / f"determined-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if one != root else "memory.max")
        limit.write_text(str(64 << 20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"needs the right to make memory control groups: {error}")
    yield group
    group.rmdir()


def test_a_real_container(small_container: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        f"open({str(small_container / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "from determined_tasks import exit_reason\n"
        "from determined_tasks.entrypoint import StartMethod\n"
        "before = exit_reason.oom_kills()\n"
        "hog = subprocess.Popen([sys.executable, '-c', 'x = b\"x\" * (200 << 20)'], "
        "preexec_fn=lambda: open('/proc/self/oom_score_adj', 'w').write('1000'))\n"
        "_, status = os.waitpid(hog.pid, 0)\n"
        "start = StartMethod('program', ('python3', 'train.py'))\n"
        "print(exit_reason.describe(status, start, hook_pending=None, oom_before=before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("out of memory, by the limit of its container")


@pytest.mark.parametrize(
    ("line", "mount", "name"),
    [
        ("0::{}", "", "memory.events"),
        ("9:cpu,memory:{}", "memory", "memory.oom_control"),
    ],
)
@pytest.mark.parametrize("is_container", [False, True])
def test_the_group_of_a_container_is_found_under_the_machines_path(
    tmp_path: Path, line: str, mount: str, name: str, is_container: bool
) -> None:
    """There the root of the mount is the container's group, whatever path the kernel tells."""
    own, group = tmp_path / "own", tmp_path / "sys" / mount
    own.write_text("3:cpuset:/other\n" + line.format("/kubepods/pod1/abc") + "\n")
    if not is_container:
        group = group / "kubepods/pod1/abc"
    group.mkdir(parents=True)
    assert list(exit_reason._memory_groups(tmp_path / "sys", own)) == [group / name]
