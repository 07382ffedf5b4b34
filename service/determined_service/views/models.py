"""Models and their versions: queries and JSON (``v1Model``, ``v1ModelVersion``)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    checkpoints,
    experiments,
    metrics,
    model_alias_history,
    model_aliases,
    model_versions,
    models,
    trial_sources,
    trials,
    users,
    workspaces,
)
from determined_registry.models.changes import ModelRef, named
from determined_service.base.errors import NotFound
from determined_service.views.checkpoints import WEIGHT as CHECKPOINT_WEIGHT
from determined_service.views.checkpoints import checkpoint_json, select_checkpoints
from determined_service.views.lists import weight
from determined_service.views.secrets import Viewer
from determined_service.views.values import moment, state

m = models.c
v = model_versions.c

NUM_VERSIONS = (
    sa.select(sa.func.count()).where(v.model_id == m.id).correlate(models).scalar_subquery()
)
_ALIASES = (
    sa.select(
        sa.func.coalesce(
            sa.func.jsonb_object_agg(model_aliases.c.alias, model_aliases.c.version),
            sa.text("'{}'::jsonb"),
        )
    )
    .where(model_aliases.c.model_id == m.id)
    .correlate(models)
    .scalar_subquery()
)

SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": m.id,
    "NAME": sa.func.lower(m.name),
    "DESCRIPTION": m.description,
    "CREATION_TIME": m.created_at,
    "LAST_UPDATED_TIME": m.updated_at,
    "NUM_VERSIONS": NUM_VERSIONS,
    "WORKSPACE": m.workspace_id,
}
VERSION_SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": v.version,
    "VERSION": v.version,
    "CREATION_TIME": v.created_at,
}

WEIGHT = weight(m.description, m.notes, m.user_metadata, m.labels, m.tags)
VERSION_WEIGHT = CHECKPOINT_WEIGHT + weight(v.comment, v.notes, v.user_metadata, v.labels, v.tags)


def select_models() -> sa.Select[Any]:
    """Every column that :func:`model_json` reads."""
    return (
        sa.select(
            models,
            users.c.username,
            NUM_VERSIONS.label("num_versions"),
            _ALIASES.label("aliases"),
            workspaces.c.name.label("workspace_name"),
        )
        .select_from(models)
        .join(workspaces, workspaces.c.id == m.workspace_id)
        .join(users, users.c.id == m.owner_id)
    )


def model_json(row: sa.Row[Any]) -> dict[str, Any]:
    """``v1Model``, and ours: ``tags``, ``aliases`` ({alias: version}), ``workspaceName``."""
    return {
        "id": row.id,
        "name": row.name,
        "description": row.description,
        "notes": row.notes,
        "metadata": row.user_metadata,
        "labels": row.labels,
        "creationTime": moment(row.created_at),
        "lastUpdatedTime": moment(row.updated_at),
        "numVersions": row.num_versions,
        "userId": row.owner_id,
        "username": row.username,
        "workspaceId": row.workspace_id,
        "workspaceName": row.workspace_name,
        "archived": row.archived,
        "tags": row.tags,
        "aliases": row.aliases,
    }


async def find_model(conn: AsyncConnection, model: ModelRef) -> sa.Row[Any]:
    """The row for :func:`model_json`. Raises NotFound."""
    row = (await conn.execute(select_models().where(named(model)))).first()
    if row is None:
        raise NotFound(f"model {str(model)[:300]!r} does not exist")
    return row


_COLUMNS = [column.label(f"v_{column.key}") for column in model_versions.c]
_registrant = users.alias("registrant")


def select_versions(model_id: int) -> sa.Select[Any]:
    """Every column that :func:`version_json` reads, of the model's versions."""
    return (
        select_checkpoints()
        .add_columns(*_COLUMNS, _registrant.c.username.label("v_username"))
        .join(model_versions, v.checkpoint_uuid == checkpoints.c.uuid)
        .join(_registrant, _registrant.c.id == v.owner_id)
        .where(v.model_id == model_id)
    )


def version_json(row: sa.Row[Any], model: dict[str, Any], viewer: Viewer) -> dict[str, Any]:
    """``v1ModelVersion``, and ours: ``tags``, ``aliases`` (a list), ``source``. ``model``: as JSON."""
    return {
        "id": row.v_id,
        "version": row.v_version,
        "name": row.v_name,
        "comment": row.v_comment,
        "notes": row.v_notes,
        "metadata": row.v_user_metadata,
        "labels": row.v_labels,
        "creationTime": moment(row.v_created_at),
        "lastUpdatedTime": moment(row.v_updated_at),
        "userId": row.v_owner_id,
        "username": row.v_username,
        "model": model,
        "checkpoint": checkpoint_json(row, viewer),
        "tags": row.v_tags,
        "aliases": sorted(
            alias for alias, version in model["aliases"].items() if version == row.v_version
        ),
        "source": row.v_source,
    }


