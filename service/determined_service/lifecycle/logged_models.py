"""What MLflow's clients say of a logged model; it stands in the metadata of the checkpoint that it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from determined_registry.database.tables import checkpoints, mlflow_runs, trials
from determined_registry.mlflow.names import SAID, SAID_STEP, flat
from determined_service.lifecycle.checkpoints import lock_metadata, store_metadata
from determined_service.state.change import Change

c, t, m = checkpoints.c, trials.c, mlflow_runs.c


@dataclass(frozen=True, slots=True)
class ModelChange:
    """What is to change of a model; None, and what is left out of ``tags`` and ``params``, stays as it is.
    There None removes a key."""

    tags: Mapping[str, str | None] | None = None
    params: Mapping[str, str | None] | None = None
    step: int | None = None
    deleted: bool | None = None


async def change_model(change: Change, uuid: UUID, given: ModelChange) -> None:
    """Raises NotFound; BadRequest for what is too large."""
    metadata = await lock_metadata(change, uuid)
    said = metadata.get(SAID)
    if not isinstance(said, dict) or not said:
        said = {"params": await _shown(change, uuid), "tags": {}}
    after: dict[str, Any] = dict(said)
    for name, values in (("tags", given.tags), ("params", given.params)):
        if values is not None:
            both = {**(said.get(name) or {}), **values}
            after[name] = {key: value for key, value in both.items() if value is not None}
    if given.step is not None:
        after[SAID_STEP] = given.step
    if given.deleted is not None:
        after["deleted"] = given.deleted
    await store_metadata(change, uuid, {**metadata, SAID: after})


async def _shown(change: Change, uuid: UUID) -> dict[str, str]:
    """The parameters that MLflow's clients have seen so far, as nobody had said any: the trial's."""
    found = await change.conn.execute(
        sa.select(t.hparams, m.params)
        .select_from(checkpoints)
        .join(trials, t.id == c.trial_id)
        .outerjoin(mlflow_runs, m.trial_id == t.id)
        .where(c.uuid == uuid)
    )
    row = found.first()
    return {} if row is None else {**dict(flat(row.hparams)), **(row.params or {})}
