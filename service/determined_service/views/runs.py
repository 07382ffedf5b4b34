"""Runs: trials as rows of a table, with what is known of their experiments (``v1FlatRun``).

Also the columns by which a request filters and sorts them: :data:`COLUMNS`, and by a prefix hyperparameters
(``hp.lr``), metadata (``metadata.note``) and metrics (``validation.loss.min``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.checks import show
from determined_registry.database.tables import (
    experiments,
    metric_summaries,
    projects,
    tasks,
    trials,
    users,
    workspaces,
)
from determined_service.base.checks import check_text
from determined_service.base.errors import BadRequest
from determined_service.base.json import by_name
from determined_service.state.trial_tasks import STARTED
from determined_service.views.trials import (
    CHECKPOINT_COUNT,
    CHECKPOINT_SIZE,
    SHOWN_STATE,
    select_trials,
    summaries_of,
)
from determined_service.views.values import moment, number, parse_time, state

t, e, p, w, u = trials.c, experiments.c, projects.c, workspaces.c, users.c

DEPTH = 10
CONDITIONS = 100
SORT_COLUMNS = 10
"""The largest filters and orders."""

_searcher = e.config["searcher"]
_others = trials.alias("others")
IS_MULTITRIAL = sa.or_(
    sa.and_(sa.not_(e.unmanaged), _searcher["name"].astext != "single"),
    sa.select(sa.func.count())
    .select_from(_others)
    .where(_others.c.experiment_id == e.id)
    .correlate(experiments)
    .scalar_subquery()
    > 1,
)
"""Whether the experiment has several runs, or may get them."""
DURATION = sa.extract("epoch", sa.func.coalesce(t.end_time, sa.func.now()) - STARTED)


class Type(StrEnum):
    """``v1ColumnType``; ANY is unspecified: what a value's own JSON says."""

    TEXT = "COLUMN_TYPE_TEXT"
    NUMBER = "COLUMN_TYPE_NUMBER"
    DATE = "COLUMN_TYPE_DATE"
    ARRAY = "COLUMN_TYPE_ARRAY"
    ANY = "COLUMN_TYPE_UNSPECIFIED"


@dataclass(frozen=True)
class RunColumn:
    """What of a run can be filtered and sorted by. ``title``: for people."""

    type: Type
    value: sa.ColumnElement[Any]
    title: str = ""


COLUMNS: Mapping[str, RunColumn] = {
    "id": RunColumn(Type.NUMBER, t.id, "Run ID"),
    "state": RunColumn(Type.TEXT, SHOWN_STATE, "State"),
    "startTime": RunColumn(Type.DATE, STARTED, "Start Time"),
    "endTime": RunColumn(Type.DATE, t.end_time, "End Time"),
    "duration": RunColumn(Type.NUMBER, DURATION, "Duration"),
    "user": RunColumn(Type.TEXT, u.username, "User"),
    "tags": RunColumn(Type.ARRAY, e.labels, "Tags"),
    "searcherMetricsVal": RunColumn(Type.NUMBER, t.searcher_metric_value, "Searcher Metric Value"),
    "searcherMetric": RunColumn(Type.TEXT, _searcher["metric"].astext, "Searcher Metric"),
    "searcherType": RunColumn(Type.TEXT, _searcher["name"].astext, "Searcher"),
    "checkpointCount": RunColumn(Type.NUMBER, CHECKPOINT_COUNT, "Checkpoints"),
    "checkpointSize": RunColumn(Type.NUMBER, CHECKPOINT_SIZE, "Checkpoint Size"),
    "externalRunId": RunColumn(Type.TEXT, t.external_id, "External Run ID"),
    "experimentId": RunColumn(Type.NUMBER, e.id, "Search ID"),
    "experimentName": RunColumn(Type.TEXT, e.name, "Search Name"),
    "experimentDescription": RunColumn(Type.TEXT, e.description, "Search Description"),
    "experimentProgress": RunColumn(Type.NUMBER, e.progress, "Search Progress"),
    "externalExperimentId": RunColumn(Type.TEXT, e.external_id, "External Search ID"),
    "resourcePool": RunColumn(Type.TEXT, e.resource_pool, "Resource Pool"),
    "forkedFrom": RunColumn(Type.NUMBER, e.parent_id, "Forked From"),
    "projectId": RunColumn(Type.NUMBER, e.project_id, "Project ID"),
}
STATISTICS = ("last", "min", "max", "mean")
"""Of a metric, after its name."""


