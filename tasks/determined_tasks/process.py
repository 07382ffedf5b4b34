"""The training process: started in a new session, and ended with all its descendants."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import psutil

from determined.common.forking import process as forked
from determined.common.forking import python
from determined_tasks import identity, imported_modules, limits
from determined_tasks.entrypoint import EntrypointError, StartMethod
from determined_tasks.identity import Identity
from determined_tasks.leg_groups import LegGroup
from determined_tasks.limits import Limits
from determined_tasks.mounts import Mounts
from determined_tasks.packages import Packages

_F_SETPIPE_SZ = 1031

Restrict = Callable[[], None]
"""Puts a process that is about to run the user's program under its limits. Raises OSError."""

# Room for a burst of output while the supervisor is busy; the kernel takes the memory when it is used.
PIPE_BYTES = 1 << 20


@dataclass
class UserProcess:
    """A started process; ``stdout`` and ``stderr`` are the reading ends of its pipes."""

    pid: int
    stdout: int
    stderr: int
    alone: bool
    """This process has no other children: every other child is a descendant of the user's."""
    group: LegGroup
    """Its control group, if it has one."""
    status: int | None = None
    """Wait status, once it is reaped."""

    def reap(self) -> bool:
        """Reap ended children, also inherited ones, without waiting. True if the process has ended."""
        with contextlib.suppress(ChildProcessError):
            while self.alone or self.status is None:
                pid, status = os.waitpid(-1 if self.alone else self.pid, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.pid:
                    self.status = status
        return self.status is not None

    def kill(self) -> None:
        """Kills the process and its group; may be called again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def kill_rest(self, timeout: float = 5.0) -> None:
        """Kills every descendant, those that moved to another session or lost their parent included.

        All stop before the first of them dies: a program that forks without end would take its place. They
        are this process's descendants because it is a subreaper; at the end it has no child left. In a
        process that has other children (``alone`` is False) only the group is killed.
        """
        self.group.kill()
        self.kill()
        deadline = time.monotonic() + timeout
        while self.alone and _has_children() and time.monotonic() < deadline:
            for child in _stopped():
                with contextlib.suppress(psutil.Error):
                    child.kill()
            self.reap()
            if _has_children():
                time.sleep(0.005)


def _stopped() -> set[psutil.Process]:
    """All descendants, stopped so that none of them can fork any more."""
    found: set[psutil.Process] = set()
    while more := set(psutil.Process().children(recursive=True)) - found:
        for child in more:
            with contextlib.suppress(psutil.Error):
                child.suspend()
        found |= more
    return found


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def start(
    plan: StartMethod,
    *,
    env: Mapping[str, str],
    workdir: Path,
    single_threaded: bool,
    base_path: list[str] | None = None,
    packages: Packages | None = None,
    learn_into: Path | None = None,
    account: Identity | None = None,
    limits: Limits | None = None,
    group: LegGroup | None = None,
    mounts: Mounts | None = None,
) -> UserProcess:
    """Starts what :func:`determined_tasks.entrypoint.plan` decided.

    ``single_threaded``: this process has one thread and no other child, so Python code may run
    between a fork and what follows. The forms ``script`` and ``module`` need it, and ``base_path``.
    ``packages``: where the code installs, for these forms; a program finds them by its environment.
    ``account``: whose process it is, if not this one's owner's; only for the form ``program``. ``limits``:
    what it may use, with everything that it starts; needs one thread, too. ``group``: where it
    belongs. Under an account it is there before it begins, which takes the kernel some 10 ms; else the caller
    is to put it there (:meth:`LegGroup.take`), as one without an account could leave anyway. ``mounts``:
    what it is to see; ``workdir`` is a path as it sees it. They need one thread, too.

    Raises EntrypointError when the program cannot be executed.
    """
    group = group or LegGroup([])
    own = LegGroup([]) if account is None else group
    uid = account.uid if account else os.getuid()

    def restrict() -> None:
        _restrict(limits, own, uid)
        if mounts is not None:
            mounts.enter(account, workdir)

    # Where it begins, before there are mounts.
    folder = workdir if mounts is None else mounts.on_machine(str(workdir))
    with forked.output_pipes(_pipe) as ((out_read, out_write), (err_read, err_write)):
        if plan.form == "program":
            if account is not None:
                # Else it could not open /dev/stdout, which leads to the pipe.
                for descriptor in (out_write, err_write):
                    os.fchown(descriptor, account.uid, account.gid)
            pid = _execute(
                plan.argv, env, folder, out_write, err_write, single_threaded, account, restrict
            )
        else:
            assert account is None, "the memory of a fork holds the agent's secrets"
            pid = _fork(
                lambda: _become(plan, env, base_path or [], packages, learn_into),
                folder,
                out_write,
                err_write,
                restrict,
            )
    return UserProcess(pid, out_read, err_read, alone=single_threaded, group=group)


def _restrict(given: Limits | None, group: LegGroup, uid: int) -> None:
    if given is not None:
        group.enter()
        limits.restrict(given, uid)


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):  # the limit for ordinary users is reached
            fcntl.fcntl(write, _F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(read, False)
    return read, write


def _before_exec(account: Identity | None, restrict: Restrict) -> None:
    # A cluster that a script started in the background has inherited an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # As root, if it is: an account may not.
    restrict()
    if account is not None:
        identity.become(account)
    # After the change of ids, which makes the kernel forget it.
    forked.die_with_parent()


def _execute(
    argv: list[str],
    env: Mapping[str, str],
    workdir: Path,
    stdout: int,
    stderr: int,
    single_threaded: bool,
    account: Identity | None,
    restrict: Restrict,
) -> int:
    try:
        process = subprocess.Popen(
            argv,
            env=dict(env),
            cwd=workdir,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=partial(_before_exec, account, restrict) if single_threaded else None,
        )
    except subprocess.SubprocessError as error:
        raise OSError(
            f"the process cannot be put under its limits or its account: {error}"
        ) from error
    except OSError as error:
        raise EntrypointError(
            f"entrypoint cannot be started: {argv[0]}: {_why(error, workdir / argv[0])}"
        ) from error
    # Reaped with everything else in UserProcess.reap; Popen must not warn that nobody waited.
    process.returncode = 0
    return process.pid


def _why(error: OSError, program: Path) -> str:
    """The kernel speaks of the script where it means the interpreter of the script's first line."""
    words = error.strerror or str(error)
    if error.errno not in (errno.ENOENT, errno.ENOEXEC):
        return words
    try:
        with program.open("rb") as file:
            first = file.readline(256).removesuffix(b"\n")
    except OSError:
        return words
    if not first.startswith(b"#!"):
        return f"{words}: its first line names no interpreter (#!/bin/sh, for instance)"
    name = first[2:].strip().decode(errors="backslashreplace")
    if first.endswith(b"\r"):
        return f"its first line, #!{name}, ends in CR LF, as on Windows: save the file with LF"
    return f"{words}: the interpreter of its first line, {name}"


def _become(
    plan: StartMethod,
    env: Mapping[str, str],
    base_path: list[str],
    packages: Packages | None,
    learn_into: Path | None,
) -> NoReturn:
    known = set(sys.modules) if learn_into else set()

    def learn() -> None:
        if learn_into is not None:
            imported_modules.write(learn_into, known)

    python.run_as_main(
        plan.argv,
        as_module=plan.form == "module",
        env=env,
        base_path=packages.in_path(base_path) if packages else base_path,
        executable=str(packages.python) if packages else None,
        at_end=learn,
    )


def _fork(
    become: Callable[[], object], workdir: Path, stdout: int, stderr: int, restrict: Restrict
) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        forked.begin(parent, stdout, stderr)
        os.chdir(workdir)
        try:
            restrict()
        except OSError as error:
            os.write(2, f"the process cannot be put under its limits: {error}\n".encode())
            os._exit(1)
        become()
    finally:
        os._exit(1)
