"""Ends the work of an owner who is deactivated."""

from __future__ import annotations

import sqlalchemy as sa

from determined.common.wire.kinds import TaskKind
from determined_registry.database.tables import experiments, tasks
from determined_service.lifecycle.kinds.table import launched_kinds
from determined_service.lifecycle.tasks import kill
from determined_service.state import states
from determined_service.state.change import Change

ENTERED = (TaskKind.SHELL.name, TaskKind.NOTEBOOK.name)
"""Kinds of task that people enter; they are closed once the owner is deactivated."""


async def leave(change: Change, user_id: int) -> dict[str, list[int] | list[str]]:
    """End the user's shells and notebooks. Returns ids of the ``experiments`` and ``tasks`` that go on."""
    t, e = tasks.c, experiments.c
    found = await change.conn.execute(
        sa.select(t.id, t.kind)
        .where(t.owner_id == user_id, t.kind.in_(launched_kinds()), t.state.not_in(states.TERMINAL))
        .order_by(t.id)
    )
    going_on = []
    for row in found.all():
        if row.kind in ENTERED:
            await kill(change, row.id)
        else:
            going_on.append(str(row.id))
    left = await change.conn.execute(
        sa.select(e.id).where(e.owner_id == user_id, e.state.not_in(states.TERMINAL)).order_by(e.id)
    )
    return {"experiments": [int(one) for one in left.scalars()], "tasks": going_on}
