"""Deletes checkpoints and experiments, and lists the checkpoints that an experiment's policy would delete."""

# Parameters are named as in the API.
from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from determined_registry.database.tables import (
    checkpoints,
    deletions,
    experiments,
    kept_runs,
    tasks,
)
from determined_service.access.dependencies import (
    Admission,
    CheckpointReader,
    ExperimentReader,
    may,
    may_named,
)
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.bounds import BigId, Count, Id, ManyNames, Seconds
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.base.ids import parse_uuid
from determined_service.base.json import JsonResponse
from determined_service.deleting import deletions as deleting
from determined_service.deleting.garbage import KeepPolicy, outside_policy
from determined_service.lifecycle.experiments import lock_experiment
from determined_service.state import states
from determined_service.state.change import Change, changing
from determined_service.views.checkpoints import WEIGHT, select_checkpoints
from determined_service.views.experiments import require_experiment
from determined_service.views.lists import answer_list, each, raw
from determined_service.views.values import moment, state
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf
from determined_service.web.waiting import MAX_WAIT_S, poll, wait_seconds

router = Router("Checkpoints")
api = "/api/v1"


class NamedCheckpoints(BaseModel):
    """``v1DeleteCheckpointsRequest``."""

    checkpointUuids: ManyNames  # noqa: N815 - the name in the API


class NamedFiles(NamedCheckpoints):
    """``v1CheckpointsRemoveFilesRequest``; globs are relative to a checkpoint, ``**`` crosses directories."""

    checkpointGlobs: ManyNames  # noqa: N815 - the name in the API


@router.delete(f"{api}/checkpoints")
async def delete_checkpoints(
    given: NamedCheckpoints,
    admission: Annotated[Admission, may_named(Action.DELETE, Kind.CHECKPOINT)],
    db: Db,
) -> Response:
    """Requests the deletion of checkpoints, in a separate flow run; answers `deletionId` (null: they are
    already deleted).

    From now on no trial starts from them.
    """
    return await _delete(db, admission, given.checkpointUuids, None)


@router.post(f"{api}/checkpoints/rm")
async def remove_files(
    given: NamedFiles,
    admission: Annotated[Admission, may_named(Action.DELETE, Kind.CHECKPOINT, "delete files of")],
    db: Db,
) -> Response:
    """Requests the deletion of the checkpoints' files that match a glob; answers `deletionId`.

    A checkpoint that loses files is PARTIALLY_DELETED, and no trial starts from it any more. A checkpoint
    that loses all files is DELETED.

    Without globs nothing is deleted: the checkpoints' sizes and states become those of the files that are in
    the storage.
    """
    for glob in given.checkpointGlobs:
        if not glob or glob.startswith("/") or ".." in glob.split("/"):
            raise BadRequest(
                f"glob {glob!r}: must be relative to the checkpoint, such as '*.pt' or 'logs/**'"
            )
    return await _delete(db, admission, given.checkpointUuids, given.checkpointGlobs)


async def _delete(
    db: Db, admission: Admission, given: list[str], globs: list[str] | None
) -> Response:
    uuids = {parse_uuid(name, "checkpoint") for name in given}
    if not uuids:
        raise BadRequest("checkpointUuids is empty: name checkpoints")
    await admission.admit(*uuids)
    async with changing(db) as change:
        deletion_id = await deleting.delete_checkpoints(
            change, uuids, globs, owner_id=admission.subject.user_id
        )
    return JsonResponse({"deletionId": deletion_id})


@router.delete(f"{api}/experiments/{{experiment_id}}", tags=["Experiments"])
async def delete_experiment(
    experiment_id: Id, user: Annotated[Principal, may(Action.DELETE, Kind.EXPERIMENT)], db: Db
) -> Response:
    """Requests the deletion of an experiment that has ended: rows, logs, checkpoints, TensorBoard files,
    Prefect runs.

    The experiment is DELETING until it is gone. If that fails it is DELETE_FAILED with a reason, and the
    deletion may be requested again.
    """
    async with changing(db) as change:
        await request_deletion(change, experiment_id, user.user_id)
    return JsonResponse({})


async def request_deletion(change: Change, experiment_id: int, owner_id: int) -> None:
    """Begins the deletion of an ended experiment for that user. Raises NotFound, Conflict."""
    what = f"be deleted (det e kill {experiment_id} ends it)"
    await _lock_ended(change, experiment_id, states.ENDED, what)
    await deleting.delete_experiment(change, experiment_id, owner_id=owner_id)


