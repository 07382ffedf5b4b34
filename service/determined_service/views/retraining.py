"""Retrainings and their runs: queries and JSON."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import (
    kept_runs,
    live_metrics,
    models,
    pipelines,
    retraining_runs,
    retrainings,
    users,
)
from determined_service.views.lists import weight
from determined_service.views.values import moment

t = retrainings.c
r = retraining_runs.c


WEIGHT = weight(t.plan)
RUN_WEIGHT = weight(r.cause, r.data_version, r.decision, r.reason, r.failed_step)
LIVE_WEIGHT = weight(live_metrics.c.name)


def select_retrainings() -> sa.Select[Any]:
    """Every column that :func:`retraining_json` reads."""
    last = (
        sa.select(retraining_runs)
        .where(r.retraining_id == t.id)
        .order_by(r.id.desc())
        .limit(1)
        .lateral("last_run")
    )
    return (
        sa.select(
            *(column for column in t if column.name != "config"),
            models.c.name.label("model"),
            users.c.username,
            last.c.id.label("last_id"),
            last.c.state.label("last_state"),
            last.c.reason.label("last_reason"),
        )
        .join(models, models.c.id == t.model_id)
        .join(users, users.c.id == t.owner_id)
        .outerjoin(last, sa.true())
    )


def retraining_json(row: sa.Row[Any]) -> dict[str, Any]:
    """One retraining, without its configuration, which may hold secrets."""
    return {
        "model": row.model,
        "modelId": row.model_id,
        "username": row.username,
        "plan": row.plan,
        "modelDefinitionHash": row.model_def_hash,
        "paused": row.paused,
        "nextTime": moment(row.next_at),
        "creationTime": moment(row.created_at),
        "lastRun": row.last_id
        and {"id": row.last_id, "state": row.last_state, "reason": row.last_reason},
    }


def select_runs() -> sa.Select[Any]:
    """Every column that :func:`run_json` reads."""
    flow_run_id = sa.func.coalesce(kept_runs.c.flow_run_id, r.flow_run_id)
    return (
        sa.select(
            *(column for column in r if column.name != "flow_run_id"),
            flow_run_id.label("flow_run_id"),
        )
        .outerjoin(pipelines, pipelines.c.retraining_run_id == r.id)
        .outerjoin(kept_runs, kept_runs.c.pipeline_id == pipelines.c.id)
    )


def run_json(row: sa.Row[Any]) -> dict[str, Any]:
    """One run."""
    return {
        "id": row.id,
        "state": row.state,
        "reason": row.reason,
        "failedStep": row.failed_step,
        "cause": row.cause,
        "dueTime": moment(row.due_at),
        "forced": row.forced,
        "dataVersion": row.data_version,
        "checkExperimentId": row.check_experiment,
        "trainingExperimentId": row.training_experiment,
        "evaluationExperimentId": row.evaluation_experiment,
        "challengerUuid": row.challenger and str(row.challenger),
        "championVersion": row.champion_version,
        "version": row.version,
        "decision": row.decision,
        "flowRunId": row.flow_run_id and str(row.flow_run_id),
        "startTime": moment(row.started_at),
        "endTime": moment(row.ended_at),
    }


def live_metric_json(row: sa.Row[Any]) -> dict[str, Any]:
    """One value."""
    return {
        "metric": row.name,
        "value": row.value,
        "version": row.version,
        "time": moment(row.reported_at),
    }
