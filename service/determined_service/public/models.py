"""The models of the registry: found, made, changed, archived and deleted."""

# Parameters and fields are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

import uuid
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined.common.wire import limits
from determined_registry import models as registry
from determined_registry.database.tables import models, users
from determined_service.access.dependencies import ModelReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, Labels, Name, Notes, Text
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest, NotFound
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import models as modelling
from determined_service.lifecycle import places
from determined_service.lifecycle import workspaces as workspacing
from determined_service.lifecycle.places import Named, Place
from determined_service.state.change import reader
from determined_service.views.lists import answer_list, each
from determined_service.views.models import (
    SORT_KEYS,
    WEIGHT,
    get_model,
    model_json,
    select_models,
)
from determined_service.views.paging import Limit, Offset, OrderBy, ordered
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Models", "/api/v1")
MODEL = "/models/{model_name}"

m = models.c
# Of a new model there is none yet.
Creator = Annotated[Principal, may(Action.CREATE, Kind.MODEL)]
Changer = Annotated[Principal, may(Action.CHANGE, Kind.MODEL)]
Remover = Annotated[Principal, may(Action.DELETE, Kind.MODEL)]
Metadata = dict[str, Any]
Tags = Annotated[dict[str, str | None], Field(max_length=limits.TAGS)]
ManyNames = Annotated[list[Name], Query(default_factory=list, max_length=limits.LABELS)]
ManyIds = Annotated[list[Id], Query(default_factory=list, max_length=limits.LABELS)]


class ModelPatch(BaseModel):
    """``v1PatchModel``: what is null or left out stays as it is."""

    name: Name | None = None
    description: Text | None = None
    notes: Notes | None = None
    metadata: Metadata | None = None
    labels: Labels | None = None
    workspaceId: Id | None = None
    workspaceName: Name | None = None

    def values(self) -> dict[str, Any]:
        """For the registry, all but the workspace."""
        workspace = {"workspaceId", "workspaceName", "requestId"}
        return {
            name: value
            for name, value in self.model_dump(exclude=workspace).items()
            if value is not None
        }

    def named(self) -> Named:
        """The workspace."""
        return Named(self.workspaceName or "", workspace_id=self.workspaceId)


class NewModel(ModelPatch):
    """``v1PostModelRequest``, and ours: ``tags``, ``requestId`` (of a request that may be sent twice)."""

    name: Name
    tags: Tags | None = None
    requestId: uuid.UUID | None = None


@router.get("/models")
async def list_models(
    user: ModelReader,
    db: Db,
    labels: ManyNames,
    users_: Annotated[list[Name], Query(default_factory=list, alias="users", max_length=200)],
    userIds: ManyIds,
    workspaceNames: ManyNames,
    workspaceIds: ManyIds,
    offset: Offset = 0,
    limit: Limit = 0,
    sortBy: str = "SORT_BY_UNSPECIFIED",
    orderBy: OrderBy = "ORDER_BY_ASC",
    name: Name | None = None,
    description: Name | None = None,
    id: Id | None = None,
    archived: bool | None = None,
) -> Response:
    """Models that match all filters: part of the name and of the description, all of the labels, one of the
    users."""
    statement = select_models().order_by(*ordered(SORT_KEYS, sortBy, orderBy, m.id))
    if name:
        statement = statement.where(m.name.icontains(name, autoescape=True))
    if description:
        statement = statement.where(m.description.icontains(description, autoescape=True))
    if labels:
        statement = statement.where(m.labels.contains(labels))
    if users_:
        statement = statement.where(users.c.username.in_(users_))
    if userIds:
        statement = statement.where(m.owner_id.in_(userIds))
    # Determined's clients send 0 for none.
    if id:
        statement = statement.where(m.id == id)
    if archived is not None:
        statement = statement.where(m.archived == archived)
    within = {one for one in workspaceIds if one > 0}
    if workspaceNames:
        async with reader(db).connect() as conn:
            named = [await places.workspace_named(conn, user, one, None) for one in workspaceNames]
        within |= {one for one in named if one is not None}
    if within:
        statement = statement.where(m.workspace_id.in_(within))
    return await answer_list(
        db, "models", statement, m.id, WEIGHT, each(model_json), offset=offset, limit=limit
    )


@router.post("/models")
async def create_model(given: NewModel, user: Creator, db: Db) -> Response:
    """A new model, owned by the sender. Names are unique in any case of letters."""
    async with db.tx() as conn:
        place = await _place(conn, user, given.named())
        model_id = await modelling.apply(
            conn,
            registry.create_model,
            owner_id=user.user_id,
            submitted_by=user.task,
            request_id=given.requestId,
            workspace_id=place.workspace_id,
            **given.values(),
        )
        return JsonResponse({"model": await get_model(conn, model_id)})


