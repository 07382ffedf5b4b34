"""Deleting checkpoints and experiments, and what an experiment's policy would delete."""

# Parameters are named as in the API.
from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined_registry.tables import checkpoints, deletions, experiments
from determined_service.api.state import Db
from determined_service.auth import CurrentUser, Principal
from determined_service.control import deletions as deleting
from determined_service.control import lifecycle as states
from determined_service.control.change import Change, changing
from determined_service.control.experiments import lock_experiment
from determined_service.control.garbage import Policy, outside_policy
from determined_service.errors import BadRequest, Conflict, Forbidden, NotFound
from determined_service.json import JsonResponse
from determined_service.request import parse_uuid
from determined_service.views.checkpoints import select_checkpoints
from determined_service.views.experiments import require_experiment
from determined_service.views.values import moment, state

router = APIRouter(tags=["Checkpoints"])
api = "/api/v1"

Count = Annotated[int, Field(ge=0)]


class NamedCheckpoints(BaseModel):
    """``v1DeleteCheckpointsRequest``."""

    checkpointUuids: list[str]  # noqa: N815 - the name in the API


class NamedFiles(NamedCheckpoints):
    """``v1CheckpointsRemoveFilesRequest``; globs are relative to a checkpoint, ``**`` crosses directories."""

    checkpointGlobs: list[str]  # noqa: N815 - the name in the API


@router.delete(f"{api}/checkpoints")
async def delete_checkpoints(given: NamedCheckpoints, user: CurrentUser, db: Db) -> Response:
    """Has checkpoints deleted, in a flow run of their own; answers `deletionId` (null: they are gone).

    From now on nothing starts from them.
    """
    return await _delete(db, user, given.checkpointUuids, None)


@router.post(f"{api}/checkpoints/rm")
async def remove_files(given: NamedFiles, user: CurrentUser, db: Db) -> Response:
    """Has the files of checkpoints deleted that match a glob; answers `deletionId`.

    A checkpoint that loses files is PARTIALLY_DELETED, and nothing starts from it any more; one that
    loses all of them is DELETED.
    """
    for glob in given.checkpointGlobs:
        if not glob or glob.startswith("/") or ".." in glob.split("/"):
            raise BadRequest(
                f"glob {glob!r}: must be relative to the checkpoint, such as '*.pt' or 'logs/**'"
            )
    if not given.checkpointGlobs:
        raise BadRequest("checkpointGlobs is empty: name files, or delete the checkpoints")
    return await _delete(db, user, given.checkpointUuids, given.checkpointGlobs)


async def _delete(db: Db, user: Principal, given: list[str], globs: list[str] | None) -> Response:
    uuids = {parse_uuid(name, "checkpoint") for name in given}
    if not uuids:
        raise BadRequest("checkpointUuids is empty: name checkpoints")
    async with changing(db) as change:
        makers = sa.select(checkpoints.c.experiment_id).where(checkpoints.c.uuid.in_(uuids))
        await _require_owner(change.conn, user, makers)
        deletion_id = await deleting.delete_checkpoints(change, uuids, globs)
    return JsonResponse({"deletionId": deletion_id})


async def _require_owner(conn: AsyncConnection, user: Principal, ids: Any) -> None:
    if user.admin:
        return
    owners = sa.select(experiments.c.id, experiments.c.owner_id)
    for row in await conn.execute(owners.where(experiments.c.id.in_(ids))):
        if row.owner_id != user.user_id:
            raise Forbidden(
                f"experiment {row.id} belongs to another user: only that user and administrators "
                f"may delete what it has made"
            )


@router.delete(f"{api}/experiments/{{experiment_id}}", tags=["Experiments"])
async def delete_experiment(experiment_id: int, user: CurrentUser, db: Db) -> Response:
    """Has an experiment that has ended deleted: rows, logs, checkpoints, TensorBoard files, Prefect runs.

    It is DELETING until it is gone, or DELETE_FAILED with a reason; then it may be asked for again.
    """
    async with changing(db) as change:
        what = f"be deleted (det e kill {experiment_id} ends it)"
        await _lock_ended(change, user, experiment_id, states.ENDED, what)
        await deleting.delete_experiment(change, experiment_id)
    return JsonResponse({})


