"""Workspaces and projects: made, changed, archived, moved.

A workspace is locked before its projects. "Uncategorized" never changes. Deletion:
:mod:`determined_service.lifecycle.place_deletion`.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined import expconf
from determined.common.wire import limits
from determined_registry import permitted
from determined_registry.database.tables import (
    experiments,
    models,
    pool_bindings,
    pools,
    project_visits,
    projects,
    workspace_pins,
    workspaces,
)
from determined_service.base import topics
from determined_service.base.checks import check_text
from determined_service.base.db import hold_name
from determined_service.base.errors import BadRequest, Conflict, NotFound, OverQuota
from determined_service.lifecycle.experiments import run_name
from determined_service.lifecycle.places import Place, workspace_of
from determined_service.lifecycle.pools import require_pool
from determined_service.state import prefect_states, states
from determined_service.state.change import Change

w, p = workspaces.c, projects.c
_KEY = re.compile(r"[A-Z0-9]{1,5}")


def check_name(given: str, noun: str) -> str:
    """The name without spaces around it. Raises BadRequest."""
    name = check_text(given, "name", limits.WORKSPACE_NAME_CHARS).strip()
    if not name or not name.isprintable():
        raise BadRequest(
            f"name: {given!r} cannot be the name of a {noun}: it needs a printable character"
        )
    return name


def check_key(given: str) -> str:
    """Raises BadRequest unless it is a project's key."""
    if not _KEY.fullmatch(given):
        raise BadRequest(
            f"key: {given[:80]!r} found; expected 1 to 5 capital letters and digits, such as CATS7"
        )
    return given


