"""Deletion of workspaces and projects: what is asked for, and what stands in its way.

The request marks them DELETING, from which moment nothing is made in them; then the leader deletes what is in
them, piece by piece (:mod:`determined_service.loops.places`), and the rows last. What fails makes them
DELETE_FAILED with the reason, and the deletion may be requested again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    experiments,
    models,
    pipelines,
    projects,
    tasks,
    workspaces,
)
from determined_service.base.db import Database
from determined_service.base.errors import Conflict, NotFound
from determined_service.deleting import deletions, notebook_files
from determined_service.lifecycle.experiments import lock_experiment
from determined_service.lifecycle.workspaces import DELETE_FAILED, DELETING
from determined_service.state import states
from determined_service.state.change import Change, changing, reader

w, p, e, k = workspaces.c, projects.c, experiments.c, tasks.c
_NAMED = 10


async def experiments_in(
    conn: AsyncConnection, *, workspace_id: int | None = None, project_id: int | None = None
) -> list[int]:
    """The ids of the experiments of a workspace or of a project."""
    wanted = p.workspace_id == workspace_id if project_id is None else p.id == project_id
    found = await conn.execute(
        sa.select(e.id).join(projects, p.id == e.project_id).where(wanted).order_by(e.id)
    )
    return list(found.scalars())


async def request_workspace(change: Change, workspace_id: int) -> None:
    """Has the workspace deleted, with its projects, experiments, pipelines, templates and ended tasks. May be
    repeated.

    Raises NotFound; Conflict for "Uncategorized", while something runs in it, and while models are in it.
    """
    conn = change.conn
    # Whoever makes something in it holds it until then.
    found = await conn.execute(sa.select(workspaces).where(w.id == workspace_id).with_for_update())
    row = found.first()
    if row is None:
        raise NotFound(f"workspace {workspace_id} does not exist")
    if row.immutable:
        raise Conflict(f"workspace {row.name!r} is the cluster's own and cannot be deleted")
    if row.state == DELETING:
        return
    await conn.execute(
        sa.select(p.id).where(p.workspace_id == workspace_id).order_by(p.id).with_for_update()
    )
    what = f"workspace {row.name!r} cannot be deleted"
    await _refuse_running(conn, p.workspace_id == workspace_id, what)
    running = await conn.execute(
        sa.select(k.id)
        .where(k.workspace_id == workspace_id, k.state.not_in(states.TERMINAL))
        .limit(_NAMED)
    )
    if ids := list(running.scalars()):
        raise Conflict(f"{what}: tasks run in it ({', '.join(ids)}); det task kill ID ends one")
    open_ = await conn.execute(
        sa.select(pipelines.c.id)
        .where(
            pipelines.c.workspace_id == workspace_id,
            # Those of determined_service.pipelines.machine.ENDED.
            pipelines.c.state.not_in(("COMPLETED", "FAILED", "SKIPPED", "CANCELED")),
        )
        .limit(_NAMED)
    )
    if numbers := list(open_.scalars()):
        raise Conflict(
            f"{what}: pipelines run in it ({_listed(numbers)}); det pipeline cancel ID ends one"
        )
    named = await conn.execute(
        sa.select(models.c.name).where(models.c.workspace_id == workspace_id).limit(_NAMED)
    )
    if names := list(named.scalars()):
        raise Conflict(
            f"{what}: models are in it ({', '.join(names)}); move them (det model move NAME -w WORKSPACE), "
            "or delete them (det model delete NAME)"
        )
    # None begins again by itself.
    await conn.execute(
        sa.update(pipelines)
        .where(pipelines.c.workspace_id == workspace_id)
        .values(schedule=None, next_at=None, events=None)
    )
    await _delete_notebook_files(change, k.workspace_id == workspace_id)
    await conn.execute(
        sa.update(workspaces).where(w.id == workspace_id).values(state=DELETING, reason=None)
    )
    await conn.execute(
        sa.update(projects)
        .where(p.workspace_id == workspace_id)
        .values(state=DELETING, reason=None)
    )


async def request_project(change: Change, project_id: int) -> None:
    """Has the project deleted, with its experiments and ended tasks. May be repeated.

    Raises NotFound; Conflict for "Uncategorized", and while something runs in it.
    """
    conn = change.conn
    found = await conn.execute(sa.select(projects).where(p.id == project_id).with_for_update())
    row = found.first()
    if row is None:
        raise NotFound(f"project {project_id} does not exist")
    if row.immutable:
        raise Conflict(f"project {row.name!r} is the cluster's own and cannot be deleted")
    if row.state == DELETING:
        return
    what = f"project {row.name!r} cannot be deleted"
    await _refuse_running(conn, p.id == project_id, what)
    running = await conn.execute(
        sa.select(k.id)
        .where(k.project_id == project_id, k.state.not_in(states.TERMINAL))
        .limit(_NAMED)
    )
    if ids := list(running.scalars()):
        raise Conflict(f"{what}: tasks run in it ({', '.join(ids)}); det task kill ID ends one")
    await _delete_notebook_files(change, k.project_id == project_id)
    await conn.execute(
        sa.update(projects).where(p.id == project_id).values(state=DELETING, reason=None)
    )


async def _refuse_running(conn: AsyncConnection, within: sa.ColumnElement[bool], what: str) -> None:
    found = await conn.execute(
        sa.select(e.id)
        .join(projects, p.id == e.project_id)
        .where(within, e.state.not_in(states.ENDED))
        .order_by(e.id)
        .limit(_NAMED)
    )
    if ids := list(found.scalars()):
        raise Conflict(
            f"{what}: experiments run in it ({_listed(ids)}); wait until they have ended, or end them (det "
            "experiment kill ID)"
        )


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) + (", …" if len(ids) == _NAMED else "")


async def _delete_notebook_files(change: Change, within: sa.ColumnElement[bool]) -> None:
    found = await change.conn.execute(
        sa.select(k.id, k.owner_id).where(within, notebook_files.HAS_FILES).order_by(k.id)
    )
    by_owner: dict[int, list[str]] = defaultdict(list)
    for row in found:
        by_owner[row.owner_id].append(row.id)
    for owner_id, ids in by_owner.items():
        await deletions.delete_notebook_files(change, ids, owner_id=owner_id)


async def retry_failed(db: Database, ids: Sequence[int]) -> None:
    """Of these experiments, requests those deletions again that have failed. Raises Conflict."""
    async with reader(db).connect() as conn:
        failed = await conn.execute(
            sa.select(e.id, e.owner_id).where(e.id.in_(ids), e.state == states.DELETE_FAILED)
        )
        rows = list(failed)
    for row in rows:
        async with changing(db) as change:
            if (await lock_experiment(change, row.id)).state == states.DELETE_FAILED:
                await deletions.delete_experiment(change, row.id, owner_id=row.owner_id)


async def fail(
    conn: AsyncConnection, workspace_id: int, project_id: int | None, reason: str
) -> None:
    """Gives the deletion up: of the project, and of its workspace if that is being deleted."""
    given = {"state": DELETE_FAILED, "reason": reason}
    done = await conn.execute(
        sa.update(workspaces).where(w.id == workspace_id, w.state == DELETING).values(given)
    )
    mine = p.workspace_id == workspace_id if done.rowcount else p.id == project_id
    await conn.execute(sa.update(projects).where(mine, p.state == DELETING).values(given))
