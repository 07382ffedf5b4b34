"""Columns that a reader of a list of experiments chooses: hyperparameters and metrics of the best trials."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from determined.common.wire.checks import show
from determined_registry.database.tables import experiments, metric_summaries, metrics, trials
from determined_service.base.errors import BadRequest
from determined_service.views.experiment_query import HYPERPARAMETER
from determined_service.views.experiments import BEST

COLUMNS = 12
"""Columns of one list."""

_trial = trials.alias("best_trial")
_report = metrics.alias("best_report")


def columns(names: list[str]) -> dict[str, sa.ColumnElement[Any]]:
    """The columns by their names: ``hp.NAME`` is a hyperparameter of the experiment's best trial (before
    there is one, its constant), ``GROUP.NAME`` a metric: of the best validation, or of another group the last
    that the best trial reported. Raises BadRequest."""
    if len(names) > COLUMNS:
        raise BadRequest(f"columns: {len(names)}, at most {COLUMNS} are allowed")
    return {name: _column(name) for name in dict.fromkeys(names)}


def _column(name: str) -> sa.ColumnElement[Any]:
    group, dot, metric = name.partition(".")
    if not (group and dot and metric) or "\0" in name:
        raise BadRequest(f"columns: {show(name)} is neither hp.NAME nor GROUP.NAME of a metric")
    if f"{group}." == HYPERPARAMETER:
        path = metric.split(".")
        return sa.func.coalesce(
            sa.select(_at(_trial.c.hparams, path))
            .where(_trial.c.id == BEST.c.id)
            .scalar_subquery(),
            _at(experiments.c.config, ["hyperparameters", *path, "val"]),
        )
    if group == "validation":
        found = sa.select(_report.c.metrics.op("->")(metric)).join(
            _trial, _trial.c.best_validation_id == _report.c.id
        )
        return found.where(_trial.c.id == BEST.c.id).scalar_subquery()
    s = metric_summaries.c
    last = sa.select(s.last).where(
        s.trial_id == BEST.c.id, s.group_name == group, s.metric == metric
    )
    return last.scalar_subquery()


def _at(column: sa.ColumnElement[Any], path: list[str]) -> sa.ColumnElement[Any]:
    keys = sa.literal(path, ARRAY(sa.Text))
    return column.op("#>", return_type=column.type)(keys)


def as_key(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """What a list is ordered by: the column's number; NULL where it is none."""
    is_number = sa.func.jsonb_typeof(column) == "number"
    return sa.case((is_number, sa.cast(sa.cast(column, sa.Numeric), sa.Double())))
