"""Tasks whose state the service tells Prefect, found by their runs there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import tasks
from determined_service.lifecycle.kinds.base import AnyKind
from determined_service.lifecycle.kinds.table import KINDS, facts_of
from determined_service.state import prefect_states, states
from determined_service.state.change import Change


@dataclass(frozen=True, slots=True)
class MirroredTask:
    """A task with a run in Prefect; ``entity`` is the outbox's name of the task ``id``."""

    run_id: UUID
    entity: str
    state: str
    reason: str | None
    id: str
    kind: AnyKind

    async def hold(self, change: Change) -> None:
        """Locks it, so that its state changes no more. Raises NotFound."""
        await self.kind.hold(change, self.id)

    async def cancel(self, change: Change) -> None:
        """Kill it, or repeat its end to Prefect if it ended while its run was being cancelled. Raises
        NotFound."""
        if self.state in states.TERMINAL:
            self.tell_end(change)
        else:
            await self.kind.kill(change, self.id)

    def tell_end(self, change: Change) -> None:
        """Send its end (held, and ended) to Prefect again."""
        prefect_states.ended(change, self.entity, self.state, self.reason, again=True)

    async def tell_present(self, change: Change, queued: str) -> None:
        """Has Prefect told where it is (held, not ended); ``queued``: why it has no slots yet."""
        await prefect_states.tell_present(change, self.id, self.reason, queued)


async def find_tasks(conn: AsyncConnection, run_ids: Sequence[UUID]) -> list[MirroredTask]:
    """The tasks of those runs, as far as there are any."""
    if not run_ids:
        return []
    k = tasks.c
    named = await conn.execute(
        sa.select(k.id, k.kind, k.flow_run_id).where(
            # A trial's former tasks had the run that its present one has.
            k.flow_run_id.in_(run_ids),
            k.kind.in_(mirrored_kinds()),
            k.former_of.is_(None),
        )
    )
    runs = {row.id: row for row in named}
    facts = await facts_of(conn, {row.id: row.kind for row in runs.values()})
    found = []
    for task_id, one in facts.items():
        row = runs[task_id]
        entity = prefect_states.task_entity(task_id)
        found.append(
            MirroredTask(row.flow_run_id, entity, one.state, one.reason, task_id, KINDS[row.kind])
        )
    return found


def mirrored_kinds() -> list[str]:
    """Names of the kinds whose state the service tells Prefect."""
    return [name for name, kind in KINDS.items() if kind.mirrored]
