"""A supervisor that is the first process of a container, under an account that has no name there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from determined_deployments.agent.launchers import call
from determined_tasks.supervision import KILL_SIGNAL, SUPERVISE
from tests.programs.legs.fake_service import FakeService, archive, spec
from tests.waiting import TIMEOUT_S, until

UID = 54_321
INSIDE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "setpriv"]
AS_NOBODY_KNOWN = [f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "env", "-i"]

# A grandchild whose parent is gone ends; the first process is its parent then.
ORPHANS = """
import getpass, os, time, pathlib
here = [name for name in os.listdir("/proc") if name.isdigit()]
print("first is", os.getppid(), "uid", os.getuid(), "files", sorted(os.listdir()), flush=True)
print(getpass.getuser(), os.access(os.path.expanduser("~"), os.W_OK), flush=True)
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(0.1)
    os._exit(0)
os.wait()
def zombies():
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found += [name] if pathlib.Path("/proc", name, "stat").read_text().split()[2] == "Z" else []
            except OSError:
                pass
    return found
while not zombies():
    time.sleep(0.01)
print("it has ended", flush=True)
while zombies():
    time.sleep(0.01)
print("it is reaped", flush=True)
"""


class Pod:
    """A PID namespace with a read-only order and an empty work_dir, as a pod has them."""

    def __init__(self, service: FakeService, folder: Path) -> None:
        self.service = service
        self.folder = folder
        self.work_dir = folder / "work"
        self.work_dir.mkdir()
        os.chown(self.work_dir, UID, UID)
        self.order = folder / "order"
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, files: dict[str, str | bytes], grace: float | None, **fields: Any) -> None:
        self.service.model_defs["d1"] = archive(files)
        place = {
            "work_dir": str(self.work_dir),
            "master": self.service.url,
            "token": "secret",
            "agent_id": "agent-1",
            "grace_seconds": grace,
        }
        argument = {"spec": spec(**fields), "place": place, "learn_into": None}
        self.order.write_text(json.dumps({"function": SUPERVISE, "argument": argument}))
        self.order.chmod(0o444)

    def start(self) -> None:
        program = [sys.executable, "-P", "-m", call.__name__, str(self.order)]
        given = ["PATH=/usr/bin:/bin", "DET_START_ID=uid-1"]
        self.process = subprocess.Popen(
            [*INSIDE, *AS_NOBODY_KNOWN, *given, *program], cwd="/", stdin=subprocess.DEVNULL
        )

    def first(self) -> psutil.Process:
        """The first process, once it is Python."""
        assert self.process is not None
        above = psutil.Process(self.process.pid)

        def found() -> psutil.Process | None:
            children = above.children()
            return children[0] if children and call.__name__ in children[0].cmdline() else None

        return until("the first process", found)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def pod(service: FakeService) -> Iterator[Pod]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv"))):
        pytest.skip("needs root, unshare and setpriv")
    with tempfile.TemporaryDirectory() as folder:
        # Open for the account, as pytest's own folders are not.
        Path(folder).chmod(0o755)
        made = Pod(service, Path(folder))
        yield made
        made.close()


def test_it_runs_the_task_and_reaps_orphans(pod: Pod, service: FakeService) -> None:
    pod.write({"train.py": ORPHANS}, None)
    pod.start()
    assert pod.wait() == 0, service.text("stderr", "agent")
    assert service.exits["7.abc.1"]["exit_code"] == 0
    assert service.text("stdout").splitlines() == [
        f"first is 1 uid {UID} files ['train.py']",
        f"{UID} True",
        "it has ended",
        "it is reaped",
    ]
    assert not list((pod.work_dir / "allocations").iterdir())


@pytest.mark.parametrize(
    ("number", "grace", "end"),
    [
        (KILL_SIGNAL, None, "as asked for"),
        (signal.SIGTERM, None, "stopped together with its agent"),
        (signal.SIGTERM, 2.0, "its process had not ended after 1 s and was killed"),
    ],
)
def test_it_heeds_signals(
    pod: Pod, service: FakeService, number: signal.Signals, grace: float | None, end: str
) -> None:
    pod.write({}, grace, entrypoint="echo here; sleep 600 & sleep 600")
    pod.start()
    service.wait(lambda: "here" in service.text("stdout"))
    pod.first().send_signal(number)
    assert pod.wait() == 0
    assert service.exits["7.abc.1"]["reason"].startswith(end)


def test_a_signal_that_comes_first_ends_it(pod: Pod) -> None:
    os.mkfifo(pod.order)
    pod.order.chmod(0o444)
    pod.start()
    first = pod.first()
    # It reads its order, which does not come: the signals are handled by then.
    reads = "wait_for_partner"
    until("it reads", lambda: reads in Path(f"/proc/{first.pid}/wchan").read_text())
    first.send_signal(signal.SIGTERM)
    assert pod.wait() == 128 + signal.SIGTERM


def test_its_work_dir_may_name_the_account(pod: Pod, service: FakeService) -> None:
    pod.write({}, None, entrypoint="pwd", work_dir="/proc/$AGENT_USER")
    pod.start()
    assert pod.wait() == 0
    assert f"work_dir '/proc/{UID}'" in service.exits["7.abc.1"]["reason"]
