"""The system user Postgres runs as when the cluster is started by root (it refuses root)."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from determined_deployments.local.component import RunAs
from determined_deployments.local.errors import ClusterError

USER = "determined-postgres"
FALLBACK = "nobody"
"""Used if no user can be added (no useradd, read-only /etc)."""


def choose(data: Path) -> RunAs | None:
    """The user that the server of ``data`` runs as; None: the caller.

    An existing data folder stays with its owner, because Postgres insists on owning it.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        return _by_uid(data.stat().st_uid)
    try:
        return _named(USER)
    except KeyError:
        pass
    useradd = shutil.which("useradd")
    if useradd:
        command = [useradd, "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", USER]
        if subprocess.run(command, capture_output=True, timeout=30).returncode == 0:
            return _named(USER)
    try:
        return _named(FALLBACK)
    except KeyError:
        raise ClusterError(
            "Postgres does not run as root, and no other user could be created: run this command as "
            "an ordinary user, or give a server with --db-url"
        ) from None


def is_made() -> bool:
    """True if this machine has :data:`USER`, and the caller could remove it."""
    try:
        return bool(_named(USER)) and os.geteuid() == 0
    except KeyError:
        return False


def open_the_way(user: RunAs, target: Path, note: Callable[[str], None]) -> None:
    """Let ``user`` pass through (not list) the folders above ``target``. Returns what it changed."""
    for folder in reversed(target.absolute().parents):
        info = folder.stat()
        mode = stat.S_IMODE(info.st_mode)
        if not _may_enter(user, info.st_uid, info.st_gid, mode):
            folder.chmod(mode | stat.S_IXOTH)
            note(f"{folder}: mode {mode:04o} -> {mode | stat.S_IXOTH:04o}, for user {user.name}")


def _may_enter(user: RunAs, owner: int, group: int, mode: int) -> bool:
    if owner == user.uid:
        return bool(mode & stat.S_IXUSR)
    if group == user.gid:
        return bool(mode & stat.S_IXGRP)
    return bool(mode & stat.S_IXOTH)


def _named(name: str) -> RunAs:
    entry = pwd.getpwnam(name)
    return RunAs(name, entry.pw_uid, entry.pw_gid)


def _by_uid(uid: int) -> RunAs:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise ClusterError(
            f"the database folder belongs to user id {uid}, which this system does not know; "
            f"`chown -R` it to {USER!r} (or to a user of your choice)"
        ) from None
    return RunAs(entry.pw_name, uid, entry.pw_gid)