@router.delete(f"{api}/experiments/{{experiment_id}}/tensorboard-files", tags=["Experiments"])
async def delete_tensorboard_files(experiment_id: int, user: CurrentUser, db: Db) -> Response:
    """Has the TensorBoard files of an experiment that has ended deleted; answers `deletionId`."""
    async with changing(db) as change:
        what = "have its TensorBoard files deleted"
        await _lock_ended(change, user, experiment_id, states.TERMINAL, what)
        deletion_id = await deleting.delete_tensorboard_files(change, experiment_id)
    return JsonResponse({"deletionId": deletion_id})


async def _lock_ended(
    change: Change, user: Principal, experiment_id: int, ended: Collection[str], what: str
) -> None:
    """Locks the experiment. Raises NotFound, Conflict unless its state is among ``ended``, Forbidden for
    who is neither its owner nor an administrator."""
    experiment = await lock_experiment(change, experiment_id)
    if experiment.state not in ended:
        raise Conflict(
            f"experiment {experiment_id} is {experiment.state}: only an experiment that has ended can "
            f"{what}"
        )
    await _require_owner(change.conn, user, [experiment_id])


@router.get(f"{api}/deletions/{{deletion_id}}")
async def read_deletion(deletion_id: int, user: CurrentUser, db: Db) -> Response:
    """How far a deletion is: state REQUESTED, DONE or FAILED, and the reason."""
    async with db.tx() as conn:
        found = await conn.execute(sa.select(deletions).where(deletions.c.id == deletion_id))
    row = found.first()
    if row is None:
        raise NotFound(f"deletion {deletion_id} does not exist (any more)")
    return JsonResponse(
        {
            "id": row.id,
            "state": state(row.state),
            "reason": row.reason,
            "experimentId": row.experiment_id,
            "flowRunId": row.flow_run_id and str(row.flow_run_id),
        }
    )


async def set_policy(change: Change, experiment_id: int, given: dict[str, Any]) -> None:
    """Replaces (parts of) the experiment's policy; what it no longer keeps is deleted, at once when the
    experiment has ended, else at its end. Raises NotFound, BadRequest."""
    experiment = await lock_experiment(change, experiment_id)
    names = {
        "saveExperimentBest": "save_experiment_best",
        "saveTrialBest": "save_trial_best",
        "saveTrialLatest": "save_trial_latest",
    }
    values: dict[str, int] = {}
    for name, value in given.items():
        if name not in names:
            raise BadRequest(
                f"checkpointStorage.{name} of an experiment cannot be changed; its policy can: "
                f"{', '.join(names)}"
            )
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadRequest(f"checkpointStorage.{name} must be a whole number of at least 0")
        values[names[name]] = value
    config = experiments.c.config
    await change.conn.execute(
        sa.update(experiments)
        .where(experiments.c.id == experiment_id)
        .values(
            config=sa.func.jsonb_set(
                config,
                sa.literal(["checkpoint_storage"], sa.ARRAY(sa.Text)),
                sa.func.coalesce(config["checkpoint_storage"], sa.cast({}, config.type)).op("||")(
                    sa.cast(values, config.type)
                ),
            )
        )
    )
    change.notify(f"experiment:{experiment_id}")
    if experiment.state in states.TERMINAL:
        await deleting.collect_garbage(change, experiment_id)


# Determined's command line asks at this address, and for these keys.
@router.get("/experiments/{experiment_id}/preview_gc", tags=["Experiments"])
async def preview_gc(
    experiment_id: int,
    user: CurrentUser,
    db: Db,
    save_experiment_best: Annotated[int, Query(ge=0)] = 0,
    save_trial_best: Annotated[int, Query(ge=0)] = 0,
    save_trial_latest: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """The checkpoints that this policy would delete now."""
    policy = Policy(save_experiment_best, save_trial_best, save_trial_latest)
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
        doomed = await outside_policy(conn, experiment_id, policy)
        rows = await conn.execute(
            select_checkpoints()
            .where(checkpoints.c.uuid.in_(doomed))
            .order_by(checkpoints.c.trial_id, checkpoints.c.report_time)
        )
        metric = await conn.execute(
            sa.select(experiments.c.config["searcher"]["metric"].astext).where(
                experiments.c.id == experiment_id
            )
        )
    found = [
        {
            "UUID": str(row.uuid),
            "TrialID": row.trial_id,
            "StepsCompleted": row.steps_completed,
            "State": row.state,
            "ReportTime": moment(row.report_time),
            "Resources": row.resources,
            "ValidationMetrics": row.validation_metrics or {},
            "SearcherMetric": row.searcher_metric,
        }
        for row in rows
    ]
    return JsonResponse(
        {"checkpoints": found, "metric_name": metric.scalar_one(), "policy": asdict(policy)}
    )
