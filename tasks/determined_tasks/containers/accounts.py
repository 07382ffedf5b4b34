"""Chooses the account of the processes in a container."""

from __future__ import annotations

import os
from pathlib import Path

from determined.common.wire.legs import AgentUser
from determined_tasks import identity
from determined_tasks.containers.settings import WORKDIR
from determined_tasks.identity import Identity, IdentityError


def resolve(
    linked: AgentUser | None, default: AgentUser | None, *, allow_root: bool, agent_id: str
) -> Identity | None:
    """Like :func:`identity.resolve`, but numbers alone need no account on this machine, because an image has
    separate accounts. Raises IdentityError."""
    wanted = linked if linked is not None else default
    if wanted is None or wanted.uid is None or wanted.gid is None:
        return identity.resolve(linked, default, allow_root=allow_root, agent_id=agent_id)
    name = wanted.user or str(wanted.uid)
    if 0 in (wanted.uid, wanted.gid) and not allow_root:
        raise IdentityError(
            f"uid {wanted.uid}, gid {wanted.gid} is root, and agent {agent_id} starts no task as root: name"
            " another account, or set security.allow_root in the agent's configuration"
        )
    if (wanted.uid, wanted.gid) == (os.getuid(), os.getgid()):
        return None
    if os.geteuid() != 0:
        raise IdentityError(
            f"the task must run as {name} (uid {wanted.uid}), but agent {agent_id} runs as uid"
            f" {os.geteuid()} and cannot give the task's files to anyone: run the agent as root, or name no"
            " account"
        )
    return Identity(name, wanted.uid, wanted.gid, (wanted.gid,), Path(WORKDIR))


def is_root(account: Identity | None) -> bool:
    """True if the container's processes are the machine's root."""
    return (os.getuid() if account is None else account.uid) == 0


def user(account: Identity | None) -> str:
    """``uid:gid`` of the container's processes."""
    if account is None:
        return f"{os.getuid()}:{os.getgid()}"
    return f"{account.uid}:{account.gid}"
