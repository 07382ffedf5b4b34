"""Templates of configurations: docs/reference/configuration.md."""

# Parameters and fields are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined.expconf import secret_values
from determined.expconf.unheeded import dropped_fields
from determined_registry.database.tables import templates, workspaces
from determined_service.access.dependencies import Admission, TemplateReader, may, may_named
from determined_service.access.principal import Principal
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import Kind, Target
from determined_service.base.bounds import Id, ManyIds, Name
from determined_service.base.db import Database
from determined_service.base.errors import Conflict, NotFound
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import places
from determined_service.lifecycle.places import Named
from determined_service.state.change import changing
from determined_service.submission import templates as keeping
from determined_service.views.lists import answer_list, each, weight
from determined_service.views.paging import Limit, Offset, OrderBy
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Templates", "/api/v1/templates")
ONE = "/{template_name}"
_SELECT = sa.select(
    templates.c.name,
    templates.c.config,
    templates.c.workspace_id,
    workspaces.c.name.label("workspace_name"),
).join(workspaces, workspaces.c.id == templates.c.workspace_id)
Creator = Annotated[Principal, may(Action.CREATE, Kind.TEMPLATE)]


class NewTemplate(BaseModel):
    """``v1Template``; its name is the address's."""

    config: dict[str, Any] = Field(
        description="Fields of experiments and tasks, as in their configurations."
    )
    workspaceId: Id | None = Field(
        default=None, description="Of a new template; without it and 0: Uncategorized."
    )

    async def place(self, conn: AsyncConnection, user: Principal) -> int:
        """The workspace of a new template. Raises BadRequest, Conflict, Forbidden."""
        named = Named(workspace_id=self.workspaceId)
        place = await places.find(conn, user, named, Kind.TEMPLATE, whole=True, lock=True)
        return place.workspace_id


def _json(row: sa.Row[Any]) -> dict[str, Any]:
    """``v1Template``, and ours: ``workspaceName``."""
    return {
        "name": row.name,
        "config": row.config,
        "workspaceId": row.workspace_id,
        "workspaceName": row.workspace_name,
    }


async def _one(db: Database, name: str) -> dict[str, Any]:
    async with db.tx() as conn:
        row = (await conn.execute(_SELECT.where(templates.c.name == name))).first()
    if row is None:
        raise NotFound(f"template {name} does not exist")
    return _json(row)


async def _answer(db: Database, name: str) -> Response:
    """The template as it is now, and a remark on what everybody can read in it."""
    found = await _one(db, name)
    remarks = dropped_fields(found["config"])
    if secret_values(found["config"]):
        remarks.append(
            "every user can read and use a template, and this one holds what looks like a secret: put it "
            "into each user's own configuration"
        )
    return JsonResponse({"template": found, "remarks": remarks})


@router.get("")
async def list_templates(
    user: TemplateReader,
    db: Db,
    workspaceIds: Annotated[ManyIds, Query(default_factory=list)],
    name: Name = "",
    orderBy: OrderBy = "ORDER_BY_ASC",
    offset: Offset = 0,
    limit: Limit = 0,
) -> Response:
    """Every template, by name; with `name`, those whose names contain it."""
    order = templates.c.name.desc() if orderBy == "ORDER_BY_DESC" else templates.c.name.asc()
    statement = _SELECT.order_by(order)
    if name:
        statement = statement.where(templates.c.name.icontains(name, autoescape=True))
    if any(workspaceIds):
        statement = statement.where(templates.c.workspace_id.in_(workspaceIds))
    heavy = weight(templates.c.config)
    return await answer_list(
        db, "templates", statement, templates.c.name, heavy, each(_json), offset=offset, limit=limit
    )


@router.get(ONE)
async def read_template(template_name: Name, user: TemplateReader, db: Db) -> Response:
    """One template with its configuration."""
    return JsonResponse({"template": await _one(db, template_name)})


@router.post(ONE)
async def create_template(
    template_name: Name, given: NewTemplate, user: Creator, db: Db
) -> Response:
    """Creates the template. 409 when there is one of that name."""
    name = keeping.check_name(template_name)
    await keeping.check(given.config, name)
    async with changing(db) as change:
        within = await given.place(change.conn, user)
        await keeping.create(change.conn, name, given.config, user.user_id, user.task, within)
    return await _answer(db, name)


@router.put(ONE)
async def put_template(
    template_name: Name,
    given: NewTemplate,
    admission: Annotated[Admission, may_named(Action.CHANGE, Kind.TEMPLATE)],
    db: Db,
) -> Response:
    """Replaces the configuration of the template, or creates it if it does not exist."""
    name = keeping.check_name(template_name)
    await keeping.check(given.config, name)
    if not await _replaced(admission, db, name, given.config):
        creator = admission.subject
        authorise(creator, Action.CREATE, Target(Kind.TEMPLATE))
        try:
            async with changing(db) as change:
                within = await given.place(change.conn, creator)
                await keeping.create(
                    change.conn, name, given.config, creator.user_id, creator.task, within
                )
        except Conflict:
            # Another request may have made it meanwhile.
            if not await _replaced(admission, db, name, given.config):
                raise
    return await _answer(db, name)


async def _replaced(admission: Admission, db: Database, name: str, config: dict[str, Any]) -> bool:
    """False: the template does not exist, or the sender does not see it. Raises Forbidden."""
    try:
        await admission.admit(name)
        async with changing(db) as change:
            await keeping.replace_config(change.conn, name, config)
    except NotFound:
        return False
    return True


@router.patch(ONE)
async def change_template(
    template_name: Name,
    config: dict[str, Any],
    user: Annotated[Principal, may(Action.CHANGE, Kind.TEMPLATE)],
    db: Db,
) -> Response:
    """Replaces the template's configuration by the body."""
    await keeping.check(config, template_name)
    async with changing(db) as change:
        await keeping.replace_config(change.conn, template_name, config)
    return await _answer(db, template_name)


@router.delete(ONE)
async def delete_template(
    template_name: Name,
    user: Annotated[Principal, may(Action.DELETE, Kind.TEMPLATE)],
    db: Db,
) -> Response:
    """Deletes the template; experiments and tasks that were made with it keep their values."""
    async with changing(db) as change:
        await keeping.delete(change.conn, template_name)
    return JsonResponse({})
