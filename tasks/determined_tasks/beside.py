"""Starts a program beside a task's own on this machine: the same account, environment and packages."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from determined.common.forking import process as forked
from determined.common.wire import doors
from determined_tasks import enter, identity
from determined_tasks.context_dir import ContextDir
from determined_tasks.doors import EntryError
from determined_tasks.identity import Identity
from determined_tasks.leg_groups import LegGroup
from determined_tasks.limits import Limits


@dataclass(frozen=True)
class ProcessEntry:
    """The leg's surroundings, for a program beside it. ``env``: the task's environment. ``mounted``: the
    process whose mounts the program sees, if the leg has any."""

    env: Mapping[str, str]
    work_dir: Path
    context: ContextDir
    account: Identity | None
    limits: Limits
    group: LegGroup
    mounted: int | None = None

    def __call__(self, connection: socket.socket, variables: Mapping[str, str]) -> None:
        """Joins a program of the task's account to the connection, and waits for its end. For a thread of
        its own, which the kernel has lose its way to more rights."""
        account = self.account
        if account is not None:
            forked.no_new_privileges()
        own = {
            doors.WORK_DIR: str(self.work_dir),
            doors.SUPERVISOR: str(os.getpid()),
            doors.RUN_DIR: str(self.context.run_dir),
        }
        # Without the task's PYTHONPATH, which is the program's alone.
        argv = [str(self.context.packages.python), "-I", "-m", doors.PROGRAM]
        ids = (account.uid, account.gid, account.groups) if account is not None else ()
        env = {**self.env, **own, **variables}
        descriptor = enter.order(
            argv, env, self.limits, self.group, ids, self.work_dir, self.mounted
        )
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", enter.MODULE, str(descriptor)],
                pass_fds=[descriptor],
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                umask=identity.UMASK if account else -1,
            )
        except OSError as error:
            raise EntryError(f"no program can be started beside the task: {error}") from error
        finally:
            os.close(descriptor)
        # The supervisor may have reaped it, with everything else that it inherits.
        with contextlib.suppress(ChildProcessError):
            process.wait()