async def get_model(conn: AsyncConnection, model: ModelRef) -> dict[str, Any]:
    """One model's JSON. Raises NotFound."""
    return model_json(await find_model(conn, model))


async def get_version(
    conn: AsyncConnection, model: ModelRef, version: int, viewer: Viewer
) -> dict[str, Any]:
    """One version's JSON, with its ``lineage``. Raises NotFound."""
    found = await get_model(conn, model)
    statement = select_versions(found["id"]).where(v.version == version)
    row = (await conn.execute(statement)).first()
    if row is None:
        raise NotFound(f"model {found['name']!r} has no version {version}")
    made = version_json(row, found, viewer)
    made["lineage"] = await _lineage(conn, row, made["checkpoint"])
    return made


async def _lineage(
    conn: AsyncConnection, row: sa.Row[Any], checkpoint: dict[str, Any]
) -> dict[str, Any] | None:
    """The version's origin, beside its checkpoint, which tells trial, hyperparameters, metrics and
    configuration. None: no trial has stored it.

    ``data``: the section of the configuration, where users name the data and its version; ``trialMetadata``:
    the trial's own metadata (``train.set_metadata``).
    """
    found = await conn.execute(
        sa.select(
            experiments.c.id,
            experiments.c.name,
            experiments.c.state,
            experiments.c.parent_id,
            experiments.c.unmanaged,
            experiments.c.model_def_hash,
            users.c.username,
            trials.c.run_metadata,
            trials.c.warm_start_checkpoint,
        )
        .join(users, users.c.id == experiments.c.owner_id)
        .outerjoin(trials, trials.c.id == row.trial_id)
        .where(experiments.c.id == row.experiment_id)
    )
    one = found.first()
    if one is None:
        return None
    config = checkpoint["training"]["experimentConfig"] or {}
    return {
        "experimentId": one.id,
        "experimentName": one.name,
        "experimentState": state(one.state),
        "experimentOwner": one.username,
        "parentExperimentId": one.parent_id,
        "unmanaged": one.unmanaged,
        "trialId": row.trial_id,
        "warmStartCheckpoint": one.warm_start_checkpoint and str(one.warm_start_checkpoint),
        "trialMetadata": one.run_metadata or {},
        "data": config.get("data") or {},
        # SHA-256 of the tar.gz with the training code.
        "modelDefinitionHash": one.model_def_hash,
    }


async def versions_of_checkpoint(conn: AsyncConnection, uuid: Any) -> list[dict[str, Any]]:
    """The versions that a checkpoint is: ``modelId``, ``modelName``, ``version``."""
    rows = await conn.execute(
        sa.select(m.id, m.name, v.version)
        .join(models, m.id == v.model_id)
        .where(v.checkpoint_uuid == uuid)
        .order_by(m.name, v.version)
    )
    return [{"modelId": row.id, "modelName": row.name, "version": row.version} for row in rows]


def select_moves(model_id: int) -> sa.Select[Any]:
    """Every column that :func:`move_json` reads, of the model's aliases."""
    return (
        sa.select(model_alias_history, users.c.username)
        .join(users, users.c.id == model_alias_history.c.user_id)
        .where(model_alias_history.c.model_id == model_id)
    )


def move_json(row: sa.Row[Any]) -> dict[str, Any]:
    """One move of an alias; ``fromVersion`` null: it was new, ``toVersion`` null: it was deleted."""
    return {
        "alias": row.alias,
        "fromVersion": row.from_version,
        "toVersion": row.to_version,
        "userId": row.user_id,
        "username": row.username,
        "time": moment(row.moved_at),
    }


def select_uses(model_id: int, version: int, kind: str | None, group: str | None) -> sa.Select[Any]:
    """The reports of the trials that say they use this version (for ``kind``), of one group or all."""
    using = sa.select(trial_sources.c.trial_id).where(
        trial_sources.c.model_id == model_id, trial_sources.c.model_version == version
    )
    if kind is not None:
        using = using.where(trial_sources.c.kind == kind)
    statement = (
        sa.select(metrics)
        .where(metrics.c.trial_id.in_(using), ~metrics.c.archived)
        .order_by(metrics.c.id)
    )
    return statement.where(metrics.c.group_name == group) if group else statement


async def alias_version(conn: AsyncConnection, model_id: int, alias: str) -> int | None:
    """The version that the alias stands for now."""
    found = await conn.execute(
        sa.select(model_aliases.c.version).where(
            model_aliases.c.model_id == model_id, model_aliases.c.alias == alias
        )
    )
    version: int | None = found.scalar_one_or_none()
    return version
