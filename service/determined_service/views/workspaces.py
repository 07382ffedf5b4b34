"""Workspaces and projects as JSON: ``v1Workspace`` and ``v1Project``."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.expconf import masked_for_others
from determined_registry.database.tables import (
    checkpoints,
    experiments,
    models,
    pipelines,
    projects,
    tasks,
    templates,
    trials,
    users,
    workspace_pins,
    workspaces,
)
from determined_service.access.principal import Principal
from determined_service.access.targets import Kind
from determined_service.access.visible import visible
from determined_service.base.errors import NotFound
from determined_service.state import states
from determined_service.views.values import moment

w, p, e = workspaces.c, projects.c, experiments.c
_in_workspace = sa.select(p.id).where(p.workspace_id == w.id).correlate(workspaces)
_EXPERIMENTS = (
    sa.select(sa.func.count())
    .select_from(experiments.join(projects, p.id == e.project_id))
    .where(p.workspace_id == w.id)
    .correlate(workspaces)
    .scalar_subquery()
)
_PROJECTS = (
    sa.select(sa.func.count()).where(p.workspace_id == w.id).correlate(workspaces).scalar_subquery()
)


def _of_project(
    what: sa.ColumnElement[Any], *wanted: sa.ColumnElement[bool]
) -> sa.ScalarSelect[Any]:
    return (
        sa.select(what)
        .select_from(experiments)
        .where(e.project_id == p.id, *wanted)
        .correlate(projects)
        .scalar_subquery()
    )


_LAST_START = _of_project(sa.func.max(e.start_time))
_RUNS = (
    sa.select(sa.func.count())
    .select_from(trials.join(experiments, e.id == trials.c.experiment_id))
    .where(e.project_id == p.id)
    .correlate(projects)
    .scalar_subquery()
)

WORKSPACE_SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": w.id,
    "ID": w.id,
    "NAME": sa.func.lower(w.name),
}
PROJECT_SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": p.id,
    "ID": p.id,
    "NAME": sa.func.lower(p.name),
    "DESCRIPTION": p.description,
    "CREATION_TIME": p.created_at,
    "LAST_EXPERIMENT_START_TIME": _LAST_START,
}


def select_workspaces(subject: Principal) -> sa.Select[Any]:
    """Every column that :func:`workspace_json` reads, of the workspaces that the subject sees."""
    pins = workspace_pins
    mine = sa.and_(pins.c.workspace_id == w.id, pins.c.user_id == subject.user_id)
    return (
        sa.select(
            workspaces,
            users.c.username,
            _PROJECTS.label("num_projects"),
            _EXPERIMENTS.label("num_experiments"),
            pins.c.pinned_at,
        )
        .select_from(workspaces)
        .outerjoin(users, users.c.id == w.owner_id)
        .outerjoin(pins, mine)
        .where(visible(subject, Kind.WORKSPACE, w.id))
    )


def workspace_json(row: sa.Row[Any], subject: Principal) -> dict[str, Any]:
    """``v1Workspace``; secrets of its storage are masked unless its owner or an administrator asks.

    Of a workspace that belongs to nobody ``userId`` is 0 and ``username`` blank.
    """
    storage = row.checkpoint_storage
    sees_all = subject.admin or (
        row.owner_id is not None and row.owner_id == subject.user_id and subject.allocation is None
    )
    if storage is not None and not sees_all:
        storage = masked_for_others({"checkpoint_storage": storage}, {})["checkpoint_storage"]
    return {
        "id": row.id,
        "name": row.name,
        "archived": row.archived,
        "immutable": row.immutable,
        "pinned": row.pinned_at is not None,
        "pinnedAt": moment(row.pinned_at),
        "numProjects": row.num_projects,
        "numExperiments": row.num_experiments,
        "userId": row.owner_id or 0,
        "username": row.username or "",
        "agentUserGroup": row.agent_user_group,
        "checkpointStorageConfig": storage,
        "defaultComputePool": row.default_compute_pool,
        "defaultAuxPool": row.default_aux_pool,
        **_state(row),
    }


def _state(row: sa.Row[Any]) -> dict[str, str]:
    return {
        "state": f"WORKSPACE_STATE_{row.state or 'UNSPECIFIED'}",
        "errorMessage": row.reason or "",
    }


async def get_workspace(
    conn: AsyncConnection, workspace_id: int, subject: Principal
) -> dict[str, Any]:
    """One workspace's JSON. Raises NotFound, also if the subject does not see it."""
    statement = select_workspaces(subject).where(w.id == workspace_id)
    row = (await conn.execute(statement)).first()
    if row is None:
        raise NotFound(f"workspace {workspace_id} does not exist")
    return workspace_json(row, subject)


