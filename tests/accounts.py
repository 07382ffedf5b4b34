"""Other accounts of this machine, for tests of access rights. Only root can make them."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from determined_deployments.local import postgres_user
from determined_deployments.local.component import RunAs


@contextlib.contextmanager
def made(count: int) -> Iterator[list[pwd.struct_passwd]]:
    """New accounts that can run this interpreter; they are removed at the end. Skips the test without root.

    Folders above the interpreter get the bit with which others pass through, as `cluster-up` does it.
    """
    useradd = shutil.which("useradd")
    if os.geteuid() != 0 or useradd is None:
        pytest.skip("only root can add accounts to this machine (with useradd)")
    names = [f"det-test-{secrets.token_hex(4)}" for _ in range(count)]
    try:
        for name in names:
            _run(useradd, "--no-create-home", "--shell", "/bin/sh", "--user-group", name)
        accounts = [pwd.getpwnam(name) for name in names]
        for account in accounts:
            user = RunAs(account.pw_name, account.pw_uid, account.pw_gid)
            python = Path(sys.executable)
            for target in (python, python.resolve(), Path(os.__file__), Path(__file__)):
                postgres_user.open_the_way(user, target, lambda note: None)
        yield accounts
    finally:
        for name in names:
            subprocess.run(["userdel", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    # Another test process may hold the lock of /etc/passwd.
    for _ in range(50):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"{command}: {done.stderr}")


@contextlib.contextmanager
def passable_folder() -> Iterator[Path]:
    """A temporary folder that other accounts may pass through; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="det-open-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder
