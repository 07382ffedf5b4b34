"""Checkpoints: the query and its JSON (``v1Checkpoint``)."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import LateralFromClause

from determined_registry.database.tables import checkpoints, experiments, metrics, trials
from determined_service.base.errors import NotFound
from determined_service.base.json import by_name
from determined_service.views.lists import raw, weight
from determined_service.views.secrets import Viewer
from determined_service.views.values import moment, number, state

c = checkpoints.c


def _reported(group: str) -> LateralFromClause:
    """The trial's last report in ``group`` at the checkpoint's step."""
    return (
        sa.select(metrics.c.id, metrics.c.metrics, metrics.c.batch_metrics)
        .where(
            metrics.c.trial_id == c.trial_id,
            metrics.c.group_name == group,
            metrics.c.steps_completed == c.steps_completed,
            ~metrics.c.archived,
        )
        .order_by(metrics.c.id.desc())
        .limit(1)
        .lateral(f"{group}_report")
    )


_validation = _reported("validation")
_training = _reported("training")
_metric_name = experiments.c.config["searcher"]["metric"].astext


def metric_value(name: sa.ColumnElement[str]) -> sa.ColumnElement[float]:
    """A number of the validation at the checkpoint's step; NULL when there is none."""
    return sa.case(
        (
            sa.func.jsonb_typeof(_validation.c.metrics.op("->")(name)) == "number",
            _validation.c.metrics.op("->>")(name).cast(sa.Float(53)),
        )
    )


SEARCHER_METRIC = metric_value(_metric_name)
# The best comes first, whether the experiment wants its metric small or large.
SEARCHER_LOSS = SEARCHER_METRIC * sa.case(
    (experiments.c.config["searcher"]["smaller_is_better"].astext == "false", -1), else_=1
)

FIRST_OF_EQUALS = (_validation.c.id, c.report_time, c.uuid)
"""The order of equally good checkpoints, the same as in :func:`determined_service.deleting.garbage.keep`: the
best of a list must not be one that is collected."""

SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": c.report_time,
    "UUID": c.uuid,
    "TRIAL_ID": c.trial_id,
    "BATCH_NUMBER": c.steps_completed,
    "END_TIME": c.report_time,
    "STATE": c.state,
    "SEARCHER_METRIC": SEARCHER_METRIC,
}


# Sizes are texts in the API. A checkpoint may have a hundred thousand files: Postgres writes their JSON, in
# its own process, and here it is not read.
_FILE = sa.func.jsonb_each_text(c.resources).table_valued("key", "value").lateral("file")
_SIZES = sa.func.coalesce(
    sa.func.jsonb_object_agg(_FILE.c.key, _FILE.c.value), sa.text("'{}'::jsonb")
)
_RESOURCES = (
    sa.select(sa.cast(_SIZES, sa.Text)).select_from(_FILE).correlate(checkpoints).scalar_subquery()
)
_TEXTS = (
    _RESOURCES.label("resources_text"),
    sa.cast(c.checksums, sa.Text).label("checksums_text"),
    sa.cast(c.executable, sa.Text).label("executable_text"),
)
_LARGE = ("resources", "checksums", "executable")
_SMALL = [column for column in checkpoints.c if column.key not in _LARGE]

_OF_FILES = (c.resources, c.checksums, c.executable)
_OF_OTHERS = (
    c.user_metadata,
    c.storage,
    trials.c.hparams,
    experiments.c.config,
    _validation.c.metrics,
    _training.c.metrics,
)
WEIGHT = weight(*_OF_FILES, *_OF_OTHERS)
FILE_BYTES = 128
"""About what one file takes, if a checkpoint shows only some."""


def weight_of_some(most_files: int) -> sa.ColumnElement[int]:
    """As WEIGHT, of a checkpoint that shows so many files."""
    return weight(*_OF_OTHERS) + most_files * FILE_BYTES


def _some_files(most: int) -> tuple[sa.ColumnElement[Any], ...]:
    """The columns of :data:`_TEXTS` for the first files by their paths, and the number of all."""
    every = sa.func.jsonb_each_text(c.resources).table_valued("key", "value").lateral("each_file")
    is_file = sa.not_(every.c.key.endswith("/"))
    some = (
        sa.select(every.c.key, every.c.value)
        .where(is_file)
        .order_by(every.c.key)
        .limit(most)
        .correlate(checkpoints)
        .lateral("some_files")
    )
    sizes = sa.func.jsonb_object_agg(some.c.key, some.c.value)
    shown = sa.select(sa.cast(sa.func.coalesce(sizes, sa.text("'{}'::jsonb")), sa.Text))
    count = sa.select(sa.func.count()).select_from(every).where(is_file)
    nothing = sa.cast(sa.null(), sa.Text)
    return (
        shown.select_from(some).correlate(checkpoints).scalar_subquery().label("resources_text"),
        nothing.label("checksums_text"),
        nothing.label("executable_text"),
        count.correlate(checkpoints).scalar_subquery().label("file_count"),
    )