def _inside(column: sa.ColumnElement[Any], path: str) -> sa.ColumnElement[Any]:
    names = sa.literal(path.split("."), sa.ARRAY(sa.Text))
    return column.op("#>", return_type=JSONB())(names)


def _of_metric(name: str) -> sa.ColumnElement[Any]:
    """``validation.loss.min``: the group (up to the first dot), the metric, the statistic (last without)."""
    group, _, metric = name.partition(".")
    statistic = "last"
    if metric.rpartition(".")[2] in STATISTICS:
        metric, _, statistic = metric.rpartition(".")
    m = metric_summaries.c
    found = {
        "last": m.last,
        "min": sa.func.to_jsonb(m.min),
        "max": sa.func.to_jsonb(m.max),
        "mean": sa.func.to_jsonb(m.sum / sa.func.nullif(m.finite_count, 0)),
    }[statistic]
    return (
        sa.select(sa.type_coerce(found, JSONB()))
        .where(m.trial_id == t.id, m.group_name == group, m.metric == metric)
        .correlate(trials)
        .scalar_subquery()
    )


def column(name: Any) -> RunColumn:
    """The column of that name. Raises BadRequest."""
    text = check_text(name, "column")
    if text in COLUMNS:
        return COLUMNS[text]
    prefix, dot, rest = text.partition(".")
    if not (dot and rest):
        raise BadRequest(
            f"there is no column {show(text)}; choose from {', '.join(COLUMNS)}, hp.NAME, metadata.NAME, "
            "validation.METRIC.min (max, mean, last), training.METRIC.last"
        )
    if prefix == "hp":
        return RunColumn(Type.ANY, _inside(t.hparams, rest))
    if prefix == "metadata":
        return RunColumn(Type.ANY, _inside(t.run_metadata, rest))
    return RunColumn(Type.ANY, _of_metric(text))


