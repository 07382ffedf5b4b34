"""Where things are made: :func:`find`, the workspace and project that a configuration or a request names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.checks import show
from determined.common.wire.prefect import place_tags
from determined.expconf.problems import nearest
from determined_registry.database.tables import experiments, projects, workspaces
from determined_registry.database.tables.people import FIRST, UNCATEGORIZED
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import HomeWorkspace, Kind, Target
from determined_service.access.visible import visible
from determined_service.base.errors import BadRequest, Conflict, NotFound

w, p = workspaces.c, projects.c
_NAMED = 20
"""Names that a refusal lists."""


@dataclass(frozen=True, slots=True)
class Place:
    """A project in its workspace, and what the workspace gives to what runs in it. ``project_id`` None: the
    workspace as a whole, where models, templates, pipelines and launched tasks are."""

    workspace_id: int = FIRST
    project_id: int | None = FIRST
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    checkpoint_storage: Mapping[str, Any] | None = None
    compute_pool: str | None = None
    aux_pool: str | None = None

    @property
    def is_first(self) -> bool:
        """True for what can be neither archived nor deleted, and gives nothing of its own."""
        return self.workspace_id == FIRST and self.project_id in (None, FIRST)

    @property
    def tags(self) -> list[str]:
        """Of runs in Prefect."""
        return place_tags(self.workspace, self.project)

    def default_pool(self, slots: int) -> str | None:
        """Of what names no pool and asks for so many slots; None: the cluster's default."""
        return self.compute_pool if slots else self.aux_pool


FIRST_PLACE = Place()
FIRST_WORKSPACE = Place(project_id=None, project="")


@dataclass(frozen=True, slots=True)
class Named:
    """What a request says of the place: names (``workspace`` and ``project`` of a configuration) or ids. Zero
    and blank say nothing.

    ``field`` and ``workspace_field``: how the ids are called in the request.
    """

    workspace: str = ""
    project: str = ""
    project_id: int | None = None
    workspace_id: int | None = None
    field: str = "projectId"
    workspace_field: str = "workspaceId"


async def find(
    conn: AsyncConnection,
    subject: Principal | None,
    named: Named,
    made: Kind,
    *,
    whole: bool = False,
    lock: bool = False,
) -> Place:
    """The place that is meant; without names and ids, Uncategorized.

    ``made``: what is to be made there. ``subject`` None: it was asked before. ``whole``: a workspace is
    enough. ``lock``: it stays as it is until the end of the transaction.

    Raises BadRequest for a name or id that there is not, or that the subject does not see, with the nearest
    name; Conflict if it is archived or being deleted; Forbidden if it may make no such thing
    there.
    """
    if named.project_id and named.project_id > 0 and not (whole and named.workspace_id):
        wanted, where = p.id == named.project_id, named.field
    elif named.project:
        if not named.workspace:
            raise BadRequest(
                f"workspace: required field is missing: a project's name ({show(named.project)}) is known in "
                "its workspace only; write workspace: NAME beside project"
            )
        workspace = await _workspace(conn, subject, named)
        wanted = sa.and_(p.workspace_id == workspace.id, _is(p.name, named.project))
        where = "project"
    elif named.workspace or (named.workspace_id and named.workspace_id > 0):
        workspace = await _workspace(conn, subject, named)
        if whole:
            row = (await conn.execute(_whole(workspace.id, lock))).one()
            return _place(row, subject, made)
        names = await _projects_of(conn, subject, workspace.id)
        raise BadRequest(
            f"project: required field is missing: workspace {workspace.name!r} "
            + (
                f"has {', '.join(names[:_NAMED])}"
                if names
                else "has no project: det project create makes one"
            )
        )
    else:
        place = FIRST_WORKSPACE if whole else FIRST_PLACE
        require_allowed(subject, made, place.workspace_id, place.workspace)
        return place
    seen = sa.true() if subject is None else visible(subject, Kind.PROJECT, p.workspace_id)
    located = (await conn.execute(_located(lock).where(wanted, seen))).first()
    if located is None:
        if where == "project":
            names = await _projects_of(conn, subject, workspace.id)
            what = f"there is no project {show(named.project)} in workspace {workspace.name!r}"
            raise BadRequest(f"project: {what}{_hint(named.project, names)}")
        raise BadRequest(f"{where}: project {named.project_id} does not exist")
    return _place(located, subject, made)


def require_allowed(
    subject: Principal | None, made: Kind, workspace_id: int, workspace: str
) -> None:
    """Raises Forbidden if roles hold for the subject, and none allows to make such a thing in the
    workspace."""
    if subject is not None and subject.rights is not None:
        authorise(subject, Action.CREATE, Target(made, into=HomeWorkspace(workspace_id, workspace)))


async def hold(conn: AsyncConnection, place: Place) -> None:
    """Again, just before something is stored there: it stays open until the end of the transaction. Raises
    Conflict if it was archived or deleted meanwhile."""
    if place.is_first:
        return
    if place.project_id is None:
        statement = _whole(place.workspace_id, lock=True)
    else:
        statement = _located(lock=True).where(p.id == place.project_id)
    row = (await conn.execute(statement)).first()
    if row is None:
        raise Conflict(f"project {place.project!r} of workspace {place.workspace!r} was deleted")
    _require_open(row)


