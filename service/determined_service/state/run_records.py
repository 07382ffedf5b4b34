"""Flow runs that are kept alive: the records of their owners and of the flows.

An owner is an experiment, a pipeline or a deletion, named by its column of `kept_runs` and its id. Code that
begins, resumes or ends one calls this module in the same transaction. The leader's keeper
(:mod:`determined_service.prefect.keeper`) makes the run, starts it again when it is interrupted, and gives it
its end.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import kept_runs
from determined_service.base import topics
from determined_service.state.change import Change

r = kept_runs.c
EXPERIMENT, PIPELINE, DELETION = r.experiment_id, r.pipeline_id, r.deletion_id
OwnerColumn = sa.Column[Any]
"""One of these columns."""

QUIET_S = 20.0
"""A driver of a search that has not asked for this long is looked up in Prefect."""
LOST_S = 60.0
"""A driver that has not asked for this long, though its run is shown as running, is given up."""


async def want(change: Change, owner: OwnerColumn, id: int) -> None:
    """Order a run for the owner, unless it has one or one is ordered already."""
    wanted = insert(kept_runs).values({owner: id}).on_conflict_do_nothing(index_elements=[owner])
    await change.conn.execute(wanted)
    change.notify(topics.KEPT_RUNS)


async def wake(change: Change, owner: OwnerColumn, id: int) -> None:
    """Has the run of an owner that goes on after its end started again, or made if there is none."""
    now = sa.func.now()
    await change.conn.execute(
        insert(kept_runs)
        .values({owner: id})
        .on_conflict_do_update(
            index_elements=[owner],
            set_={
                "wake": True,
                "settled": False,
                "interruptions": 0,
                "seen_at": now,
                "look_at": now,
            },
        )
    )
    change.notify(topics.KEPT_RUNS)


async def ended(change: Change, owner: OwnerColumn, id: int) -> None:
    """The owner has ended: its run is looked at now, and gets its end if its flow cannot say it."""
    await change.conn.execute(
        sa.update(kept_runs).where(owner == id, ~r.settled).values(look_at=sa.func.now())
    )
    change.notify(topics.KEPT_RUNS)


async def taken(
    conn: AsyncConnection,
    owner: OwnerColumn,
    id: int,
    flow_run_id: UUID | None,
    quiet_s: float = 0.0,
) -> None:
    """The flow of the owner has begun, as ``flow_run_id``, which need not be the run that was made for it.

    ``quiet_s``: when it may have been silent for this long, its run is looked at.
    """
    given = insert(kept_runs).values({owner: id, r.flow_run_id: flow_run_id})
    new = given.excluded.flow_run_id
    replaced = sa.and_(new.is_not(None), r.flow_run_id.is_not(None), new != r.flow_run_id)
    await conn.execute(
        given.on_conflict_do_update(
            index_elements=[owner],
            set_={
                "earlier_flow_run_ids": sa.case(
                    (replaced, sa.func.array_append(r.earlier_flow_run_ids, r.flow_run_id)),
                    else_=r.earlier_flow_run_ids,
                ),
                "flow_run_id": sa.func.coalesce(new, r.flow_run_id),
                "settled": False,
                **_seen(quiet_s),
            },
        )
    )


async def seen(
    conn: AsyncConnection,
    owner: OwnerColumn,
    id: int,
    *wanted: sa.ColumnElement[bool],
    quiet_s: float = 0.0,
) -> None:
    """The flow of the owner has spoken. ``wanted``: nothing is noted unless all of this is true."""
    await conn.execute(sa.update(kept_runs).where(owner == id, *wanted).values(_seen(quiet_s)))


def _seen(quiet_s: float) -> dict[str, Any]:
    now = sa.func.now()
    later = sa.func.greatest(r.look_at, now + datetime.timedelta(seconds=quiet_s))
    return {"seen_at": now, "wake": False, "look_at": later if quiet_s else r.look_at}


async def look_soon(conn: AsyncConnection, flow_run_ids: Sequence[UUID]) -> bool:
    """Order an immediate check of the kept ones among the runs; returns whether there are any."""
    found = await conn.execute(
        sa.update(kept_runs)
        .where(r.flow_run_id.in_(flow_run_ids), ~r.settled)
        .values(look_at=sa.func.now())
        .returning(r.id)
    )
    return found.first() is not None


async def unsettle(conn: AsyncConnection, flow_run_ids: Sequence[UUID]) -> set[UUID]:
    """Order checks of the kept ones among the runs until they have ended like their owners; returns the kept
    ones."""
    await conn.execute(
        sa.update(kept_runs)
        .where(r.flow_run_id.in_(flow_run_ids), r.settled)
        .values(settled=False, look_at=sa.func.now())
    )
    found = await conn.execute(
        sa.select(r.flow_run_id).where(r.flow_run_id.in_(flow_run_ids)).distinct()
    )
    return set(found.scalars())
