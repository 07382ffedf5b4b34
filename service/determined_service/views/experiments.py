"""Experiments: the query and its JSON (``v1Experiment``)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    allocations,
    checkpoints,
    experiments,
    kept_runs,
    projects,
    trials,
    users,
    workspaces,
)
from determined_registry.database.tables.people import FIRST
from determined_service.base.errors import NotFound
from determined_service.views.lists import weight
from determined_service.views.secrets import Viewer
from determined_service.views.values import display_state, moment, number, state

e = experiments.c
_mine = trials.c.experiment_id == e.id
_kept = sa.and_(checkpoints.c.experiment_id == e.id, checkpoints.c.state != "DELETED")
_metric = trials.c.searcher_metric_value


def _first(loss: sa.ColumnElement[Any], wanted: sa.ColumnElement[bool]) -> sa.Select[Any]:
    # In the index's form of the loss, so that Postgres reads one trial instead of all.
    ordered = (
        sa.select(trials.c.id, _metric)
        .where(_mine, _metric.is_not(None), wanted)
        .order_by(loss, trials.c.id)
        .limit(1)
        .correlate(experiments)
        .subquery()
    )
    return sa.select(ordered)


BEST = sa.union_all(
    _first(_metric, ~e.larger_is_better), _first(-_metric, e.larger_is_better)
).lateral("best")
"""An experiment's best trial: ``id`` and ``searcher_metric_value``."""

SHOWN_STATE = display_state(
    e.state, allocations.c.experiment_id == e.id, e.unmanaged, without="QUEUED"
)
NUM_TRIALS = sa.select(sa.func.count()).where(_mine).scalar_subquery()
CHECKPOINT_COUNT = sa.select(sa.func.count()).where(_kept).scalar_subquery()
CHECKPOINT_SIZE = (
    sa.select(sa.func.coalesce(sa.func.sum(checkpoints.c.size), 0)).where(_kept).scalar_subquery()
)
DURATION = sa.extract("epoch", sa.func.coalesce(e.end_time, sa.func.now()) - e.start_time)

SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": e.id,
    "ID": e.id,
    "DESCRIPTION": e.description,
    "START_TIME": e.start_time,
    "END_TIME": e.end_time,
    "STATE": e.state,
    "NUM_TRIALS": NUM_TRIALS,
    "PROGRESS": e.progress,
    "USER": users.c.username,
    "NAME": e.name,
    "FORKED_FROM": e.parent_id,
    "RESOURCE_POOL": e.resource_pool,
    "PROJECT_ID": e.project_id,
    "CHECKPOINT_SIZE": CHECKPOINT_SIZE,
    "CHECKPOINT_COUNT": CHECKPOINT_COUNT,
    "SEARCHER_METRIC_VAL": BEST.c.searcher_metric_value,
}

WEIGHT = weight(e.config, e.original_config, e.notes, e.description, e.labels)
LIGHT_WEIGHT = weight(e.description, e.labels)
_HEAVY = ("config", "original_config", "notes")


def select_experiments(*, light: bool = False) -> sa.Select[Any]:
    """Every column that :func:`experiment_json` reads; ``light``: those of :func:`light_json`."""
    own = [column for column in e if not (light and column.name in _HEAVY)]
    return (
        sa.select(
            *own,
            *([e.config["searcher"].label("searcher")] if light else []),
            kept_runs.c.flow_run_id,
            users.c.username,
            users.c.display_name,
            SHOWN_STATE.label("shown_state"),
            NUM_TRIALS.label("num_trials"),
            CHECKPOINT_COUNT.label("checkpoint_count"),
            CHECKPOINT_SIZE.label("checkpoint_size"),
            DURATION.label("duration"),
            BEST.c.id.label("best_trial_id"),
            BEST.c.searcher_metric_value.label("best_metric"),
            projects.c.name.label("project_name"),
            projects.c.owner_id.label("project_owner_id"),
            workspaces.c.id.label("workspace_id"),
            workspaces.c.name.label("workspace_name"),
        )
        .join(projects, projects.c.id == e.project_id)
        .join(workspaces, workspaces.c.id == projects.c.workspace_id)
        .join(users, users.c.id == e.owner_id)
        .outerjoin(kept_runs, kept_runs.c.experiment_id == e.id)
        .outerjoin(BEST, sa.true())
    )


