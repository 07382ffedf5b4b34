"""Versions of models, aliases that stand for them, and which trials use them."""

# Parameters and fields are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from starlette.responses import Response

from determined.common.wire import limits
from determined_registry import models as registry
from determined_registry.database.tables import metrics, model_alias_history, model_versions
from determined_service.access.dependencies import Admission, ModelReader, may, may_named
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, Labels, Name, Notes, Text
from determined_service.base.errors import BadRequest, NotFound
from determined_service.base.ids import parse_uuid
from determined_service.base.json import JsonResponse, dumps
from determined_service.lifecycle import models as modelling
from determined_service.public.models import MODEL, Changer, Metadata, TagChange, Tags
from determined_service.views.lists import answer_list, each
from determined_service.views.metrics import WEIGHT as REPORT_WEIGHT
from determined_service.views.metrics import report_json
from determined_service.views.models import (
    VERSION_SORT_KEYS,
    VERSION_WEIGHT,
    find_model,
    get_model,
    get_version,
    model_json,
    move_json,
    select_moves,
    select_uses,
    select_versions,
    version_json,
)
from determined_service.views.paging import Limit, Offset, OrderBy, count_of, fetch_page, ordered
from determined_service.web.router import Router
from determined_service.web.state import Db, ViewerOf

router = Router("Models", "/api/v1")
VERSION = f"{MODEL}/versions/{{version}}"
ALIAS = f"{MODEL}/aliases/{{alias}}"


class VersionChange(BaseModel):
    """``v1PatchModelVersion``: what is null or left out stays as it is."""

    name: Name | None = None
    comment: Text | None = None
    notes: Notes | None = None
    metadata: Metadata | None = None
    labels: Labels | None = None
    checkpoint: dict[str, Any] | None = None


class NewVersion(BaseModel):
    """``v1PostModelVersionRequest``, and ours: ``tags``, ``requestId`` (of a request that may be sent
    twice)."""

    checkpointUuid: Name
    name: Name | None = None
    comment: Text | None = None
    notes: Notes | None = None
    metadata: Metadata | None = None
    labels: Labels | None = None
    tags: Tags | None = None
    requestId: uuid.UUID | None = None


@router.get(f"{MODEL}/versions")
async def list_versions(
    model_name: str,
    user: ModelReader,
    db: Db,
    viewer_of: ViewerOf,
    offset: Offset = 0,
    limit: Limit = 0,
    sortBy: str = "SORT_BY_UNSPECIFIED",
    orderBy: OrderBy = "ORDER_BY_ASC",
) -> Response:
    """A model's versions, each with its checkpoint."""
    viewer = viewer_of(user)
    async with db.tx() as conn:
        model = await find_model(conn, model_name)
        number = VERSION_SORT_KEYS["VERSION"]
        statement = select_versions(model.id).order_by(
            *ordered(VERSION_SORT_KEYS, sortBy, orderBy, number)
        )
    shown = model_json(model)
    return await answer_list(
        db,
        "modelVersions",
        statement,
        model_versions.c.id,
        VERSION_WEIGHT + len(dumps(shown)),
        each(lambda row: version_json(row, shown, viewer)),
        offset=offset,
        limit=limit,
        beside={"model": shown},
    )


@router.post(f"{MODEL}/versions")
async def register_version(
    model_name: str,
    given: NewVersion,
    admission: Annotated[Admission, may_named(Action.REGISTER, Kind.MODEL, "register versions of")],
    db: Db,
    viewer_of: ViewerOf,
) -> Response:
    """Makes a COMPLETED checkpoint the model's next version. From then on it cannot be deleted."""
    user = await admission.admit(model_name)
    checkpoint = parse_uuid(given.checkpointUuid, "checkpoint")
    # Its owner could not delete it any more.
    await replace(admission, verb="register").admit(checkpoint, kind=Kind.CHECKPOINT)
    values = given.model_dump(exclude={"checkpointUuid", "requestId"}, exclude_none=True)
    async with db.tx() as conn:
        row = await modelling.apply(
            conn,
            registry.register_version,
            model_name,
            checkpoint,
            user.user_id,
            request_id=given.requestId,
            **values,
        )
        made = await get_version(conn, row.model_id, row.version, viewer_of(user))
    return JsonResponse({"modelVersion": made})


