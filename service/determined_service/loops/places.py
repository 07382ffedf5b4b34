"""Deletes what is in workspaces and projects that are being deleted, then them: :func:`remove`.

Everything here may be repeated; each piece is a transaction of its own, so a process that is killed leaves
the rest to the next pass.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import (
    experiments,
    pipelines,
    projects,
    tasks,
    templates,
    workspaces,
)
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, NotFound
from determined_service.deleting import deletions, erasure, notebook_files
from determined_service.lifecycle.experiments import lock_experiment
from determined_service.lifecycle.place_deletion import fail
from determined_service.lifecycle.workspaces import DELETING
from determined_service.pipelines import people
from determined_service.state import states
from determined_service.state.change import changing, reader

logger = logging.getLogger(__name__)

MOST = 200
"""Experiments, and tasks, of one pass: others wait for their turn."""

w, p, e, k = workspaces.c, projects.c, experiments.c, tasks.c
_PROJECTS = sa.select(p.id, p.workspace_id, p.name).where(p.state == DELETING).order_by(p.id)
_WORKSPACES = sa.select(w.id, w.name).where(w.state == DELETING).order_by(w.id)


async def remove(db: Database) -> None:
    """One pass over all that is being deleted."""
    async with reader(db).connect() as conn:
        found = list(await conn.execute(_PROJECTS))
        going = list(await conn.execute(_WORKSPACES))
    for project in found:
        if await _empty_project(db, project):
            async with changing(db) as change:
                done = await change.conn.execute(
                    sa.delete(projects).where(p.id == project.id, p.state == DELETING)
                )
                if done.rowcount:
                    logger.info("project %s (%s) is deleted", project.id, project.name)
    for workspace in going:
        await _remove_workspace(db, workspace)


async def _empty_project(db: Database, project: sa.Row[Any]) -> bool:
    """Orders the deletion of what is left in it; True if nothing is."""
    async with reader(db).connect() as conn:
        found = await conn.execute(
            sa.select(e.id, e.owner_id, e.state, e.reason)
            .where(e.project_id == project.id)
            .order_by(e.id)
        )
        left = list(found)
    for row in left:
        if row.state == states.DELETE_FAILED:
            await _give_up(db, project, f"experiment {row.id} could not be deleted: {row.reason}")
            return False
    begun = [row for row in left if row.state == states.DELETING]
    for row in [row for row in left if row.state in states.TERMINAL][: MOST - len(begun)]:
        try:
            async with changing(db) as change:
                if (await lock_experiment(change, row.id)).state in states.TERMINAL:
                    await deletions.delete_experiment(change, row.id, owner_id=row.owner_id)
        except NotFound:
            continue
        except ApiError as error:
            await _give_up(db, project, error.message)
            return False
    if left:
        return False
    return await _erase_tasks(db, k.project_id == project.id, project.workspace_id, project.id)


async def _give_up(db: Database, project: sa.Row[Any], reason: str) -> None:
    logger.warning("project %s (%s) is not deleted: %s", project.id, project.name, reason)
    async with changing(db) as change:
        await fail(change.conn, project.workspace_id, project.id, reason)


async def _erase_tasks(
    db: Database, within: sa.ColumnElement[bool], workspace_id: int, project_id: int | None
) -> bool:
    """Deletes ended tasks, notebooks after their files; True if none is left."""
    async with changing(db) as change:
        conn = change.conn
        going = sa.select(k.id).where(within, notebook_files.FILES_ARE_GOING).limit(1)
        if await conn.scalar(going) is not None:
            return False
        kept = await conn.scalar(sa.select(k.id).where(within, notebook_files.HAS_FILES).limit(1))
        if kept is not None:
            reason = f"the files of notebook {kept} could not be deleted"
            await fail(conn, workspace_id, project_id, reason)
            return False
        found = await conn.execute(
            sa.select(k.id).where(within, k.state.in_(states.TERMINAL)).limit(MOST)
        )
        ids = list(found.scalars())
        if ids:
            await erasure.erase_tasks(change, ids)
        return await conn.scalar(sa.select(sa.func.count()).where(within)) == 0


async def _remove_workspace(db: Database, workspace: sa.Row[Any]) -> None:
    async with reader(db).connect() as conn:
        left = await conn.scalar(sa.select(sa.func.count()).where(p.workspace_id == workspace.id))
        found = await conn.execute(
            sa.select(pipelines.c.id).where(pipelines.c.workspace_id == workspace.id)
        )
        numbers = list(found.scalars())
    if left:
        return
    for number in numbers:
        try:
            await people.delete(db, number)
        except NotFound:
            continue
        except ApiError as error:
            await _give_up_workspace(db, workspace, error.message)
            return
    if not await _erase_tasks(db, k.workspace_id == workspace.id, workspace.id, None):
        return
    async with changing(db) as change:
        await change.conn.execute(
            sa.delete(templates).where(templates.c.workspace_id == workspace.id)
        )
        done = await change.conn.execute(
            sa.delete(workspaces).where(w.id == workspace.id, w.state == DELETING)
        )
        if done.rowcount:
            logger.info("workspace %s (%s) is deleted", workspace.id, workspace.name)


async def _give_up_workspace(db: Database, workspace: sa.Row[Any], reason: str) -> None:
    logger.warning("workspace %s (%s) is not deleted: %s", workspace.id, workspace.name, reason)
    async with changing(db) as change:
        await fail(change.conn, workspace.id, None, reason)