def filtered(text: str | None) -> list[sa.ColumnElement[bool]]:
    """The conditions of a filter: JSON text with ``filterGroup`` and ``showArchived``. Raises BadRequest."""
    if not text:
        return []
    try:
        given = orjson.loads(text)
    except ValueError as error:
        raise BadRequest(f"filter: it is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise BadRequest(f"filter: expected an object with filterGroup, found {show(given)}")
    found = [] if given.get("showArchived") else [sa.not_(e.archived)]
    group = given.get("filterGroup")
    return found if group is None else [*found, _Conditions().of(group, "filter.filterGroup", 1)]


class _Conditions:
    """The conditions of one filter, counted."""

    def __init__(self) -> None:
        self._left = CONDITIONS

    def of(self, given: Any, path: str, depth: int) -> sa.ColumnElement[bool]:
        """Of a group, or of a field."""
        if not isinstance(given, dict):
            raise BadRequest(f"{path}: expected a group or a field, found {show(given)}")
        if given.get("kind") != "group":
            self._left -= 1
            if self._left < 0:
                raise BadRequest(f"filter: at most {CONDITIONS} conditions are allowed")
            return _condition(given, path)
        if depth > DEPTH:
            raise BadRequest(f"{path}: groups in groups are allowed {DEPTH} deep")
        inner = given.get("children") or []
        if not isinstance(inner, list):
            raise BadRequest(f"{path}.children: expected a list, found {show(inner)}")
        conditions = [
            self.of(one, f"{path}.children[{place}]", depth + 1) for place, one in enumerate(inner)
        ]
        joined = given.get("conjunction", "and")
        if joined not in ("and", "or"):
            raise BadRequest(f"{path}.conjunction: expected and or or, found {show(joined)}")
        # An empty group, as a page has that nobody has filled in, chooses everything.
        if not conditions:
            return sa.true()
        return sa.and_(*conditions) if joined == "and" else sa.or_(*conditions)


_COMPARE = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a.is_distinct_from(b),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_OPERATORS = (*_COMPARE, "contains", "notContains", "isEmpty", "notEmpty")


def _condition(given: Mapping[str, Any], path: str) -> sa.ColumnElement[bool]:
    of, operator, value = column(given.get("columnName")), given.get("operator"), given.get("value")
    if operator not in _OPERATORS:
        raise BadRequest(
            f"{path}.operator: found {show(operator)}, choose from {', '.join(_OPERATORS)}"
        )
    if operator in ("isEmpty", "notEmpty"):
        empty = _is_empty(of)
        return empty if operator == "isEmpty" else sa.not_(empty)
    if operator in ("contains", "notContains"):
        return _contains(of, check_text(value, f"{path}.value"), operator == "contains", path)
    found, wanted = _comparable(of, value, f"{path}.value")
    return _COMPARE[operator](found, wanted)


def _is_empty(of: RunColumn) -> sa.ColumnElement[bool]:
    nothing = of.value.is_(None)
    if of.type == Type.TEXT:
        return sa.or_(nothing, of.value == "")
    if of.type == Type.ARRAY:
        return sa.or_(nothing, sa.func.jsonb_array_length(sa.func.to_jsonb(of.value)) == 0)
    if of.type == Type.ANY:
        return sa.or_(nothing, sa.func.jsonb_typeof(of.value) == "null")
    return nothing


def _contains(of: RunColumn, text: str, wanted: bool, path: str) -> sa.ColumnElement[bool]:
    if of.type == Type.ARRAY:
        found: sa.ColumnElement[bool] = of.value.contains([text])
    elif of.type == Type.ANY:
        found = _text_in(of.value).icontains(text, autoescape=True)
    elif of.type == Type.TEXT:
        found = of.value.icontains(text, autoescape=True)
    else:
        raise BadRequest(f"{path}.operator: contains is for texts and tags: use = or <")
    return found if wanted else sa.not_(sa.func.coalesce(found, sa.false()))


def _text_in(value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """JSON as text, without the quotes of a text."""
    return value.op("#>>", return_type=sa.Text())(sa.literal([], sa.ARRAY(sa.Text)))


def _comparable(of: RunColumn, value: Any, path: str) -> tuple[sa.ColumnElement[Any], Any]:
    """The column and the given value as what can be compared. Raises BadRequest."""
    if of.type == Type.ARRAY:
        raise BadRequest(f"{path}: tags are compared by contains and notContains")
    if of.type == Type.DATE:
        return of.value, parse_time(check_text(value, path), path)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if of.type == Type.ANY:
        if is_number:
            numeric = sa.case(
                (sa.func.jsonb_typeof(of.value) == "number", _text_in(of.value).cast(sa.Float(53)))
            )
            return numeric, float(value)
        text = orjson.dumps(value).decode() if isinstance(value, bool) else value
        return _text_in(of.value), check_text(text, path)
    if of.type == Type.NUMBER:
        if not is_number:
            raise BadRequest(f"{path}: expected a number, found {show(value)}")
        return sa.cast(of.value, sa.Float(53)), float(value)
    if of.value is u.username and is_number:
        # Determined's page sends the id.
        return sa.cast(u.id, sa.Float(53)), float(value)
    text = check_text(value, path)
    return of.value, text.removeprefix("STATE_") if of.value is SHOWN_STATE else text


def ordered_by(text: str | None) -> list[sa.ColumnElement[Any]]:
    """ORDER BY of ``column=asc,column=desc``, without a value last; ties by id. Raises BadRequest."""
    parts = [part for part in (text or "").split(",") if part.strip()]
    if len(parts) > SORT_COLUMNS:
        raise BadRequest(f"sort: at most {SORT_COLUMNS} columns are allowed")
    found: list[sa.ColumnElement[Any]] = []
    for part in parts:
        name, equals, way = part.strip().rpartition("=")
        if not equals or way not in ("asc", "desc"):
            raise BadRequest(f"sort: expected COLUMN=asc or COLUMN=desc, found {show(part)}")
        value = column(name).value
        found.append((value.asc() if way == "asc" else value.desc()).nulls_last())
    return [*found, t.id.desc()]


def select_runs() -> sa.Select[Any]:
    """Every column that :func:`runs_json` reads."""
    return (
        select_trials()
        .add_columns(
            e.name.label("experiment_name"),
            e.description.label("experiment_description"),
            e.progress.label("experiment_progress"),
            e.start_time.label("experiment_start"),
            e.external_id.label("experiment_external_id"),
            e.parent_id,
            e.archived,
            e.labels,
            e.owner_id,
            e.project_id,
            e.resource_pool,
            e.unmanaged,
            _searcher["name"].astext.label("searcher_type"),
            _searcher["metric"].astext.label("searcher_metric"),
            IS_MULTITRIAL.label("is_multitrial"),
            DURATION.label("duration"),
            p.name.label("project_name"),
            w.id.label("workspace_id"),
            w.name.label("workspace_name"),
        )
        .join(projects, p.id == e.project_id)
        .join(workspaces, w.id == p.workspace_id)
        .join(users, u.id == e.owner_id)
    )


def select_run_ids() -> sa.Select[Any]:
    """``id``, ``experiment_id``, ``project_id`` and ``is_multitrial`` of runs, for all filters."""
    return (
        sa.select(t.id, t.experiment_id, e.project_id, IS_MULTITRIAL.label("is_multitrial"))
        .join(experiments, e.id == t.experiment_id)
        .join(users, u.id == e.owner_id)
        .join(tasks, tasks.c.id == t.task_id)
    )


async def runs_json(conn: AsyncConnection, rows: Sequence[sa.Row[Any]]) -> list[dict[str, Any]]:
    """``v1FlatRun`` of each row. A run is archived with its experiment."""
    summaries = await summaries_of(conn, [row.id for row in rows])
    return [_run_json(row) | {"summaryMetrics": summaries.get(row.id, {})} for row in rows]


def _run_json(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "state": state(row.shown_state),
        # Determined's client expects one; a run that waits for its first slots has none.
        "startTime": moment(row.start_time or row.experiment_start),
        "endTime": moment(row.end_time),
        "duration": None if row.duration is None else int(row.duration),
        "hyperparameters": by_name(row.hparams),
        "metadata": row.run_metadata,
        "searcherMetricValue": number(row.searcher_metric_value),
        "checkpointCount": row.checkpoint_count,
        "checkpointSize": str(row.checkpoint_size),
        "externalRunId": row.external_id,
        "logPolicyMatched": row.log_policy,
        "labels": row.labels,
        "userId": row.owner_id,
        "projectId": row.project_id,
        "projectName": row.project_name,
        "workspaceId": row.workspace_id,
        "workspaceName": row.workspace_name,
        "archived": row.archived,
        "parentArchived": row.archived,
        "experiment": {
            "id": row.experiment_id,
            "name": row.experiment_name,
            "description": row.experiment_description,
            "progress": row.experiment_progress,
            "resourcePool": row.resource_pool,
            "searcherType": row.searcher_type or "",
            "searcherMetric": row.searcher_metric or "",
            "isMultitrial": row.is_multitrial,
            "unmanaged": row.unmanaged,
            "forkedFrom": row.parent_id,
            "externalExperimentId": row.experiment_external_id,
        },
    }
