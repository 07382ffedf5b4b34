"""Creates and kills tasks of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import tasks
from determined_service.base import topics
from determined_service.lifecycle.kinds.table import kind_of
from determined_service.state import states
from determined_service.state.change import Change


async def create(
    change: Change,
    task_id: str,
    kind: str,
    *,
    owner_id: int,
    name: str,
    config: Mapping[str, Any] | None = None,
    project_id: int | None = None,
    **more: Any,
) -> None:
    """A task whose state is in its row, ACTIVE from now on; it acts for the user ``owner_id``.

    ``more``: further columns of its row. Trials are made with their own rows, which hold these facts.
    """
    await change.conn.execute(
        sa.insert(tasks).values(
            id=task_id,
            kind=kind,
            owner_id=owner_id,
            name=name,
            config=None if config is None else dict(config),
            project_id=project_id,
            state=states.ACTIVE,
            **more,
        )
    )
    change.notify(topics.task(task_id))


async def kill(change: Change, task_id: str) -> None:
    """Ends the task, its process first. Raises NotFound; Conflict when tasks of its kind cannot be killed."""
    await (await kind_of(change.conn, task_id)).kill(change, task_id)
