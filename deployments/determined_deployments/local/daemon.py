"""Starts detached processes, finds them again and stops them.

A pid alone does not name a process (pids are reused), so the pid file also holds the start time; and every
process of a cluster carries the cluster's id in its environment, so that leftovers are found even without a
pid file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

from determined.common.wire import no_telemetry
from determined_deployments.local.component import Component, StopSignals
from determined_deployments.local.layout import Layout, write_private

MARKER = "DETERMINED_LOCAL_CLUSTER"
"""Environment variable of every process of a cluster: the cluster's id. Its name does not begin with
``DET_``: such variables are not passed on to training processes, which must be found, too.
"""
COMPONENT = "DETERMINED_LOCAL_COMPONENT"
"""Environment variable: ``<component>:<fingerprint>`` of the component the process belongs to."""
START_TIME_TOLERANCE = 2.0
"""Seconds; the kernel reports start times relative to a boot time that moves with the clock."""
LOG_LIMIT = 16 * 1024 * 1024
"""A log larger than this is set aside (one old file kept) when its component starts."""
UMASK = 0o077
"""Of every component and of the training processes."""
LOOPBACK = "127.0.0.1,localhost"


@dataclass(frozen=True)
class PidFile:
    """Content of ``<data>/run/<component>.json``."""

    pid: int
    started: float
    """Seconds since the epoch, as psutil's ``create_time``."""
    fingerprint: str
    marker: str


def read_pid_file(path: Path) -> PidFile | None:
    """The pid file; None when absent or unreadable (half-written by a killed command)."""
    try:
        return PidFile(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def alive(record: PidFile) -> psutil.Process | None:
    """The process that a pid file names, if it still runs; None for a dead or reused pid."""
    try:
        process = psutil.Process(record.pid)
        if is_gone(process):
            return None
        if abs(process.create_time() - record.started) <= START_TIME_TOLERANCE:
            return process
        # The clock was set since: the marker decides.
        return process if _variable(process, MARKER) == record.marker else None
    except psutil.Error:
        return None


def is_gone(process: psutil.Process) -> bool:
    """True if the process has ended, even if its parent has not collected it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def running(layout: Layout, name: str) -> psutil.Process | None:
    """The live process of component ``name``, by its pid file."""
    record = read_pid_file(layout.pid_file(name))
    return alive(record) if record else None


def environment(component: Component, marker: str) -> dict[str, str]:
    """The caller's environment without settings meant for other Prefect or Determined servers
    (``PREFECT_*``, ``DET_*``), plus the component's own. Nothing of it may report its use to anybody."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "DET_"))}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = f"{kept[name]},{LOOPBACK}" if kept.get(name) else LOOPBACK
    own = {MARKER: marker, COMPONENT: f"{component.name}:{component.fingerprint}"}
    return {**kept, **no_telemetry.VARIABLES, **component.env, **own}


def start(layout: Layout, component: Component, marker: str) -> subprocess.Popen[bytes]:
    """Start the process in a new session, with its output appended to its log, and record it."""
    user = component.run_as
    with _open_log(layout.log(component.name)) as log:
        process = subprocess.Popen(
            component.argv,
            cwd=layout.root,
            env=environment(component, marker),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # No other account may read its files, or its children's: databases, logs, checkpoints.
            umask=UMASK,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )
    started = psutil.Process(process.pid).create_time()  # a zombie at worst: it is our child
    content = PidFile(process.pid, started, component.fingerprint, marker)
    write_private(layout.pid_file(component.name), json.dumps(asdict(content)))
    return process


def stop(process: psutil.Process, signals: StopSignals) -> bool:
    """End the process: send the signals in order, each with its grace, then SIGKILL. Returns whether it
    ended before SIGKILL.
    """
    for number, grace in signals:
        if _signal_and_wait(process, number, grace):
            return True
    _signal_and_wait(process, 9, 10.0)
    return False


def members(marker: str) -> Iterator[psutil.Process]:
    """Every process of the cluster except the caller and its ancestors."""
    me = psutil.Process()
    spared = {me.pid, *(parent.pid for parent in me.parents())}
    for process in psutil.process_iter():
        if process.pid not in spared and _variable(process, MARKER) == marker:
            yield process


def sweep(
    marker: str, grace: float, which: Callable[[psutil.Process], bool] = lambda process: True
) -> int:
    """Ends the processes of the cluster that ``which`` chooses: SIGTERM, after ``grace`` seconds
    SIGKILL. Returns how many there were."""
    left = [process for process in members(marker) if which(process)]
    for process in left:
        _send(process, 15)
    psutil.wait_procs(left, timeout=grace)
    # Repeated, because those that are killed may have started others meanwhile.
    for _ in range(5):
        stubborn = [process for process in members(marker) if which(process)]
        for process in stubborn:
            _send(process, 9)
        psutil.wait_procs(stubborn, timeout=2.0)
        if not stubborn:
            break
    return len(left)


def tail(path: Path, lines: int) -> str:
    """The last ``lines`` lines of a log (read from its last megabyte)."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1024 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:]) if lines > 0 else ""


def component_of(process: psutil.Process) -> str | None:
    """The component as which, or by which, a process was started."""
    value = _variable(process, COMPONENT)
    return value.partition(":")[0] if value else None


def fingerprint_of(process: psutil.Process) -> str:
    """The settings a component was started with; empty if they cannot be read."""
    return (_variable(process, COMPONENT) or "").partition(":")[2]


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _signal_and_wait(process: psutil.Process, number: int, grace: float) -> bool:
    _send(process, number)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline:
        try:
            process.wait(0.05)  # also reaps it when it is our own child
            return True
        except psutil.NoSuchProcess:
            return True
        except psutil.TimeoutExpired:
            if is_gone(process):
                return True
    return False


def _open_log(path: Path) -> IO[bytes]:
    if path.exists() and path.stat().st_size > LOG_LIMIT:
        path.replace(path.with_name(path.name + ".1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
