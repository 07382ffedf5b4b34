"""A shell: sshd and terminals in a task, which its owner enters with the shell's own key."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import ClusterConfig
from determined.common.wire import shells
from determined.common.wire.agents import SSHD
from determined.common.wire.kinds import TaskKind
from determined.common.wire.legs import Port
from determined.expconf.tasks import ShellConfig
from determined_service.base.aside import aside
from determined_service.base.errors import BadRequest
from determined_service.base.json import dumps
from determined_service.base.ssh_keys import new_key
from determined_service.lifecycle.kinds.base import user_ports
from determined_service.lifecycle.kinds.launched import LaunchContext, LaunchedKind, LaunchFields
from determined_service.state import states
from determined_service.state.change import Change

# Not from the user's directory, whose files may have the names of modules.
ENTRYPOINT = ["python3", "-P", "-m", "determined.exec.shell"]
_OPENED = sa.text(
    "UPDATE tasks SET data = data || CAST(:door AS jsonb) WHERE id = :id AND kind = :kind"
)
_IDLE_FROM_NOW = sa.text(
    "UPDATE tasks SET idle_since = now() WHERE id = :id AND idle_since IS NULL"
)


class ShellKind(LaunchedKind):
    """``det shell``. ``data``: ``private_key``, ``public_key``, ``key_type``, and ``door`` (a
    :class:`~determined.common.wire.shells.Door`) once its process has said that it can be entered."""

    name, noun = TaskKind.SHELL.name, TaskKind.SHELL.value
    title = "Shell"
    program = SSHD
    config_class = ShellConfig

    def settle(self, config: dict[str, Any], cluster: ClusterConfig) -> None:
        # The configuration of another shell may be sent again.
        if config["entrypoint"] not in (None, ENTRYPOINT):
            raise BadRequest(
                "entrypoint: a shell has its own, which lets you in: leave it out, or run the program with"
                " det cmd run"
            )
        config["entrypoint"] = ENTRYPOINT

    async def remember(
        self,
        conn: AsyncConnection,
        asked: LaunchFields,
        config: dict[str, Any],
        context: LaunchContext,
    ) -> dict[str, Any]:
        # The first one imports for 30 ms.
        key = await aside(0, new_key, "determined-shell")
        return {"private_key": key.private, "public_key": key.public, "key_type": key.type}

    def order(self, row: sa.Row[Any]) -> dict[str, Any]:
        secret = shells.terminal_secret(row.data["private_key"])
        return {
            **super().order(row),
            "env": {
                shells.PUBLIC_KEY: row.data["public_key"],
                shells.SECRET_HASH: shells.hash_of(secret),
            },
            "ports": [
                Port(name=shells.SSH, env=shells.SSH_PORT, tcp=True, default=True),
                Port(name=shells.TERMINAL, env=shells.TERMINAL_PORT, tcp=True),
                *user_ports(row.config.get("environment") or {}, default=False),
            ],
        }

    def is_ready(self, allocation: sa.Row[Any]) -> bool:
        return allocation.state == states.RUNNING and "door" in (allocation.data or {})

    async def started(self, change: Change, leg: sa.Row[Any]) -> None:
        await super().started(change, leg)
        # Nobody is in there yet.
        await change.conn.execute(_IDLE_FROM_NOW, {"id": leg.task_id})

    def shown(self, row: sa.Row[Any], *, owns: bool) -> dict[str, Any]:
        door = shells.Door.from_json(row.data.get("door") or {})
        group = row.agent_user_group or {}
        # Determined's client logs in with the name that stands here.
        account = {
            "agentUid": group.get("agentUid"),
            "agentGid": group.get("agentGid"),
            "agentUser": door.account or group.get("agentUser"),
            "agentGroup": group.get("agentGroup"),
            "user": door.account or group.get("agentUser"),
        }
        return {
            "addresses": [],
            "agentUserGroup": account,
            "publicKey": row.data["public_key"],
            "keyType": row.data["key_type"],
            "hostKey": door.host_key,
            "noSsh": door.no_ssh,
            "noTty": door.no_tty,
        }

    def secrets(self, row: sa.Row[Any]) -> dict[str, Any]:
        return {"privateKey": row.data["private_key"]}


async def open_door(change: Change, task_id: str, door: shells.Door) -> None:
    """The process of the shell can be entered."""
    given = dumps({"door": door.to_json()}).decode()
    await change.conn.execute(_OPENED, {"id": task_id, "door": given, "kind": ShellKind.name})