@router.get(VERSION)
async def read_version(
    model_name: str, version: Id, user: ModelReader, db: Db, viewer_of: ViewerOf
) -> Response:
    """One version, its checkpoint, and where it comes from (`lineage`)."""
    async with db.tx() as conn:
        found = await get_version(conn, model_name, version, viewer_of(user))
    return JsonResponse({"modelVersion": found})


@router.patch(VERSION)
async def change_version(
    model_name: str,
    version: Id,
    given: VersionChange,
    user: Changer,
    db: Db,
    viewer_of: ViewerOf,
) -> Response:
    """Changes the name, comment, notes, metadata or labels of a version; its checkpoint never changes."""
    if given.checkpoint is not None:
        raise BadRequest(
            "checkpoint: a version keeps its checkpoint; register the other one as a new version"
        )
    values = given.model_dump(exclude={"checkpoint"}, exclude_none=True)
    async with db.tx() as conn:
        await modelling.apply(conn, registry.change_version, model_name, version, **values)
        found = await get_version(conn, model_name, version, viewer_of(user))
    return JsonResponse({"modelVersion": found})


@router.delete(VERSION)
async def delete_version(
    model_name: str,
    version: Id,
    user: Annotated[Principal, may(Action.DELETE, Kind.MODEL, "delete versions of")],
    db: Db,
) -> Response:
    """Deletes a version and its aliases. Its number never returns; its checkpoint may be deleted again."""
    async with db.tx() as conn:
        await modelling.apply(conn, registry.delete_version, model_name, version, user.user_id)
    return JsonResponse({})


@router.patch(f"{VERSION}/tags")
async def change_version_tags(
    model_name: str, version: Id, given: TagChange, user: Changer, db: Db, viewer_of: ViewerOf
) -> Response:
    """Sets tags of a version, texts by key; null deletes one."""
    async with db.tx() as conn:
        await modelling.apply(conn, registry.set_version_tags, model_name, version, given.tags)
        found = await get_version(conn, model_name, version, viewer_of(user))
    return JsonResponse({"modelVersion": found})


_USE = "TRIAL_SOURCE_INFO_TYPE_"
Use = Literal[
    "TRIAL_SOURCE_INFO_TYPE_UNSPECIFIED",
    "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
    "TRIAL_SOURCE_INFO_TYPE_FINE_TUNING",
]


def _kind(use: Use | None) -> str | None:
    name = (use or "").removeprefix(_USE)
    return name if name in modelling.KINDS else None


@router.get(f"{VERSION}/metrics")
async def read_uses(
    model_name: str,
    version: Id,
    user: ModelReader,
    db: Db,
    metricGroup: Name | None = None,
    trialSourceInfoType: Use | None = None,
) -> Response:
    """The reports of trials that say they use this version, in batch inference for example."""
    async with db.tx() as conn:
        row = await modelling.apply(conn, registry.find_version, model_name, version)
        statement = select_uses(row.model_id, version, _kind(trialSourceInfoType), metricGroup)
        count = await count_of(conn, statement.limit(limits.REPORTS_OF_USES + 1))
    if count > limits.REPORTS_OF_USES:
        raise BadRequest(
            f"more than {limits.REPORTS_OF_USES} reports found: ask for one metricGroup, or for one trial's "
            "metrics"
        )
    return await answer_list(
        db, "metrics", statement, metrics.c.id, REPORT_WEIGHT, each(report_json), offset=0, limit=-1
    )


class _Source(BaseModel):
    trialId: Id
    checkpointUuid: Name
    trialSourceInfoType: Use
    modelId: Id | None = None
    modelVersion: Id | None = None


