"""What a run in Prefect is the run of: an experiment, or a task whose state the service tells Prefect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import experiments, tasks
from determined_service.lifecycle import experiments as experimenting
from determined_service.lifecycle.kinds.base import TaskKind
from determined_service.lifecycle.kinds.table import KINDS, facts_of
from determined_service.state import prefect_states, states
from determined_service.state.change import Change


@dataclass(frozen=True, slots=True)
class RunOwner(ABC):
    """``entity`` is what the outbox calls it."""

    run_id: UUID
    entity: str
    state: str
    reason: str | None

    @abstractmethod
    async def hold(self, change: Change) -> None:
        """Locks it, so that its state changes no more. Raises NotFound."""

    @abstractmethod
    async def cancel(self, change: Change) -> None:
        """What a cancel in Prefect means here. Raises NotFound."""

    @property
    def task_id(self) -> str | None:
        """Of a task."""
        return None

    def tell_end(self, change: Change) -> None:
        """Has Prefect told the end of it (held, and ended) once more."""
        prefect_states.ended(change, self.entity, self.state, self.reason, again=True)

    @abstractmethod
    async def tell_present(self, change: Change, queued: str) -> None:
        """Has Prefect told where it is (held, not ended); ``queued``: why it has no slots yet."""


@dataclass(frozen=True, slots=True)
class Experiment(RunOwner):
    """An experiment; one that has ended is told so by ``cancel`` as well."""

    id: int

    async def hold(self, change: Change) -> None:
        await experimenting.lock_experiment(change, self.id)

    async def cancel(self, change: Change) -> None:
        await experimenting.cancel(change, self.id)

    async def tell_present(self, change: Change, queued: str) -> None:
        """Its flow has said that."""


@dataclass(frozen=True, slots=True)
class Task(RunOwner):
    """A task of a kind that is mirrored."""

    id: str
    kind: TaskKind

    async def hold(self, change: Change) -> None:
        await self.kind.hold(change, self.id)

    async def cancel(self, change: Change) -> None:
        """One that ended while somebody cancelled its run is told so once more."""
        if self.state in states.TERMINAL:
            self.tell_end(change)
        else:
            await self.kind.kill(change, self.id)

    @property
    def task_id(self) -> str | None:
        return self.id

    async def tell_present(self, change: Change, queued: str) -> None:
        await prefect_states.tell_present(change, self.id, self.reason, queued)


async def find_owners(conn: AsyncConnection, run_ids: Sequence[UUID]) -> list[RunOwner]:
    """The owners of those runs, as far as there are any."""
    if not run_ids:
        return []
    e = experiments.c
    rows = await conn.execute(
        sa.select(e.id, e.flow_run_id, e.state, e.reason).where(e.flow_run_id.in_(run_ids))
    )
    found: list[RunOwner] = [
        Experiment(
            row.flow_run_id,
            prefect_states.experiment_entity(row.id),
            row.state,
            row.reason,
            row.id,
        )
        for row in rows
    ]
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
    for task_id, one in facts.items():
        row = runs[task_id]
        entity = prefect_states.task_entity(task_id)
        found.append(Task(row.flow_run_id, entity, one.state, one.reason, task_id, KINDS[row.kind]))
    return found


def mirrored_kinds() -> list[str]:
    """Names of the kinds whose state the service tells Prefect."""
    return [name for name, kind in KINDS.items() if kind.mirrored]
