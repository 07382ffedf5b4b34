"""The account that a task's processes run as, when it is not the agent's own (docs/operate/security.md).

The supervisor stays root. It takes the account's effective ids for work on files that the task can reach:
a link that the task has laid must not lead root anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from determined.common.forking import process as forked
from determined.common.wire.legs import AgentUser
from determined.storage import beneath

UMASK = 0o077
"""Of processes under another account: nobody else reads what they write."""

INHERITED = (
    *("PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ", "TERM"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    # By it the local cluster finds the processes that it must end.
    "DETERMINED_LOCAL_CLUSTER",
)
INHERITED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "ROCR_", "HIP_", "NCCL_", "OMP_", "MKL_")


class IdentityError(Exception):
    """The task cannot run as it should; the message says who can change that."""


@dataclass(frozen=True)
class Identity:
    """An account of this machine. ``groups``: all of them, ``gid`` included."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: Path

    def __str__(self) -> str:
        return f"{self.name} (uid {self.uid}, gid {self.gid})"


def resolve(
    linked: AgentUser | None,
    default: AgentUser | None,
    *,
    allow_root: bool,
    agent_id: str,
) -> Identity | None:
    """The account for a task whose owner has ``linked``, on an agent with the setting ``default``.

    None: the agent's own, because neither is given or both are the same. Raises IdentityError for an account
    that this machine does not have, for root unless ``allow_root``, and when this process is not root.
    """
    wanted, origin = (
        (linked, "linked to the owner")
        if linked is not None
        else (default, "the agent's security.default_task")
    )
    if wanted is None:
        return None
    account, group = _account(wanted, origin, agent_id), _group(wanted, origin, agent_id)
    uid, gid = account.pw_uid, account.pw_gid if group is None else group
    if 0 in (uid, gid) and not allow_root:
        raise IdentityError(
            f"{_shown(wanted)} ({origin}) is root, and agent {agent_id} starts no task as root: name another"
            " account, or set security.allow_root in the agent's configuration"
        )
    if uid == os.getuid() and (uid == 0 or gid == os.getgid()):
        return None
    if os.geteuid() != 0:
        raise IdentityError(
            f"the task must run as {account.pw_name} (uid {uid}; {origin}), but agent {agent_id} runs as uid"
            f" {os.geteuid()}, and only root may start processes of another user: start the agent as root, or"
            " take the account away"
        )
    groups = tuple(sorted({gid, *os.getgrouplist(account.pw_name, gid)}))
    return Identity(account.pw_name, uid, gid, groups, Path(account.pw_dir))


def _shown(wanted: AgentUser) -> str:
    given = {
        "uid": wanted.uid,
        "user": wanted.user,
        "gid": wanted.gid,
        "group": wanted.group,
    }
    return ", ".join(f"{key} {value}" for key, value in given.items() if value is not None)


def _account(wanted: AgentUser, origin: str, agent_id: str) -> pwd.struct_passwd:
    if wanted.uid is None and not wanted.user:
        raise IdentityError(f"{_shown(wanted) or 'an empty account'} ({origin}): no user is named")
    try:
        if wanted.uid is None:
            return pwd.getpwnam(str(wanted.user))
        found = pwd.getpwuid(wanted.uid)
    except (KeyError, OverflowError):
        name = wanted.user or "NAME"
        number = "" if wanted.uid is None else f"-u {wanted.uid} "
        raise IdentityError(
            f"the task must run as {_shown(wanted)} ({origin}), which the machine of agent {agent_id} does"
            f" not know: add the account there (useradd {number}{name}), or name another"
        ) from None
    if wanted.user and found.pw_name != wanted.user:
        raise IdentityError(
            f"the task must run as {_shown(wanted)} ({origin}), but uid {wanted.uid} is {found.pw_name} on"
            f" the machine of agent {agent_id}: make number and name agree"
        )
    return found


def _group(wanted: AgentUser, origin: str, agent_id: str) -> int | None:
    if wanted.gid is None and not wanted.group:
        return None
    try:
        if wanted.gid is None:
            return grp.getgrnam(str(wanted.group)).gr_gid
        found = grp.getgrgid(wanted.gid)
    except (KeyError, OverflowError):
        raise IdentityError(
            f"the task must run as {_shown(wanted)} ({origin}), a group that the machine of agent {agent_id}"
            " does not know: add it there (groupadd), or name another"
        ) from None
    if wanted.group and found.gr_name != wanted.group:
        raise IdentityError(
            f"the task must run as {_shown(wanted)} ({origin}), but gid {wanted.gid} is {found.gr_name} on"
            f" the machine of agent {agent_id}: make number and name agree"
        )
    return found.gr_gid


@contextlib.contextmanager
def files_of(identity: Identity | None) -> Iterator[None]:
    """In the block this process has the account's rights to files. For a process with one thread."""
    if identity is None:
        yield
        return
    before, umask = os.getgroups(), os.umask(UMASK)
    os.setgroups(identity.groups)
    os.setegid(identity.gid)
    os.seteuid(identity.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)
        os.umask(umask)


