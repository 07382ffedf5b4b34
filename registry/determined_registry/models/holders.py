"""The registered checkpoints: neither a policy nor a person deletes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from determined_registry.database.tables import checkpoints, model_versions, models


def select_holders(of: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """``uuid``, ``model`` (name), ``version`` of every version whose checkpoint meets ``of``.

    True only for a caller that has locked the checkpoints FOR NO KEY UPDATE, in a statement before this one.
    """
    return (
        sa.select(checkpoints.c.uuid, models.c.name.label("model"), model_versions.c.version)
        .join(model_versions, model_versions.c.checkpoint_uuid == checkpoints.c.uuid)
        .join(models, models.c.id == model_versions.c.model_id)
        .where(of)
        .order_by(models.c.name, model_versions.c.version)
    )


def lock_checkpoints(of: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The ``uuid`` of each checkpoint that meets ``of``, locked in their order against registering."""
    return (
        sa.select(checkpoints.c.uuid)
        .where(of)
        .order_by(checkpoints.c.uuid)
        .with_for_update(key_share=True)
    )


def registered(conn: sa.Connection, uuids: Collection[UUID]) -> list[sa.Row[Any]]:
    """The rows of :func:`select_holders` for these checkpoints."""
    return list(conn.execute(select_holders(checkpoints.c.uuid.in_(uuids))))
