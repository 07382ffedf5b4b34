"""Whether the agents of a pool have the program that a kind of task needs, said when one is launched."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import agents
from determined_service.scheduling.wording import listed

_AGENTS = sa.text(
    """
    SELECT id, lacks ->> :program AS command FROM agents
    WHERE resource_pool = :pool AND enabled AND NOT draining
      AND last_heartbeat > now() - interval '5 minutes'
    ORDER BY id
    """
)
_TITLES = {agents.JUPYTERLAB: "JupyterLab", agents.TENSORBOARD: "TensorBoard", agents.SSHD: "sshd"}
_WITHOUT = {
    agents.SSHD: "terminals get in there; programs (det shell open ID -- …), scp, rsync and VS Code do not"
}


async def remarks(conn: AsyncConnection, program: str | None, pool: str) -> list[str]:
    """A sentence when agents on which the task may be placed had no ``program`` when they last looked, at
    most a minute ago."""
    if program is None:
        return []
    rows = list(await conn.execute(_AGENTS, {"program": program, "pool": pool}))
    without = [row for row in rows if row.command is not None]
    if not without:
        return []
    names = listed([row.id for row in without])
    where = f"agent {names}" if len(without) == 1 else f"agents {names}"
    whole = "" if len(without) < len(rows) else f", and resource pool {pool!r} has no other agent"
    effect = _WITHOUT.get(program, "the task ends there at once")
    return [
        f"{_TITLES[program]} was not installed on {where} a minute ago{whole}: {effect}. On that machine:"
        f" {without[0].command}"
    ]
