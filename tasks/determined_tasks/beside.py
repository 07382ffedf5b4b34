"""Starts a program beside a task's own on this machine: the same account, environment and packages."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from determined.common.forking import process as forked
from determined.common.wire import doors
from determined_tasks import identity
from determined_tasks.context_dir import ContextDir
from determined_tasks.doors import EntryError
from determined_tasks.identity import Identity


@dataclass(frozen=True)
class Entry:
    """Where and as whom. ``env``: the task's environment."""

    env: Mapping[str, str]
    work_dir: Path
    context: ContextDir
    account: Identity | None

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
        try:
            process = subprocess.Popen(
                # Without the task's PYTHONPATH, which is the program's alone.
                [str(self.context.packages.python), "-I", "-m", doors.PROGRAM],
                env={**self.env, **own, **variables},
                cwd=self.work_dir,
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=account.groups if account else None,
                umask=identity.UMASK if account else -1,
            )
        except OSError as error:
            raise EntryError(f"no program can be started beside the task: {error}") from error
        # The supervisor may have reaped it, with everything else that it inherits.
        with contextlib.suppress(ChildProcessError):
            process.wait()