class NewSource(BaseModel):
    """``v1ReportTrialSourceInfoRequest``."""

    trialSourceInfo: _Source


@router.post("/trial-source-info")
async def report_use(
    given: NewSource,
    admission: Annotated[Admission, may_named(Action.REPORT, Kind.TRIAL, "report for")],
    db: Db,
) -> Response:
    """A trial says which checkpoint, or which version of a model, it uses; may be repeated."""
    info = given.trialSourceInfo
    await admission.admit(info.trialId)
    kind = _kind(info.trialSourceInfoType)
    if kind is None:
        raise BadRequest(f"trialSourceInfoType: expected {_USE} and {' or '.join(modelling.KINDS)}")
    if (info.modelId is None) != (info.modelVersion is None):
        raise BadRequest("give both modelId and modelVersion, or neither")
    checkpoint = parse_uuid(info.checkpointUuid, "checkpoint")
    source = modelling.UsedModel(info.trialId, checkpoint, kind, info.modelId, info.modelVersion)
    async with db.tx() as conn:
        await modelling.note_source(conn, source)
    return JsonResponse({"trialId": info.trialId, "checkpointUuid": str(checkpoint)})


class AliasTarget(BaseModel):
    """The new version of an alias."""

    version: Id


@router.get(ALIAS)
async def read_alias(
    model_name: str, alias: str, user: ModelReader, db: Db, viewer_of: ViewerOf
) -> Response:
    """The version that an alias stands for."""
    async with db.tx() as conn:
        model = await get_model(conn, model_name)
        if alias not in model["aliases"]:
            known = ", ".join(sorted(model["aliases"])[:20]) or "none"
            raise NotFound(f"model {model['name']!r} has no alias {alias[:300]!r}; it has {known}")
        version = model["aliases"][alias]
        found = await get_version(conn, model["id"], version, viewer_of(user))
    return JsonResponse({"modelVersion": found})


@router.put(ALIAS)
async def put_alias(
    model_name: str,
    alias: str,
    given: AliasTarget,
    user: Annotated[Principal, may(Action.CHANGE, Kind.MODEL, "move aliases of")],
    db: Db,
) -> Response:
    """The alias stands for this version from now on; answers the version before (`fromVersion`, or null)."""
    async with db.tx() as conn:
        before = await modelling.apply(
            conn, registry.set_alias, model_name, alias, given.version, user.user_id
        )
    return JsonResponse({"alias": alias, "fromVersion": before, "toVersion": given.version})


@router.delete(ALIAS)
async def delete_alias(
    model_name: str,
    alias: str,
    user: Annotated[Principal, may(Action.CHANGE, Kind.MODEL, "delete aliases of")],
    db: Db,
) -> Response:
    """Deletes an alias; answers the version that it stood for (`fromVersion`). Its history stays."""
    async with db.tx() as conn:
        before = await modelling.apply(conn, registry.delete_alias, model_name, alias, user.user_id)
    return JsonResponse({"alias": alias, "fromVersion": before, "toVersion": None})


@router.get(f"{MODEL}/alias-history")
async def list_moves(
    model_name: str,
    user: ModelReader,
    db: Db,
    alias: Name | None = None,
    offset: Offset = 0,
    limit: Limit = 0,
    orderBy: OrderBy = "ORDER_BY_ASC",
) -> Response:
    """The moves of the model's aliases (or of one): who moved it, when, from which version to which."""
    column = model_alias_history.c.id
    order = column.desc() if orderBy == "ORDER_BY_DESC" else column.asc()
    async with db.tx() as conn:
        model = await find_model(conn, model_name)
        statement = select_moves(model.id).order_by(order)
        if alias:
            statement = statement.where(model_alias_history.c.alias == alias)
        rows, pages = await fetch_page(conn, statement, offset, limit)
    return JsonResponse({"moves": [move_json(row) for row in rows], "pagination": pages})