def select_projects(subject: Principal, *, brief: bool = False) -> sa.Select[Any]:
    """Every column that :func:`project_json` reads, of the projects that the subject sees.

    ``brief``: without what has to be counted, which takes longer the more experiments they have.
    """
    counts = (
        _of_project(sa.func.count()).label("num_experiments"),
        _of_project(sa.func.count(), e.state.not_in(states.ENDED)).label("num_active"),
        _RUNS.label("num_runs"),
        _LAST_START.label("last_start"),
    )
    return (
        sa.select(
            projects,
            w.name.label("workspace_name"),
            w.archived.label("workspace_archived"),
            users.c.username,
            *(() if brief else counts),
        )
        .select_from(projects)
        .join(workspaces, w.id == p.workspace_id)
        .outerjoin(users, users.c.id == p.owner_id)
        .where(visible(subject, Kind.PROJECT, p.workspace_id))
    )


def project_json(row: sa.Row[Any]) -> dict[str, Any]:
    """``v1Project``; archived also while its workspace is. Without counts if they were not selected."""
    counts = {}
    if "num_experiments" in row._mapping:
        counts = {
            "numExperiments": row.num_experiments,
            "numActiveExperiments": row.num_active,
            "numRuns": row.num_runs,
            "lastExperimentStartedAt": moment(row.last_start),
        }
    return {
        "id": row.id,
        "name": row.name,
        "key": row.key or "",
        "description": row.description,
        "notes": row.notes,
        "archived": row.archived or row.workspace_archived,
        "immutable": row.immutable,
        **counts,
        "workspaceId": row.workspace_id,
        "workspaceName": row.workspace_name,
        "userId": row.owner_id or 0,
        "username": row.username or "",
        **_state(row),
    }


async def get_project(
    conn: AsyncConnection, subject: Principal, wanted: sa.ColumnElement[bool], name: object
) -> dict[str, Any]:
    """The JSON of the project that is ``wanted``. Raises NotFound, also if the subject does not see it."""
    row = (await conn.execute(select_projects(subject).where(wanted))).first()
    if row is None:
        raise NotFound(f"project {name} does not exist")
    return project_json(row)


async def contents(conn: AsyncConnection, within: sa.ColumnElement[bool]) -> dict[str, Any]:
    """What goes with a workspace or project: ``within`` is a condition on ``projects``."""
    inside = sa.select(p.id).where(within)
    those = sa.select(e.id).where(e.project_id.in_(inside))
    kept = sa.and_(checkpoints.c.experiment_id.in_(those), checkpoints.c.state != "DELETED")
    found = await conn.execute(
        sa.select(
            sa.select(sa.func.count()).where(within).scalar_subquery().label("projects"),
            sa.select(sa.func.count())
            .select_from(experiments)
            .where(e.project_id.in_(inside))
            .scalar_subquery()
            .label("experiments"),
            sa.select(sa.func.count())
            .select_from(experiments)
            .where(e.project_id.in_(inside), e.state.not_in(states.ENDED))
            .scalar_subquery()
            .label("running"),
            sa.select(sa.func.count()).where(kept).scalar_subquery().label("checkpoints"),
            sa.select(sa.func.coalesce(sa.func.sum(checkpoints.c.size), 0))
            .where(kept)
            .scalar_subquery()
            .label("bytes"),
        )
    )
    row = found.one()
    return {
        "projects": row.projects,
        "experiments": row.experiments,
        "running": row.running,
        "checkpoints": row.checkpoints,
        "checkpointBytes": str(row.bytes),
    }


async def contents_beside(conn: AsyncConnection, workspace_id: int) -> dict[str, Any]:
    """What else goes with a workspace, and what has to leave it first."""

    def counted(table: sa.Table, *more: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
        return (
            sa.select(sa.func.count())
            .select_from(table)
            .where(table.c.workspace_id == workspace_id, *more)
            .scalar_subquery()
        )

    ended = tasks.c.state.in_(states.TERMINAL)
    found = await conn.execute(
        sa.select(
            counted(templates).label("templates"),
            counted(pipelines).label("pipelines"),
            counted(tasks, ended).label("tasks"),
            counted(tasks, ~ended).label("running_tasks"),
            counted(models).label("models"),
        )
    )
    row = found.one()
    return {
        "templates": row.templates,
        "pipelines": row.pipelines,
        "tasks": row.tasks,
        "runningTasks": row.running_tasks,
        "models": row.models,
    }