def own_name() -> str | None:
    """The name of the account that this process runs as; None: it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None


def inherited(identity: Identity | None, env: Mapping[str, str]) -> dict[str, str]:
    """The part of the agent's environment that a task inherits.

    Under the agent's own account everything; another account gets neither root's secrets nor its
    directories.
    """
    if identity is None:
        return dict(env)
    return {
        key: value
        for key, value in env.items()
        if key in INHERITED or key.startswith(INHERITED_PREFIXES)
    }


def variables(identity: Identity | None, workdir: Path) -> dict[str, str]:
    """``HOME``, ``USER`` and ``LOGNAME``. An account whose home it cannot use gets ``workdir``. So does an
    account without a name, as in a pod; its number is its name then."""
    if identity is None:
        if own_name() is not None:
            return {}
        number = str(os.getuid())
        return {"HOME": str(workdir), "USER": number, "LOGNAME": number}
    with files_of(identity):
        # access() asks for the real ids.
        usable = os.access(identity.home, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
    home = identity.home if usable else workdir
    return {"HOME": str(home), "USER": identity.name, "LOGNAME": identity.name}


def give(identity: Identity, root: Path) -> None:
    """Make ``root`` and everything below it the account's.

    ``root`` itself comes last: until then the account must not be able to enter it, or it could put links
    in the way.
    """
    for folder, names, files in os.walk(root, topdown=False, followlinks=False):
        for name in (*names, *files):
            os.chown(Path(folder) / name, identity.uid, identity.gid, follow_symlinks=False)
    os.chown(root, identity.uid, identity.gid, follow_symlinks=False)


def let_pass(folders: Iterable[Path]) -> None:
    """Others may pass through the folders, and not list them."""
    for folder in folders:
        if folder.stat().st_mode & 0o7777 != 0o711:
            folder.chmod(0o711)


OPEN_TO_ALL, OWN_ONLY = 0o1777, 0o711


def let_store(storage: Path, cluster_id: str) -> None:
    """Every account may store checkpoints and TensorBoard's files there, as in ``/tmp``: it sees the others'
    names, and can neither read nor remove what they have.

    Raises IdentityError when another account has made one of the cluster's own directories there before.
    """
    folders = {
        **dict.fromkeys((cluster_id, f"{cluster_id}/notebook"), OPEN_TO_ALL),
        # The service alone writes there.
        f"{cluster_id}/mlflow": OWN_ONLY,
        f"{cluster_id}/tensorboard": OPEN_TO_ALL,
        str(tensorboard_prefix(cluster_id)): OPEN_TO_ALL,
    }
    storage.mkdir(parents=True, exist_ok=True)
    with beneath.opened(storage) as top:
        for path, mode in folders.items():
            try:
                with beneath.made(top, f"{path}/any") as (folder, _):
                    _open_to(folder, storage / path, mode)
            except OSError as error:
                if not beneath.is_link(error) and not isinstance(error, PermissionError):
                    raise
                raise IdentityError(
                    f"{storage / path}: {error.strerror}; only the cluster may make this directory: as root, "
                    "move it away"
                ) from None
        # Last: until then nobody else makes a directory in it.
        _open_to(top, storage, OPEN_TO_ALL)


def _open_to(folder: int, path: Path, mode: int) -> None:
    status = os.fstat(folder)
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError(
            errno.EACCES, f"the directory belongs to uid {status.st_uid}", str(path)
        )
    if status.st_mode & 0o7777 != mode:
        os.fchmod(folder, mode)


def tensorboard_prefix(cluster_id: str) -> Path:
    """The folder that has a directory for each experiment."""
    return Path(cluster_id, "tensorboard", "experiment")


def require_reach(identity: Identity, *paths: Path) -> None:
    """Raises IdentityError unless the account can read ``paths``. It names the folder that is closed."""
    for path in paths:
        for real in dict.fromkeys((path, Path(os.path.realpath(path)))):
            with files_of(identity):
                closed = _closed(real)
            if closed is not None:
                raise IdentityError(
                    f"the task must run as {identity}, who cannot reach {real}: {closed} is closed to others"
                    f" (as root: chmod o+x {closed})"
                )


def _closed(path: Path) -> Path | None:
    try:
        path.stat()
        return None
    except PermissionError:
        pass
    for folder in reversed(path.parents):
        try:
            # A Path would leave the dot out, with which the kernel asks whether it may be entered.
            os.stat(f"{folder}/.")  # noqa: PTH116
        except PermissionError:
            # A folder may be a link; then the closed folder lies above its target.
            real = Path(os.path.realpath(folder))
            return folder if real == folder else _closed(real) or real
    return path.parent


def interpreter() -> tuple[Path, ...]:
    """The files that a Python program of ours must reach."""
    return (Path(sys.executable), Path(os.__file__), Path(forked.__file__))


def become(identity: Identity) -> None:
    """The last step of a process with one thread before ``exec``: no program gives rights back, no sudo
    either."""
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    os.umask(UMASK)
    forked.no_new_privileges()