def among(ids: list[int]) -> sa.ColumnElement[bool]:
    """Those of these ids, of which there may be many: they are one parameter."""
    return e.id == sa.func.any(sa.cast(ids, ARRAY(sa.Integer)))


def in_project(project_id: int | None) -> sa.ColumnElement[bool]:
    """Experiments of that project; of all for None, and for 0 and -1, as Determined's clients say it."""
    return sa.true() if project_id in (None, 0, -1) else e.project_id == project_id


def select_ids(*, by_user: bool = False, by_best: bool = False) -> sa.Select[Any]:
    """The ids alone, for all filters; for orders by the user or the best trial if these are asked for."""
    found = sa.select(e.id)
    if by_user:
        found = found.join(users, users.c.id == e.owner_id)
    return found.outerjoin(BEST, sa.true()) if by_best else found


def experiment_json(row: sa.Row[Any], viewer: Viewer) -> dict[str, Any]:
    """``v1Experiment``, and ours: ``reason`` (why it is in its state), ``flowRunId`` (Prefect's)."""
    whose = (row.owner_id, row.id, row.submitted_by)
    return {
        **_facts(row, row.config.get("searcher", {})),
        "notes": row.notes,
        "hyperparameters": row.config.get("hyperparameters"),
        "config": viewer.config(row.config, *whose),
        "originalConfig": viewer.original(row.original_config, row.config, *whose),
    }


def light_json(row: sa.Row[Any]) -> dict[str, Any]:
    """As :func:`experiment_json`, without the configuration and the notes; ours besides:
    ``smallerIsBetter``."""
    searcher = row.searcher or {}
    smaller = searcher.get("smaller_is_better", True)
    return {**_facts(row, searcher), "smallerIsBetter": smaller}


def _facts(row: sa.Row[Any], searcher: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "description": row.description,
        "labels": row.labels,
        "state": state(row.shown_state),
        "reason": row.reason,
        "archived": row.archived,
        "unmanaged": row.unmanaged,
        "externalExperimentId": row.external_id,
        "progress": row.progress,
        "startTime": moment(row.start_time),
        "endTime": moment(row.end_time),
        "duration": int(row.duration),
        "numTrials": row.num_trials,
        "username": row.username,
        "displayName": row.display_name or "",
        "userId": row.owner_id,
        "jobId": str(row.job_id),
        "flowRunId": str(row.flow_run_id) if row.flow_run_id else None,
        "forkedFrom": row.parent_id,
        "projectId": row.project_id,
        "projectName": row.project_name,
        "projectOwnerId": row.project_owner_id or 0,
        "workspaceId": row.workspace_id,
        "workspaceName": row.workspace_name,
        "resourcePool": row.resource_pool,
        "searcherType": searcher.get("name", ""),
        "searcherMetric": searcher.get("metric"),
        "checkpointCount": row.checkpoint_count,
        "checkpointSize": str(row.checkpoint_size),
        "bestTrialId": row.best_trial_id,
        "bestTrialSearcherMetric": number(row.best_metric),
    }


def planned_experiment(
    config: dict[str, Any],
    original_config: str,
    username: str,
    user_id: int,
    project_id: int | None = FIRST,
) -> dict[str, Any]:
    """The fields of :func:`experiment_json` for an experiment that is not stored: id 0, no times."""
    return {
        "id": 0,
        "name": config["name"],
        "description": config.get("description") or "",
        "labels": list(config.get("labels") or []),
        "state": state("UNSPECIFIED"),
        "archived": False,
        "startTime": "",
        "numTrials": 0,
        "username": username,
        "userId": user_id,
        "jobId": "",
        "projectId": project_id,
        "projectOwnerId": user_id,
        "searcherType": config["searcher"]["name"],
        "config": config,
        "originalConfig": original_config,
    }


# Made once: SQLAlchemy takes longer to build this statement than to run it.
_ONE = select_experiments().where(e.id == sa.bindparam("experiment_id"))


async def get_experiment(
    conn: AsyncConnection, experiment_id: int, viewer: Viewer
) -> dict[str, Any]:
    """One experiment's JSON; raises NotFound."""
    row = (await conn.execute(_ONE, {"experiment_id": experiment_id})).first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    return experiment_json(row, viewer)


async def require_experiment(conn: AsyncConnection, experiment_id: int) -> None:
    """Raises NotFound."""
    found = await conn.execute(sa.select(e.id).where(e.id == experiment_id))
    if found.first() is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