async def require_open_experiment(conn: AsyncConnection, experiment_id: int) -> None:
    """Raises Conflict if the experiment is in an archived project; it stays open until the end of the
    transaction."""
    statement = _located(lock=True).where(
        p.id
        == sa.select(experiments.c.project_id)
        .where(experiments.c.id == experiment_id)
        .scalar_subquery()
    )
    row = (await conn.execute(statement)).first()
    if row is not None:
        _require_open(row)


def workspace_of(experiment_id: int) -> sa.ScalarSelect[int]:
    """SQL: the id of the experiment's workspace."""
    return (
        sa.select(p.workspace_id)
        .join(experiments, experiments.c.project_id == p.id)
        .where(experiments.c.id == experiment_id)
        .scalar_subquery()
    )


def _is(column: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """By its name in any case of letters: no two differ in it alone."""
    return sa.func.lower(column) == sa.func.lower(name)


_GIVEN = (
    w.id.label("workspace_id"),
    w.name.label("workspace"),
    w.archived.label("workspace_archived"),
    w.state.label("workspace_state"),
    w.checkpoint_storage,
    w.default_compute_pool,
    w.default_aux_pool,
)
_LOCATED = (
    sa.select(*_GIVEN, p.id, p.name, p.archived, p.state)
    .select_from(projects)
    .join(workspaces, w.id == p.workspace_id)
)


def _located(lock: bool) -> sa.Select[Any]:
    return _LOCATED.with_for_update(read=True) if lock else _LOCATED


def _whole(workspace_id: int, lock: bool) -> sa.Select[Any]:
    statement = sa.select(
        *_GIVEN,
        sa.null().label("id"),
        sa.literal("").label("name"),
        sa.false().label("archived"),
        sa.null().label("state"),
    ).where(w.id == workspace_id)
    return statement.with_for_update(read=True) if lock else statement


def _place(row: sa.Row[Any], subject: Principal | None, made: Kind) -> Place:
    require_allowed(subject, made, row.workspace_id, row.workspace)
    _require_open(row)
    return Place(
        row.workspace_id,
        row.id,
        row.workspace,
        row.name,
        row.checkpoint_storage,
        row.default_compute_pool,
        row.default_aux_pool,
    )


def _require_open(row: sa.Row[Any]) -> None:
    for noun, name, state, archived in (
        ("workspace", row.workspace, row.workspace_state, row.workspace_archived),
        ("project", row.name, row.state, row.archived),
    ):
        # One whose deletion has failed is as before.
        if state == "DELETING":
            raise Conflict(f"{noun} {name!r} is being deleted: nothing can be made in it")
        if archived:
            names = row.workspace if noun == "workspace" else f"{row.workspace!r} {row.name!r}"
            raise Conflict(
                f"{noun} {name!r} is archived: nothing can be made in it; det {noun} unarchive {names}"
                " opens it again"
            )


async def _workspace(conn: AsyncConnection, subject: Principal | None, named: Named) -> sa.Row[Any]:
    """Its ``id`` and ``name``."""
    seen = sa.true() if subject is None else visible(subject, Kind.WORKSPACE, w.id)
    by_id = not named.workspace
    wanted = w.id == named.workspace_id if by_id else _is(w.name, named.workspace)
    row = (await conn.execute(sa.select(w.id, w.name).where(wanted, seen))).first()
    if row is not None:
        return row
    if by_id:
        raise BadRequest(f"{named.workspace_field}: workspace {named.workspace_id} does not exist")
    found = await conn.execute(sa.select(w.name).where(seen).order_by(w.name).limit(1000))
    names = list(found.scalars())
    raise BadRequest(
        f"workspace: there is no workspace {show(named.workspace)}{_hint(named.workspace, names)}"
    )


async def _projects_of(
    conn: AsyncConnection, subject: Principal | None, workspace_id: int
) -> list[str]:
    seen = sa.true() if subject is None else visible(subject, Kind.PROJECT, p.workspace_id)
    found = await conn.execute(
        sa.select(p.name).where(p.workspace_id == workspace_id, seen).order_by(p.name).limit(1000)
    )
    return list(found.scalars())


def _hint(name: str, names: Sequence[str]) -> str:
    meant = nearest(name, names)
    return (f"; did you mean {meant!r}?" if meant else "") + f" ({_listed(names)})"


def _listed(names: Sequence[str]) -> str:
    more = ", …" if len(names) > _NAMED else ""
    return f"there are {', '.join(names[:_NAMED])}{more}" if names else "there is none"


async def workspace_named(
    conn: AsyncConnection, subject: Principal, name: str | None, workspace_id: int | None
) -> int | None:
    """The id of a workspace that a filter or a move names; None: neither names one. Raises NotFound."""
    if not name and not (workspace_id and workspace_id > 0):
        return None
    try:
        return int(
            (await _workspace(conn, subject, Named(name or "", workspace_id=workspace_id))).id
        )
    except BadRequest as error:
        raise NotFound(error.message) from None