def check_storage(
    given: Mapping[str, Any] | None, own: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """A workspace's checkpoint storage as it is stored; None and {}: the cluster's. ``own``: that one.

    Raises BadRequest with the problems of the section.
    """
    if not given:
        return None
    try:
        found = expconf.check_template(
            {"checkpoint_storage": dict(given)}, "checkpointStorageConfig"
        )
    except expconf.ConfigError as error:
        raise BadRequest(str(error)) from error
    storage: dict[str, Any] = found["checkpoint_storage"]
    if permitted.is_clusters_own(storage, own):
        raise BadRequest(f"checkpointStorageConfig: {permitted.KEPT}")
    return storage


async def check_pools(
    conn: AsyncConnection, values: Mapping[str, Any], workspace_id: int | None
) -> None:
    """Raises BadRequest unless the default pools exist and the workspace may use them."""
    for column, field in (
        ("default_compute_pool", "defaultComputePool"),
        ("default_aux_pool", "defaultAuxPool"),
    ):
        if values.get(column):
            await require_pool(conn, values[column], field, workspace_id or 0)


async def lock_workspace(conn: AsyncConnection, workspace_id: int, what: str) -> sa.Row[Any]:
    """The workspace, to be changed. ``what``: what is done to it, in words ("be renamed").

    Raises NotFound; Conflict for "Uncategorized", and while it is being deleted.
    """
    row = await _locked(conn, workspace_id)
    if row.immutable:
        raise Conflict(f"workspace {row.name!r} is the cluster's own and cannot {what}")
    if row.state == DELETING:
        raise Conflict(f"workspace {row.name!r} is being deleted and cannot {what}")
    return row


async def hold_workspace(conn: AsyncConnection, workspace_id: int, what: str) -> None:
    """It is there until the end of the transaction; also "Uncategorized". ``what``: as of
    :func:`lock_workspace`. Raises NotFound; Conflict while it is being deleted."""
    row = await _locked(conn, workspace_id, read=True)
    if row.state == DELETING:
        raise Conflict(f"workspace {row.name!r} is being deleted and cannot {what}")


async def _locked(conn: AsyncConnection, workspace_id: int, *, read: bool = False) -> sa.Row[Any]:
    found = await conn.execute(
        sa.select(workspaces).where(w.id == workspace_id).with_for_update(read=read)
    )
    row = found.first()
    if row is None:
        raise NotFound(f"workspace {workspace_id} does not exist")
    return row


async def lock_project(conn: AsyncConnection, project_id: int, what: str) -> sa.Row[Any]:
    """The project, to be changed, after its workspace. Raises NotFound, Conflict."""
    of = await conn.execute(sa.select(p.workspace_id).where(p.id == project_id))
    workspace_id = of.scalar_one_or_none()
    if workspace_id is None:
        raise NotFound(f"project {project_id} does not exist")
    workspace = await _locked(conn, workspace_id, read=True)
    found = await conn.execute(sa.select(projects).where(p.id == project_id).with_for_update())
    row = found.first()
    if row is None:
        raise NotFound(f"project {project_id} does not exist")
    if row.workspace_id != workspace_id:
        raise Conflict(f"project {project_id} has just been moved: try again")
    if row.immutable:
        raise Conflict(f"project {row.name!r} is the cluster's own and cannot {what}")
    if DELETING in (row.state, workspace.state):
        raise Conflict(f"project {row.name!r} is being deleted and cannot {what}")
    if workspace.archived:
        raise Conflict(
            f"project {row.name!r} cannot {what}: its workspace {workspace.name!r} is archived; "
            f"det workspace unarchive {workspace.name!r} opens it again"
        )
    return row


DELETING, DELETE_FAILED = "DELETING", "DELETE_FAILED"


def require_not_archived(row: sa.Row[Any], noun: str, what: str) -> None:
    """Raises Conflict if the workspace or project is archived."""
    if row.archived:
        raise Conflict(f"{noun} {row.name!r} is archived and cannot {what}: unarchive it first")


async def create_workspace(
    conn: AsyncConnection, name: str, owner_id: int, values: Mapping[str, Any]
) -> int:
    """A new workspace; its id. Raises Conflict if the name is taken, in any case of letters; OverQuota."""
    await hold_name(conn, f"{owner_id}/workspaces")
    count = await conn.scalar(sa.select(sa.func.count()).where(w.owner_id == owner_id))
    if (count or 0) >= limits.WORKSPACES:
        raise OverQuota(
            f"you have {count} workspaces, and a user may have {limits.WORKSPACES}: delete some "
            "(det workspace delete NAME), or make projects in those that there are"
        )
    made = await conn.scalar(
        insert(workspaces)
        .values(name=name, owner_id=owner_id, **values)
        .on_conflict_do_nothing()
        .returning(w.id)
    )
    if made is None:
        raise _taken("workspace", name)
    return int(made)


def _taken(noun: str, name: str) -> Conflict:
    return Conflict(
        f"there is a {noun} {name!r} already: choose another name (names that differ in case alone are equal)"
    )


async def change_workspace(
    conn: AsyncConnection, workspace_id: int, values: Mapping[str, Any]
) -> None:
    """Sets columns of a (locked) workspace. Raises Conflict if its new name is taken."""
    if not values:
        return
    try:
        async with conn.begin_nested():
            await conn.execute(sa.update(workspaces).where(w.id == workspace_id).values(values))
    except sa.exc.IntegrityError:
        raise _taken("workspace", str(values.get("name"))) from None


async def archive_workspace(conn: AsyncConnection, workspace_id: int, archived: bool) -> None:
    """Its projects are archived with it as long as it is. Raises NotFound, Conflict."""
    await lock_workspace(conn, workspace_id, "be archived" if archived else "be unarchived")
    await conn.execute(sa.update(workspaces).where(w.id == workspace_id).values(archived=archived))


async def note_visit(conn: AsyncConnection, project_id: int, user_id: int) -> None:
    """Notes that the user looks at the project now."""
    visits, visited = project_visits.c, {"visited_at": sa.func.clock_timestamp()}
    await conn.execute(
        insert(project_visits)
        .values(user_id=user_id, project_id=project_id, **visited)
        .on_conflict_do_update(index_elements=[visits.user_id, visits.project_id], set_=visited)
    )


async def pin(conn: AsyncConnection, workspace_id: int, user_id: int, pinned: bool) -> None:
    """The user sees the workspace first, or not. May be repeated."""
    pins = workspace_pins.c
    if pinned:
        await conn.execute(
            insert(workspace_pins)
            .values(user_id=user_id, workspace_id=workspace_id)
            .on_conflict_do_nothing()
        )
    else:
        await conn.execute(
            sa.delete(workspace_pins).where(
                pins.user_id == user_id, pins.workspace_id == workspace_id
            )
        )


async def create_project(
    conn: AsyncConnection,
    workspace_id: int,
    name: str,
    owner_id: int,
    *,
    description: str = "",
    key: str | None = None,
) -> int:
    """A new project; its id. Without ``key`` it gets one that begins like its name.

    Raises NotFound; Conflict if the workspace is "Uncategorized", archived or being deleted, or the name or
    the key is taken; OverQuota.
    """
    row = await lock_workspace(conn, workspace_id, "have further projects")
    require_not_archived(row, "workspace", "have further projects")
    count = await conn.scalar(sa.select(sa.func.count()).where(p.workspace_id == workspace_id))
    if (count or 0) >= limits.PROJECTS:
        raise OverQuota(
            f"workspace {row.name!r} has {count} projects, and a workspace may have {limits.PROJECTS}: "
            "delete some (det project delete), or make another workspace"
        )
    for tried in range(_TRIES):
        made = await conn.scalar(
            insert(projects)
            .values(
                workspace_id=workspace_id,
                name=name,
                owner_id=owner_id,
                description=description,
                key=key or _made_up_key(name, tried),
            )
            .on_conflict_do_nothing()
            .returning(p.id)
        )
        if made is not None:
            return int(made)
        same = sa.and_(p.workspace_id == workspace_id, sa.func.lower(p.name) == sa.func.lower(name))
        if await conn.scalar(sa.select(p.id).where(same)) is not None:
            raise _taken("project", name)
        if key is not None:
            raise _key_taken(key)
    raise Conflict("no free key was found for the project: give one (key)")


_TRIES = 50
_SIGNS = string.ascii_uppercase + string.digits


def _made_up_key(name: str, tried: int) -> str:
    """The first letters of the name; from the second try on with random signs behind."""
    letters = re.sub(r"[^A-Z0-9]", "", name.upper()) or "P"
    if not tried:
        return letters[:3]
    return letters[:2] + "".join(secrets.choice(_SIGNS) for _ in range(3))


def _key_taken(key: str) -> Conflict:
    return Conflict(f"key {key!r} is that of another project of the cluster: choose another one")


async def change_project(conn: AsyncConnection, project_id: int, values: Mapping[str, Any]) -> None:
    """Sets columns of a (locked) project. Raises Conflict if its new name or key is taken."""
    if not values:
        return
    if (key := values.get("key")) is not None:
        other = sa.select(p.id).where(p.key == key, p.id != project_id)
        if await conn.scalar(other) is not None:
            raise _key_taken(key)
    try:
        async with conn.begin_nested():
            await conn.execute(sa.update(projects).where(p.id == project_id).values(values))
    except sa.exc.IntegrityError:
        raise _taken("project", str(values.get("name") or values.get("key"))) from None


async def archive_project(conn: AsyncConnection, project_id: int, archived: bool) -> None:
    """Nothing can be made in an archived project. Raises NotFound, Conflict."""
    await lock_project(conn, project_id, "be archived" if archived else "be unarchived")
    await conn.execute(sa.update(projects).where(p.id == project_id).values(archived=archived))


async def add_note(conn: AsyncConnection, project_id: int, note: Mapping[str, str]) -> None:
    """Adds a note behind the others. Raises NotFound, BadRequest, Conflict."""
    row = await lock_project(conn, project_id, "get notes")
    require_not_archived(row, "project", "get notes")
    await set_notes_of(conn, row, [*row.notes, dict(note)])


async def set_notes(
    conn: AsyncConnection, project_id: int, notes: Collection[Mapping[str, str]]
) -> None:
    """Replaces all notes. Raises NotFound, BadRequest, Conflict."""
    row = await lock_project(conn, project_id, "get notes")
    require_not_archived(row, "project", "get notes")
    await set_notes_of(conn, row, list(map(dict, notes)))


async def set_notes_of(
    conn: AsyncConnection, row: sa.Row[Any], notes: list[dict[str, str]]
) -> None:
    """As :func:`set_notes`, of a locked project."""
    if len(notes) > limits.PROJECT_NOTES:
        raise BadRequest(
            f"notes: {len(notes)} found, at most {limits.PROJECT_NOTES} are allowed: remove some"
        )
    if sum(len(one["contents"]) for one in notes) > limits.NOTES_CHARS:
        raise BadRequest(f"notes: together they may have {limits.NOTES_CHARS} characters")
    await conn.execute(sa.update(projects).where(p.id == row.id).values(notes=notes))


async def move_project(conn: AsyncConnection, project_id: int, to: int) -> None:
    """Moves the project, with what is in it, to another workspace.

    Raises NotFound; Conflict if one of the two is archived, being deleted or "Uncategorized", or a project
    there has its name; BadRequest as :func:`move_experiment`, for the first of its experiments.
    """
    of = await conn.scalar(sa.select(p.workspace_id).where(p.id == project_id))
    if of is None:
        raise NotFound(f"project {project_id} does not exist")
    # Both workspaces in the order of their ids, so that two moves do not wait for each other.
    for one in sorted({of, to}):
        await _locked(conn, one)
    row = await lock_project(conn, project_id, "be moved")
    require_not_archived(row, "project", "be moved")
    target = await lock_workspace(conn, to, "get projects from elsewhere")
    require_not_archived(target, "workspace", "get projects")
    if of != to:
        await _require_pools(conn, row, target)
    try:
        async with conn.begin_nested():
            await conn.execute(
                sa.update(projects).where(p.id == project_id).values(workspace_id=to)
            )
    except sa.exc.IntegrityError:
        raise _taken("project", row.name) from None


async def _require_pools(
    conn: AsyncConnection, project: sa.Row[Any], workspace: sa.Row[Any]
) -> None:
    """Raises BadRequest if an experiment of the project has not ended, in a resource pool that the workspace
    may not use. The project is locked: nothing new is put into it."""
    e = experiments.c
    found = await conn.execute(
        sa.select(sa.func.min(e.id).label("id"), e.resource_pool)
        .where(e.project_id == project.id, ~e.unmanaged, e.state.not_in(states.ENDED))
        .group_by(e.resource_pool)
        .order_by("id")
    )
    for one in found.all():
        where = (
            f"project {project.name!r} cannot be moved to workspace {workspace.name!r}, because experiment "
            f"{one.id} has not ended"
        )
        await require_pool(conn, one.resource_pool, where, workspace.id)


async def move_experiment(change: Change, experiment_id: int, to: Place) -> None:
    """Moves the experiment to the project, which is open and held.

    Raises NotFound; Conflict if it is being deleted; BadRequest, with the pools that may, if it has not ended
    and its resource pool is bound to other workspaces (an ended one is asked when it is continued).
    """
    e = experiments.c
    found = await change.conn.execute(
        sa.select(
            e.project_id,
            e.state,
            e.name,
            e.unmanaged,
            e.config["resources"]["resource_pool"].astext.label("pool"),
            workspace_of(experiment_id).label("workspace_id"),
        )
        .where(e.id == experiment_id)
        .with_for_update(key_share=True)
    )
    row = found.first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    if row.state == DELETING:
        raise Conflict(f"experiment {experiment_id} is being deleted and cannot be moved")
    elsewhere = row.workspace_id != to.workspace_id
    if elsewhere and row.pool and not row.unmanaged and row.state not in states.ENDED:
        where = f"experiment {experiment_id} cannot be moved to workspace {to.workspace!r}"
        await require_pool(change.conn, row.pool, where, to.workspace_id)
    await change.conn.execute(
        sa.update(experiments).where(e.id == experiment_id).values(project_id=to.project_id)
    )
    prefect_states.name_run(change, experiment_id, run_name(row.name, experiment_id), to.tags)
    change.notify(topics.experiment(experiment_id))


async def move_model(conn: AsyncConnection, model_id: int, workspace_id: int) -> None:
    """Moves a (locked) model to the workspace, which is open and held."""
    await conn.execute(
        sa.update(models)
        .where(models.c.id == model_id)
        .values(workspace_id=workspace_id, updated_at=sa.func.now())
    )


async def bind(conn: AsyncConnection, pool: str, ids: Collection[int], *, replace: bool) -> None:
    """These workspaces alone may use the pool from now on, beside those that may already; with ``replace``
    these alone. Without any, everybody may. Raises NotFound, Conflict."""
    await _require_pool(conn, pool)
    b = pool_bindings.c
    if replace:
        await conn.execute(
            sa.delete(pool_bindings).where(b.pool == pool, b.workspace_id.not_in(ids))
        )
    found = await conn.execute(
        sa.select(w.id).where(w.id.in_(ids)).order_by(w.id).with_for_update(read=True)
    )
    if missing := sorted(set(ids) - set(found.scalars())):
        raise NotFound(f"no such workspace: {', '.join(map(str, missing))}")
    if ids:
        await conn.execute(
            insert(pool_bindings)
            .values([{"pool": pool, "workspace_id": one} for one in sorted(ids)])
            .on_conflict_do_nothing()
        )


async def unbind(conn: AsyncConnection, pool: str, ids: Collection[int]) -> None:
    """These workspaces may use the pool only if it is bound to none. Raises NotFound."""
    await _require_pool(conn, pool)
    b = pool_bindings.c
    await conn.execute(sa.delete(pool_bindings).where(b.pool == pool, b.workspace_id.in_(ids)))


async def _require_pool(conn: AsyncConnection, name: str) -> None:
    """Locks the pool: two who bind it come one after the other."""
    found = await conn.execute(
        sa.select(pools.c.name)
        .where(pools.c.name == name, ~pools.c.removed)
        .with_for_update(key_share=True)
    )
    if found.first() is None:
        raise NotFound(f"resource pool {name!r} does not exist")
