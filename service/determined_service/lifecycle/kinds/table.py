"""The kinds there are, by name. One more is one more line in :data:`KINDS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.base.errors import NotFound
from determined_service.lifecycle.kinds.base import AnyKind, SlotKind, TaskFacts
from determined_service.lifecycle.kinds.checkpoint_gc import CheckpointGcKind
from determined_service.lifecycle.kinds.command import CommandKind
from determined_service.lifecycle.kinds.generic import GenericKind
from determined_service.lifecycle.kinds.launched import LaunchedKind
from determined_service.lifecycle.kinds.notebook import NotebookKind
from determined_service.lifecycle.kinds.shell import ShellKind
from determined_service.lifecycle.kinds.tensorboard import TensorboardKind
from determined_service.lifecycle.kinds.trial import TrialKind
from determined_service.state.change import Change

_TRIAL = TrialKind()
GENERIC = GenericKind()
KINDS: dict[str, AnyKind] = {
    kind.name: kind
    for kind in (
        _TRIAL,
        CheckpointGcKind(),
        CommandKind(),
        NotebookKind(),
        ShellKind(),
        TensorboardKind(),
        GENERIC,
    )
}

_KIND_OF = sa.text("SELECT kind FROM tasks WHERE id = :id")
_KIND_OF_LEG = sa.text(
    "SELECT k.kind FROM allocations a JOIN tasks k ON k.id = a.task_id WHERE a.id = :id"
)


def slot_kind(name: str) -> SlotKind:
    """The kind of a task that has allocations."""
    kind = KINDS[name]
    assert isinstance(kind, SlotKind), f"tasks of kind {name} hold no slots"
    return kind


def launched_kinds() -> dict[str, LaunchedKind[Any]]:
    """The kinds that people launch, by name."""
    return {name: kind for name, kind in KINDS.items() if isinstance(kind, LaunchedKind)}


async def kind_of(conn: AsyncConnection, task_id: str) -> AnyKind:
    """Raises NotFound."""
    name = (await conn.execute(_KIND_OF, {"id": task_id})).scalar_one_or_none()
    if name is None:
        raise NotFound(f"task {task_id!r} does not exist")
    return KINDS[name]


async def lock_leg(change: Change, allocation_id: str) -> tuple[SlotKind, sa.Row[Any]]:
    """The kind of the allocation's task, and what its :meth:`SlotKind.lock_leg` gives. Raises NotFound.

    Nearly all legs are trials': their statement, which finds trials only, comes before the kind is asked
    for, and saves a statement at each leg's end.
    """
    leg = await _TRIAL.lock_leg(change, allocation_id)
    if leg is not None:
        return _TRIAL, leg
    name = (await change.conn.execute(_KIND_OF_LEG, {"id": allocation_id})).scalar_one_or_none()
    leg = None if name is None else await slot_kind(name).lock_leg(change, allocation_id)
    if name is None or leg is None:
        raise NotFound(f"allocation {allocation_id} does not exist")
    return slot_kind(name), leg


async def facts_of(conn: AsyncConnection, kinds: Mapping[str, str]) -> dict[str, TaskFacts]:
    """Of each task in ``kinds`` (task id to the name of its kind): one statement for each kind."""
    by_kind: dict[str, list[str]] = {}
    for task_id, name in kinds.items():
        by_kind.setdefault(name, []).append(task_id)
    found: dict[str, TaskFacts] = {}
    for name, ids in by_kind.items():
        found |= await KINDS[name].facts(conn, ids)
    return found
