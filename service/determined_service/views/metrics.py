"""Metric reports: the JSON (``v1MetricsReport``)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import metrics
from determined_service.views.lists import weight
from determined_service.views.values import moment

WEIGHT = weight(metrics.c.metrics, metrics.c.batch_metrics)


def report_json(row: sa.Row[Any]) -> dict[str, Any]:
    """``v1MetricsReport``. Validations have their values under another key than all other groups."""
    key = "validation_metrics" if row.group_name == "validation" else "avg_metrics"
    values = {key: row.metrics}
    if row.batch_metrics:
        values["batch_metrics"] = row.batch_metrics
    return {
        "id": row.id,
        "trialId": row.trial_id,
        "trialRunId": row.run_id,
        "group": row.group_name,
        "totalBatches": row.steps_completed,
        "endTime": moment(row.end_time),
        "metrics": values,
        "archived": row.archived,
    }
