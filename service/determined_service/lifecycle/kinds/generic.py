"""A generic task: a command that can be paused, and stand under another task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.legs import going_away
from determined.expconf.tasks import GenericConfig
from determined_registry.database.tables import tasks
from determined_service.base import topics
from determined_service.base.errors import BadRequest, Conflict
from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle.exits import LegExit, Outcome
from determined_service.lifecycle.kinds.base import LegEnd
from determined_service.lifecycle.kinds.launched import LaunchContext, LaunchedKind, LaunchFields
from determined_service.state import prefect_states, states, task_kinds
from determined_service.state.change import Change
from determined_service.state.states import TASK, transition

PAUSED = "paused by the user"
GIVEN = "given"
"""In ``tasks.data``: the configuration that was sent, before it was completed."""
_TASK = sa.text(
    "SELECT state, config, data FROM tasks WHERE id = :id AND kind = :kind FOR NO KEY UPDATE"
)
_BELOW = """
    SELECT k.id FROM tasks k JOIN tree ON k.parent_id = tree.id
) SELECT id FROM tree ORDER BY id
"""
_SELF = sa.text(f"WITH RECURSIVE tree AS (SELECT cast(:id AS text) AS id UNION {_BELOW}")
_ROOT = sa.text(
    f"""
    WITH RECURSIVE line AS (
        SELECT id, parent_id FROM tasks WHERE id = :id
        UNION SELECT k.id, k.parent_id FROM tasks k JOIN line ON k.id = line.parent_id
    ), tree AS (SELECT id FROM line WHERE parent_id IS NULL UNION {_BELOW}
    """
)


class GenericFields(LaunchFields):
    """The fields that only generic tasks have, besides those that lead to other tasks."""

    no_pause: bool = Field(default=False, description="It cannot be paused.")


class GenericKind(LaunchedKind[GenericFields]):
    """``det task create``. Paused, its process ends and its slots are free; unpaused, it begins anew."""

    name = task_kinds.GENERIC
    noun = "generic"
    title = "Task"
    config_class = GenericConfig
    fields = GenericFields
    # It is launched at a different address, with other fields.
    launches = False

    async def remember(
        self,
        conn: AsyncConnection,
        asked: GenericFields,
        config: dict[str, Any],
        context: LaunchContext,
    ) -> dict[str, Any] | None:
        no_pause = {"no_pause": True} if asked.no_pause else {}
        return {GIVEN: context.given, **no_pause}

    async def config(self, conn: AsyncConnection, task_id: str) -> Mapping[str, Any] | None:
        """As it was given: scripts compare it with what they have sent."""
        given = sa.func.coalesce(tasks.c.data[GIVEN], tasks.c.config)
        found = await conn.execute(sa.select(given).where(tasks.c.id == task_id))
        return found.scalar_one_or_none()

    async def judge(self, change: Change, leg: sa.Row[Any], exit: LegExit) -> LegEnd:
        """Do not end a task whose process ends because the task was paused, or its machine goes away."""
        asked = leg.preempt_requested_at is not None or leg.kill_requested_at is not None
        if not asked or leg.task_state not in (states.PAUSED, states.ACTIVE):
            return await super().judge(change, leg, exit)
        words = PAUSED
        if leg.leaving is not None and leg.task_state == states.ACTIVE:
            row = await self._lock(change, leg.task_id)
            if not exit.failed or (row.data or {}).get("no_pause"):
                return await super().judge(change, leg, exit)
            words = going_away(leg.leaving)

        async def go_on(change: Change) -> None:
            if leg.task_state == states.ACTIVE:  # it was unpaused before its process had ended
                await self._queue(change, leg.task_id)
            else:
                prefect_states.paused(change, leg.task_id, PAUSED)
            change.notify(topics.task(leg.task_id))

        return LegEnd(Outcome.PREEMPTED, words, go_on)

    async def pause(self, change: Change, task_id: str) -> None:
        """Its process ends, at once or after ``preemption_timeout`` seconds, and it waits for no slots.

        Raises BadRequest for a task that cannot be paused, Conflict for one that ends.
        """
        row = await self._lock(change, task_id)
        if row.state == states.PAUSED:
            return
        if (row.data or {}).get("no_pause"):
            raise BadRequest(f"task {task_id} was created with noPause: it can only be killed")
        if row.state != states.ACTIVE:
            raise Conflict(f"task {task_id} is {row.state}: only what runs or waits can be paused")
        await transition(change, TASK, task_id, states.PAUSED, reason=PAUSED)
        live = await allocating.live_of_task(change, task_id)
        if live is None or live.state == states.REQUESTED:
            if live is not None:
                await allocating.withdraw(change, live.id, PAUSED)
            prefect_states.paused(change, task_id, PAUSED)
        elif row.config.get("preemption_timeout") is not None:
            await allocating.preempt(change, live.id)
        else:
            await allocating.kill(change, live.id)

    async def unpause(self, change: Change, task_id: str) -> None:
        """It waits for slots again. Raises Conflict for a task that ends."""
        row = await self._lock(change, task_id)
        if row.state == states.ACTIVE:
            return
        if row.state != states.PAUSED:
            raise Conflict(f"task {task_id} is {row.state}: only a paused task can go on")
        await transition(change, TASK, task_id, states.ACTIVE, reason=None)
        if await allocating.live_of_task(change, task_id) is None:
            await self._queue(change, task_id)

    async def pause_if_possible(self, change: Change, task_id: str) -> None:
        """As :meth:`pause`; what cannot be paused stays as it is."""
        row = await self._lock(change, task_id)
        if row.state == states.ACTIVE and not (row.data or {}).get("no_pause"):
            await self.pause(change, task_id)

    async def unpause_if_paused(self, change: Change, task_id: str) -> None:
        """Like :meth:`unpause`, but a task that has ended stays as it is."""
        if (await self._lock(change, task_id)).state == states.PAUSED:
            await self.unpause(change, task_id)

    async def tree(
        self, conn: AsyncConnection, task_id: str, *, from_root: bool = False
    ) -> list[str]:
        """The task and all that stand under it; ``from_root``: the whole tree in which it stands."""
        found = await conn.execute(_ROOT if from_root else _SELF, {"id": task_id})
        return list(found.scalars())

    async def _lock(self, change: Change, task_id: str) -> sa.Row[Any]:
        row = (await change.conn.execute(_TASK, {"id": task_id, "kind": self.name})).first()
        if row is None:
            raise BadRequest(f"task {task_id} is not a generic task: only those can be paused")
        return row

    async def _queue(self, change: Change, task_id: str) -> None:
        resources = (await self._lock(change, task_id)).config["resources"]
        await allocating.request(
            change,
            task_id,
            pool=resources["resource_pool"],
            slots=resources["slots"],
            priority=resources["priority"],
        )
        prefect_states.awaiting_slots(change, task_id, "it waits for slots")