@router.delete(f"{api}/experiments/{{experiment_id}}/tensorboard-files", tags=["Experiments"])
async def delete_tensorboard_files(
    experiment_id: Id,
    user: Annotated[
        Principal, may(Action.DELETE, Kind.EXPERIMENT, "delete the TensorBoard files of")
    ],
    db: Db,
    hub: HubOf,
    request: Request,
    timeout_seconds: Seconds = MAX_WAIT_S,
) -> Response:
    """Deletes an ended experiment's TensorBoard files; answers `deletionId` and `state` when they are gone.

    After `timeout_seconds` (60 at most) it answers in any case: `STATE_REQUESTED`. 409 with the reason when
    they could not be deleted.
    """
    async with changing(db) as change:
        what = "have its TensorBoard files deleted"
        await _lock_ended(change, experiment_id, states.TERMINAL, what)
        deletion_id = await deleting.delete_tensorboard_files(
            change, experiment_id, owner_id=user.user_id
        )

    async def ended() -> str | None:
        row = await _find(db, deletion_id)
        if row is None:  # The whole experiment has gone meanwhile.
            return states.COMPLETED
        if row.state == states.ERROR:
            raise Conflict(
                f"the TensorBoard files of experiment {experiment_id} could not be deleted: {row.reason}"
            )
        return None if row.state == states.ACTIVE else states.COMPLETED

    limit = wait_seconds(timeout_seconds)
    found = await poll(request, hub, [topics.DELETIONS], ended, limit)
    shown = deleting.SHOWN_STATE[found or states.ACTIVE]
    return JsonResponse({"deletionId": deletion_id, "state": state(shown)})


async def _lock_ended(change: Change, experiment_id: Id, ended: Collection[str], what: str) -> None:
    """Locks the experiment. Raises NotFound, Conflict unless its state is among ``ended``."""
    experiment = await lock_experiment(change, experiment_id)
    if experiment.state not in ended:
        raise Conflict(
            f"experiment {experiment_id} is {experiment.state}: only an experiment that has ended can "
            f"{what}"
        )


@router.get(f"{api}/deletions/{{deletion_id}}")
async def read_deletion(deletion_id: BigId, user: CheckpointReader, db: Db) -> Response:
    """The progress of a deletion: state REQUESTED, DONE or FAILED, and the reason."""
    row = await _find(db, deletion_id)
    if row is None:
        raise NotFound(f"deletion {deletion_id} does not exist (any more)")
    return JsonResponse(
        {
            "id": row.id,
            "taskId": row.task_id,
            "state": state(deleting.SHOWN_STATE[row.state]),
            "reason": row.reason,
            "experimentId": row.experiment_id,
            "flowRunId": row.flow_run_id and str(row.flow_run_id),
        }
    )


async def _find(db: Db, deletion_id: int) -> sa.Row[Any] | None:
    async with db.tx() as conn:
        found = await conn.execute(
            sa.select(deletions, tasks.c.state, tasks.c.reason, kept_runs.c.flow_run_id)
            .join(tasks, tasks.c.id == deletions.c.task_id)
            .outerjoin(kept_runs, kept_runs.c.deletion_id == deletions.c.id)
            .where(deletions.c.id == deletion_id)
        )
        return found.first()


# Determined's command line asks at this address, and for these keys.
@router.get("/experiments/{experiment_id}/preview_gc", tags=["Experiments"])
async def preview_gc(
    experiment_id: Id,
    user: ExperimentReader,
    db: Db,
    save_experiment_best: Count = 0,
    save_trial_best: Count = 0,
    save_trial_latest: Count = 0,
) -> Response:
    """The checkpoints that this policy would delete now."""
    policy = KeepPolicy(save_experiment_best, save_trial_best, save_trial_latest)
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
        doomed = (await outside_policy(conn, experiment_id, policy)).doomed
        metric = await conn.execute(
            sa.select(experiments.c.config["searcher"]["metric"].astext).where(
                experiments.c.id == experiment_id
            )
        )
    statement = (
        select_checkpoints()
        .add_columns(sa.cast(checkpoints.c.resources, sa.Text).label("resources"))
        .where(checkpoints.c.uuid.in_(doomed))
        .order_by(checkpoints.c.trial_id, checkpoints.c.report_time, checkpoints.c.uuid)
    )
    return await answer_list(
        db,
        "checkpoints",
        statement,
        checkpoints.c.uuid,
        WEIGHT,
        each(_doomed_json),
        offset=0,
        limit=-1,
        beside={"metric_name": metric.scalar_one(), "policy": asdict(policy)},
    )


def _doomed_json(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "UUID": str(row.uuid),
        "TrialID": row.trial_id,
        "StepsCompleted": row.steps_completed,
        "State": row.state,
        "ReportTime": moment(row.report_time),
        "Resources": raw(row.resources),
        "ValidationMetrics": row.validation_metrics or {},
        "SearcherMetric": row.searcher_metric,
    }
