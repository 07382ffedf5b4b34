"""``--task-user``: the account that trials run as on a cluster that root has started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from determined.common.wire.legs import AgentUser
from determined_deployments.agent.config import DefaultTask
from determined_deployments.local import postgres_user
from determined_deployments.local.component import RunAs
from determined_deployments.local.errors import ClusterError
from determined_tasks import identity
from determined_tasks.identity import IdentityError


def read(option: str) -> DefaultTask | None:
    """``USER`` or ``USER:GROUP``, names or numbers; None for the empty string. Raises ClusterError."""
    user, colon, group = option.partition(":")
    if not option:
        return None
    if not user or (colon and not group):
        raise ClusterError(f"--task-user: expected USER or USER:GROUP, found {option!r}")
    wanted = DefaultTask(
        user=None if user.isdecimal() else user,
        uid=int(user) if user.isdecimal() else None,
        group=None if not group or group.isdecimal() else group,
        gid=int(group) if group.isdecimal() else None,
    )
    account(wanted)
    return wanted


def account(wanted: DefaultTask) -> RunAs | None:
    """The account on this machine; None: the caller's own. Raises ClusterError."""
    try:
        return _account(wanted)
    except IdentityError as error:
        raise ClusterError(f"--task-user: {error}") from None


def open_the_ways(wanted: DefaultTask | None, work_dir: Path, note: Callable[[str], None]) -> None:
    """Let the account pass through the folders above this interpreter and above an agent's ``work_dir``;
    ``note`` gets the changes. Raises ClusterError."""
    user = None if wanted is None else account(wanted)
    if user is not None:
        python = Path(sys.executable)
        for target in (python, python.resolve(), Path(os.__file__), work_dir / "any"):
            postgres_user.open_the_way(user, target, note)


def what_is_wrong(recorded: DefaultTask) -> str:
    """The reason why the account of an earlier ``cluster-up`` cannot be used any more, and the remedy; empty:
    it can."""
    try:
        _account(recorded)
    except IdentityError as error:
        return (
            f"the account that an earlier --task-user gave to trials cannot be used any more: {error}; drop "
            "it with `det deploy local cluster-up --task-user ''` (trials then run as the cluster's own "
            "account), or give another one with --task-user USER[:GROUP]"
        )
    return ""


def _account(wanted: DefaultTask) -> RunAs | None:
    given = AgentUser(**wanted.model_dump())
    found = identity.resolve(None, given, allow_root=os.geteuid() == 0, agent_id="agent")
    return RunAs(found.name, found.uid, found.gid) if found else None