@router.get("/model/labels")
async def list_labels(user: ModelReader, db: Db, workspaceId: Id | None = None) -> Response:
    """The labels of models that are not archived, the most used ones first."""
    within = sa.true() if not workspaceId else m.workspace_id == workspaceId
    label = sa.func.jsonb_array_elements_text(m.labels).table_valued("value")
    statement = (
        sa.select(label.c.value)
        .select_from(models)
        .join(label, sa.true())
        .where(~m.archived, within)
        .group_by(label.c.value)
        .order_by(sa.func.count().desc(), label.c.value)
        .limit(limits.MANY_IDS)
    )
    async with reader(db).connect() as conn:
        found = list((await conn.execute(statement)).scalars())
    return JsonResponse({"labels": found})


@router.get(MODEL)
async def read_model(model_name: str, user: ModelReader, db: Db) -> Response:
    """One model, by its name (in any case of letters) or its id."""
    async with reader(db).connect() as conn:
        return JsonResponse({"model": await get_model(conn, model_name)})


@router.patch(MODEL)
async def change_model(model_name: str, given: ModelPatch, user: Changer, db: Db) -> Response:
    """Changes the name, texts, metadata, labels or workspace; metadata and labels are replaced as wholes."""
    async with db.tx() as conn:
        named = given.named()
        model_id = await modelling.apply(conn, registry.change_model, model_name, **given.values())
        if named.workspace or named.workspace_id:
            await _move(conn, user, model_id, named)
        return JsonResponse({"model": await get_model(conn, model_id)})


@router.delete(MODEL)
async def delete_model(model_name: str, user: Remover, db: Db) -> Response:
    """Deletes the model with its versions and aliases; its checkpoints stay, and may be deleted again."""
    async with db.tx() as conn:
        await modelling.apply(conn, registry.delete_model, model_name)
    return JsonResponse({})


@router.post(f"{MODEL}/archive")
async def archive_model(
    model_name: str,
    user: Annotated[Principal, may(Action.CHANGE, Kind.MODEL, "archive")],
    db: Db,
) -> Response:
    """Archives the model: it keeps its versions, and changes no more."""
    return await _set_archived(db, model_name, True)


@router.post(f"{MODEL}/unarchive")
async def unarchive_model(
    model_name: str,
    user: Annotated[Principal, may(Action.CHANGE, Kind.MODEL, "unarchive")],
    db: Db,
) -> Response:
    """Lets an archived model change again."""
    return await _set_archived(db, model_name, False)


async def _set_archived(db: Database, model_name: str, archived: bool) -> Response:
    async with db.tx() as conn:
        await modelling.apply(conn, registry.set_archived, model_name, archived)
    return JsonResponse({})


class ModelMove(BaseModel):
    """``v1MoveModelRequest``."""

    destinationWorkspaceId: Id


@router.post(f"{MODEL}/move")
async def move_model(
    model_name: str,
    given: ModelMove,
    user: Annotated[Principal, may(Action.CHANGE, Kind.MODEL, "move")],
    db: Db,
) -> Response:
    """Moves the model to a workspace, in which the sender may make models."""
    field = "destinationWorkspaceId"
    named = Named(workspace_id=given.destinationWorkspaceId, workspace_field=field)
    async with db.tx() as conn:
        model_id = await modelling.apply(conn, registry.change_model, model_name)
        await _move(conn, user, model_id, named)
    return JsonResponse({})


async def _place(conn: AsyncConnection, user: Principal, named: Named) -> Place:
    """The workspace of a model, held. Raises NotFound, which Determined's clients expect here; Conflict,
    Forbidden."""
    try:
        return await places.find(conn, user, named, Kind.MODEL, whole=True, lock=True)
    except BadRequest as error:
        raise NotFound(error.message) from None


async def _move(conn: AsyncConnection, user: Principal, model_id: int, named: Named) -> None:
    """Moves a model that is locked, or has just been changed."""
    place = await _place(conn, user, named)
    await workspacing.move_model(conn, model_id, place.workspace_id)


class MetadataChange(BaseModel):
    """Keys to set, and keys to remove; the others stay."""

    metadata: Metadata = Field(default_factory=dict)
    remove: Annotated[list[str], Field(max_length=limits.MANY_IDS)] = Field(default_factory=list)


@router.patch(f"{MODEL}/metadata")
async def change_metadata(
    model_name: str, given: MetadataChange, user: Changer, db: Db
) -> Response:
    """Sets keys of the `metadata`, and removes those named in `remove`; the others stay, so that several may
    note something at once."""
    async with db.tx() as conn:
        model_id = await modelling.apply(
            conn, registry.change_metadata, model_name, given.metadata, set(given.remove)
        )
        return JsonResponse({"model": await get_model(conn, model_id)})


class TagChange(BaseModel):
    """Tags to set, and with null to delete; the others stay."""

    tags: Tags


@router.patch(f"{MODEL}/tags")
async def change_tags(model_name: str, given: TagChange, user: Changer, db: Db) -> Response:
    """Sets tags of the model, texts by key; null deletes one. Apart from labels, as MLflow has them."""
    async with db.tx() as conn:
        model_id = await modelling.apply(conn, registry.set_tags, model_name, given.tags)
        return JsonResponse({"model": await get_model(conn, model_id)})
