"""MLflow clients' data about a logged model, stored in the metadata of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from determined_registry.database.tables import (
    checkpoints,
    mlflow_model_metrics,
    mlflow_runs,
    trials,
)
from determined_registry.mlflow.names import SAID, SAID_STEP, flat, model_id_of
from determined_service.base.errors import Forbidden, NotFound
from determined_service.ingest.mlflow_batches import ModelPoint
from determined_service.lifecycle.checkpoints import lock_metadata, store_metadata
from determined_service.state.change import Change

c, t, m = checkpoints.c, trials.c, mlflow_runs.c


@dataclass(frozen=True, slots=True)
class ModelChange:
    """Changes of a model. Fields that are None, and keys missing in ``tags`` and ``params``, stay as they
    are; a key whose value is None is removed."""

    tags: Mapping[str, str | None] | None = None
    params: Mapping[str, str | None] | None = None
    step: int | None = None
    deleted: bool | None = None


async def change_model(change: Change, uuid: UUID, given: ModelChange) -> None:
    """Apply the changes to the model's checkpoint. Raises NotFound; BadRequest for too large values."""
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


_OWNED_ALIKE = sa.text(
    """
    SELECT c.uuid, e.owner_id = (
        SELECT own.owner_id FROM trials t JOIN experiments own ON own.id = t.experiment_id WHERE t.id = :trial
    ) AS alike
    FROM checkpoints c JOIN experiments e ON e.id = c.experiment_id
    WHERE c.uuid = ANY(:uuids) AND c.state <> 'DELETED'
    """
)


async def log_metrics(change: Change, trial_id: int, points: Sequence[ModelPoint]) -> None:
    """Store the metrics that the trial's run reports of models; existing points stay. The caller has checked
    that the user may report for the trial.

    Raises NotFound; Forbidden for the model of another user than the trial's owner.
    """
    uuids = {one.model for one in points}
    rows = await change.conn.execute(_OWNED_ALIKE, {"trial": trial_id, "uuids": list(uuids)})
    alike = {row.uuid: row.alike for row in rows}
    for uuid in uuids:
        if uuid not in alike:
            raise NotFound(f"logged model {model_id_of(uuid)} does not exist")
        if not alike[uuid]:
            raise Forbidden(
                f"logged model {model_id_of(uuid)} belongs to another user than run {trial_id}: leave "
                "model_id out, and the metric is the run's alone"
            )
    values = [
        {
            "checkpoint_uuid": one.model,
            "trial_id": trial_id,
            "key": one.point[0],
            "value": float(one.point[1]),
            "moment": one.point[2],
            "step": one.point[3],
            "dataset_name": one.dataset_name,
            "dataset_digest": one.dataset_digest,
        }
        # Always in one order: two who log the same points wait for each other.
        for one in sorted(points, key=lambda one: (one.model, one.point[0], one.point[2:]))
    ]
    await change.conn.execute(insert(mlflow_model_metrics).on_conflict_do_nothing(), values)


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
