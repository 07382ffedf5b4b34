"""Changes of models, versions and aliases: :mod:`determined_registry.models` in the service's transactions.

And what trials say that they use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry import models as registry
from determined_registry.database.tables import checkpoints, trial_sources
from determined_service.base.errors import BadRequest, Conflict, NotFound

P = ParamSpec("P")
T = TypeVar("T")

KINDS = ("INFERENCE", "FINE_TUNING")
"""The ways in which a trial may use a checkpoint."""


async def apply(
    conn: AsyncConnection,
    function: Callable[Concatenate[sa.Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """``function`` of the registry, in this transaction. Its refusals become the service's."""
    try:
        return await conn.run_sync(function, *args, **kwargs)
    except registry.ModelNotFound as error:
        raise NotFound(str(error)) from None
    except registry.ModelConflict as error:
        raise Conflict(str(error)) from None
    except registry.Invalid as error:
        raise BadRequest(str(error)) from None


@dataclass(frozen=True, slots=True)
class UsedModel:
    """A checkpoint or model version that a trial uses. ``kind``: one of :data:`KINDS`; ``model_id`` and
    ``version``: both or neither."""

    trial_id: int
    checkpoint: UUID
    kind: str
    model_id: int | None = None
    version: int | None = None


async def note_source(conn: AsyncConnection, source: UsedModel) -> None:
    """The trial uses it; may be repeated. Raises NotFound; Conflict if the version is another checkpoint."""
    known = await conn.execute(
        sa.select(checkpoints.c.uuid).where(checkpoints.c.uuid == source.checkpoint)
    )
    if known.first() is None:
        raise NotFound(f"checkpoint {source.checkpoint} does not exist")
    if source.model_id is not None and source.version is not None:
        row = await apply(conn, registry.find_version, source.model_id, source.version)
        if row.checkpoint_uuid != source.checkpoint:
            raise Conflict(
                f"version {source.version} of model {source.model_id} is checkpoint {row.checkpoint_uuid}, "
                f"not {source.checkpoint}"
            )
    named = {"model_id": source.model_id, "model_version": source.version}
    key = {
        "trial_id": source.trial_id,
        "checkpoint_uuid": source.checkpoint,
        "kind": source.kind,
    }
    await conn.execute(
        insert(trial_sources)
        .values(**key, **named)
        .on_conflict_do_update(index_elements=list(key), set_=named)
    )