def select_checkpoints(most_files: int | None = None) -> sa.Select[Any]:
    """Every column that :func:`checkpoint_json` reads. ``most_files``: how many files it shows; None: all."""
    return (
        sa.select(
            *_SMALL,
            *(_TEXTS if most_files is None else _some_files(most_files)),
            trials.c.hparams,
            experiments.c.config,
            experiments.c.owner_id,
            experiments.c.submitted_by,
            SEARCHER_METRIC.label("searcher_metric"),
            _validation.c.metrics.label("validation_metrics"),
            _training.c.metrics.label("training_metrics"),
        )
        .select_from(checkpoints)
        .outerjoin(trials, trials.c.id == c.trial_id)
        .outerjoin(experiments, experiments.c.id == c.experiment_id)
        .outerjoin(_validation, sa.true())
        .outerjoin(_training, sa.true())
    )


def checkpoint_json(row: sa.Row[Any], viewer: Viewer) -> dict[str, Any]:
    """``v1Checkpoint``, and ours: ``checksums``, ``executable`` (paths of programs), ``stepsCompleted``,
    ``storage`` (None: the experiment's), ``reason`` (of state ERROR); where only some files are shown,
    ``fileCount`` and ``size`` (bytes) of all."""
    count = getattr(row, "file_count", None)
    whose = (row.owner_id, row.experiment_id, row.submitted_by)
    return {
        "uuid": str(row.uuid),
        "state": state(row.state),
        "taskId": row.task_id,
        "allocationId": row.allocation_id,
        "reportTime": moment(row.report_time),
        "resources": raw(row.resources_text),
        "checksums": raw(row.checksums_text),
        "executable": raw(row.executable_text),
        "stepsCompleted": row.steps_completed,
        **({} if count is None else {"fileCount": count, "size": str(row.size)}),
        "storage": viewer.storage(row.storage, *whose),
        "storageId": row.storage_id,
        "reason": row.reason,
        "metadata": row.user_metadata,
        "training": {
            "trialId": row.trial_id,
            "experimentId": row.experiment_id,
            "experimentConfig": viewer.config(row.config, *whose, of_checkpoint=True),
            "hparams": by_name(row.hparams),
            "searcherMetric": number(row.searcher_metric),
            "validationMetrics": {"avgMetrics": row.validation_metrics or {}},
            "trainingMetrics": {"avgMetrics": row.training_metrics or {}},
        },
    }


async def get_checkpoint(
    conn: AsyncConnection, checkpoint: uuid.UUID, viewer: Viewer
) -> dict[str, Any]:
    """One checkpoint's JSON; raises NotFound."""
    row = (await conn.execute(select_checkpoints().where(c.uuid == checkpoint))).first()
    if row is None:
        raise NotFound(f"checkpoint {checkpoint} does not exist")
    return checkpoint_json(row, viewer)


def select_workloads() -> sa.Select[Any]:
    """Every column that :func:`checkpoint_workload` reads."""
    return sa.select(*_SMALL, *_TEXTS)


def checkpoint_workload(row: sa.Row[Any]) -> dict[str, Any]:
    """``v1CheckpointWorkload``."""
    return {
        "uuid": str(row.uuid),
        "state": state(row.state),
        "totalBatches": row.steps_completed,
        "endTime": moment(row.report_time),
        "resources": raw(row.resources_text),
        "metadata": row.user_metadata,
    }


async def best_checkpoints(
    conn: AsyncConnection, trial_ids: list[int]
) -> dict[int, dict[str, Any]]:
    """By trial, the usable checkpoint with the best searcher metric, as ``v1CheckpointWorkload``."""
    if not trial_ids:
        return {}
    rows = await conn.execute(
        select_workloads()
        .join(trials, trials.c.id == c.trial_id)
        .join(experiments, experiments.c.id == trials.c.experiment_id)
        .join(_validation, sa.true())
        .where(c.trial_id.in_(trial_ids), c.state == "COMPLETED", SEARCHER_METRIC.is_not(None))
        .distinct(c.trial_id)
        .order_by(c.trial_id, SEARCHER_LOSS, *FIRST_OF_EQUALS)
    )
    return {row.trial_id: checkpoint_workload(row) for row in rows}
