"""Runs: trials and searches as MLflow's entities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow.entities import (
    LoggedModelOutput,
    Metric,
    Param,
    Run,
    RunData,
    RunInfo,
    RunInputs,
    RunOutputs,
    RunStatus,
    RunTag,
    ViewType,
    _DatasetSummary,
)
from mlflow.entities.lifecycle_stage import LifecycleStage
from mlflow.entities.metric import MetricWithRunId
from mlflow.utils.search_utils import SearchUtils

from determined.common.wire.mlflow import BEST
from determined_registry.mlflow import history, inputs, names
from determined_registry.mlflow.database import Reader
from determined_registry.mlflow.run_rows import IS_SEARCH, SEARCHES, TRIALS, Query
from determined_registry.mlflow.service import invalid, missing

_SUMMARIES = """
    SELECT s.trial_id, s.group_name, s.metric, s.last, s.last_steps,
           coalesce(round(extract(epoch FROM s.last_time) * 1000)::bigint, p.moment) AS moment
    FROM metric_summaries s
    LEFT JOIN LATERAL (
        SELECT round(extract(epoch FROM x.end_time) * 1000)::bigint AS moment FROM metrics x
        WHERE s.last_time IS NULL AND x.trial_id = s.trial_id AND x.group_name = s.group_name
          AND x.steps_completed = s.last_steps AND NOT x.archived AND x.metrics ? s.metric
        ORDER BY x.id DESC LIMIT 1
    ) AS p ON true
    WHERE s.trial_id = ANY(:trials)
    ORDER BY s.trial_id, s.group_name, s.metric"""
_BEST = """
    SELECT DISTINCT ON (t.experiment_id) t.experiment_id, t.searcher_metric_value AS value,
           e.config -> 'searcher' ->> 'metric' AS metric, x.steps_completed AS step,
           round(extract(epoch FROM x.end_time) * 1000)::bigint AS moment
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    LEFT JOIN metrics x ON x.id = t.best_validation_id
    WHERE t.experiment_id = ANY(:experiments) AND t.searcher_metric_value IS NOT NULL
    ORDER BY t.experiment_id,
        CASE WHEN coalesce((e.config -> 'searcher' ->> 'smaller_is_better')::boolean, true)
            THEN t.searcher_metric_value ELSE -t.searcher_metric_value END, t.id"""
_BEST_OF_TRIALS = """
    SELECT t.id AS trial_id, t.searcher_metric_value AS value, e.config -> 'searcher' ->> 'metric' AS metric,
           coalesce(x.steps_completed, 0) AS step,
           coalesce(round(extract(epoch FROM x.end_time) * 1000)::bigint, 0) AS moment
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    LEFT JOIN metrics x ON x.id = t.best_validation_id
    WHERE t.id = ANY(:trials) AND t.searcher_metric_value IS NOT NULL
    ORDER BY t.id"""
_OUTPUTS = f"""
    SELECT c.trial_id, c.uuid,
           coalesce((c.metadata -> '{names.SAID}' ->> '{names.SAID_STEP}')::bigint, c.steps_completed) AS step
    FROM checkpoints c
    WHERE c.trial_id = ANY(:trials) AND c.state NOT IN ('DELETED', 'ERROR')
    ORDER BY c.trial_id, c.report_time, c.uuid"""
_DATA_SETS = """
    SELECT DISTINCT t.experiment_id, i -> 'dataset' ->> 'name' AS name, i -> 'dataset' ->> 'digest' AS digest,
           i -> 'tags' ->> 'mlflow.data.context' AS context
    FROM trials t JOIN mlflow_runs m ON m.trial_id = t.id CROSS JOIN jsonb_array_elements(m.inputs) AS i
    WHERE t.experiment_id = ANY(:experiments) AND i ? 'dataset'
    ORDER BY 1, 2, 3, 4 LIMIT 1000"""
"""As many as MLflow's own store shows."""
_IN_RUN = """
    SELECT t.id, t.experiment_id, t.run_count, t.task_id, t.state, e.unmanaged, e.archived,
           coalesce(m.native, false) AS native, m.deleted_at IS NOT NULL AS deleted,
           e.config -> 'searcher' ->> 'metric' AS searcher_metric
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    LEFT JOIN mlflow_runs m ON m.trial_id = t.id WHERE t.id = :id"""
_ALL_STEPS = (-(2**63), 2**63 - 1)
_WHERE_REPORTED = """
    SELECT s.group_name, s.metric, s.count, s.count >= (
        SELECT max(o.count) FROM metric_summaries o
        WHERE o.trial_id = s.trial_id AND o.group_name = s.group_name) AS always
    FROM metric_summaries s WHERE s.trial_id = :trial AND s.metric = ANY(:names)"""
_SYSTEM = """
    SELECT s.group_name, s.metric, s.last FROM metric_summaries s
    WHERE s.trial_id = :trial AND s.group_name = :group AND jsonb_typeof(s.last) = 'object'"""
_MANY = 4
"""From this many times the requested number of points on, the requested points are looked up one by one."""


@dataclass(frozen=True)
class _Points:
    """The place of a metric's points; ``given`` is for the statements in :mod:`history`."""

    given: dict[str, Any]
    groups: Sequence[Any]

    @property
    def count(self) -> int:
        return sum(one.count for one in self.groups)

    @property
    def are_in_every_report(self) -> bool:
        """Of one group."""
        return len(self.groups) == 1 and bool(self.groups[0].always)


class Runs:
    """Reads runs. Every method raises MlflowException (404) for a run that does not exist."""

    def __init__(self, db: Reader) -> None:
        self._db = db

    def get(self, run_id: str) -> Run:
        """The run with its latest metrics, parameters, tags, inputs and outputs."""
        experiment = names.search_of(run_id)
        if experiment is not None:
            row = self._db.first(f"{SEARCHES} WHERE e.id = :id AND {IS_SEARCH}", {"id": experiment})
        else:
            trial = names.number(run_id)
            row = None
            if trial is not None:
                row = self._db.first(f"{TRIALS} WHERE t.id = :id", {"id": trial})
        if row is None:
            raise missing(f"Run with id={run_id}")
        return self._entities([row])[0]

    def search(
        self,
        experiment_ids: Sequence[str],
        filter_string: str | None,
        view: int,
        limit: int | None,
        order_by: Sequence[str] | None,
        page_token: str | None,
    ) -> tuple[list[Run], str | None]:
        """A page of the runs that match, and the next page's token."""
        query = Query([one for text in experiment_ids if (one := names.number(text)) is not None])
        try:
            for one in SearchUtils.parse_search_filter(filter_string):
                self._want(query, one)
            seen = set()
            for text in order_by or ():
                kind, key, ascending = SearchUtils.parse_order_by_for_search_runs(text)
                key = SearchUtils.translate_key_alias(key)
                if (kind, key) in seen:
                    raise invalid(f"`order_by` contains duplicate fields: {list(order_by or ())}")
                seen.add((kind, key))
                query.sort(kind, key, ascending)
        except KeyError as error:
            raise invalid(f"runs cannot be searched by {error}") from error
        offset = SearchUtils.parse_start_offset_from_page_token(page_token)
        stages = set(LifecycleStage.view_type_to_stages(view or ViewType.ACTIVE_ONLY))
        more = None if limit is None else limit + 1
        rows = self._db.all(*query.page(stages, more, offset))
        token = None
        if limit is not None and len(rows) > limit:
            rows = rows[:limit]
            token = SearchUtils.create_page_token(offset + limit)
        return self._entities(self._details(rows)), token

    def _details(self, page: Sequence[Any]) -> list[Any]:
        """The whole rows of a page, in its order; without those that have gone meanwhile."""
        trials = [row.trial_id for row in page if row.trial_id is not None]
        searches = [row.experiment_id for row in page if row.trial_id is None]
        found: dict[tuple[int | None, int], Any] = {}
        for ids, statement in (
            (trials, f"{TRIALS} WHERE t.id"),
            (searches, f"{SEARCHES} WHERE e.id"),
        ):
            if ids:
                for row in self._db.all(f"{statement} = ANY(:ids)", {"ids": ids}):
                    found[row.trial_id, row.experiment_id] = row
        keys = [(row.trial_id, row.experiment_id) for row in page]
        return [found[key] for key in keys if key in found]

    @staticmethod
    def _want(query: Query, one: dict[str, Any]) -> None:
        kind, comparator = one["type"], one["comparator"].upper()
        key = SearchUtils.translate_key_alias(one["key"])
        known = (
            SearchUtils.is_string_attribute(kind, key, comparator)
            or SearchUtils.is_numeric_attribute(kind, key, comparator)
            or SearchUtils.is_metric(kind, comparator)
            or SearchUtils.is_param(kind, comparator)
            or SearchUtils.is_tag(kind, comparator)
            or SearchUtils.is_dataset(kind, comparator)
        )
        if not known:
            raise invalid(f"runs cannot be searched by {kind} {key!r}")
        query.want(kind, key, comparator, one.get("value"))

    def _entities(self, rows: Sequence[Any]) -> list[Run]:
        trials = [row.trial_id for row in rows if row.trial_id is not None]
        natives = {row.trial_id for row in rows if row.native}
        metrics: dict[Any, list[Metric]] = defaultdict(list)
        outputs: dict[Any, list[LoggedModelOutput]] = defaultdict(list)
        if trials:
            for one in self._db.all(_SUMMARIES, {"trials": trials}):
                metrics[one.trial_id] += [
                    Metric(key, value, one.moment or 0, one.last_steps)
                    for key, value in _latest(one, one.trial_id in natives)
                ]
            managed = [trial for trial in trials if trial not in natives]
            for one in self._db.all(_BEST_OF_TRIALS, {"trials": managed}):
                best = Metric(f"{BEST}{one.metric}", one.value, one.moment, one.step)
                metrics[one.trial_id].append(best)
            for one in self._db.all(_OUTPUTS, {"trials": trials}):
                model = names.model_id_of(one.uuid)
                outputs[one.trial_id].append(LoggedModelOutput(model, one.step))
        searches = [row.experiment_id for row in rows if row.trial_id is None]
        if searches:
            for one in self._db.all(_BEST, {"experiments": searches}):
                key = f"validation/{one.metric}"
                best = Metric(key, one.value, one.moment or 0, one.step or 0)
                metrics[f"{names.SEARCH}{one.experiment_id}"].append(best)
        return [
            self._entity(
                row,
                metrics.get(row.trial_id if row.trial_id is not None else row.run_id, []),
                outputs.get(row.trial_id, []) if row.trial_id is not None else [],
            )
            for row in rows
        ]

    @staticmethod
    def _entity(row: Any, metrics: list[Metric], outputs: list[LoggedModelOutput]) -> Run:
        params = [Param(key, value) for key, value in names.flat(row.hparams or {})]
        params += [Param(key, str(value)) for key, value in (row.params or {}).items()]
        tags = [RunTag(key, str(value)) for key, value in (row.tags or {}).items()]
        kind = "trials" if row.trial_id is not None else "searches"
        number = row.trial_id if row.trial_id is not None else row.experiment_id
        info = RunInfo(
            run_id=row.run_id,
            experiment_id=str(row.experiment_id),
            user_id=row.username,
            status=row.status,
            start_time=names.millis(row.start_time),
            end_time=names.millis(row.end_time),
            lifecycle_stage=LifecycleStage.DELETED if row.deleted else LifecycleStage.ACTIVE,
            artifact_uri=f"mlflow-artifacts:/{kind}/{number}",
            run_name=row.run_name,
        )
        return Run(
            info,
            RunData(metrics, params, tags),
            RunInputs(
                dataset_inputs=inputs.datasets(row.inputs), model_inputs=inputs.models(row.inputs)
            ),
            RunOutputs(outputs),
        )

    def data_sets(self, experiment_ids: Sequence[str]) -> list[_DatasetSummary]:
        """The data sets that runs of the experiments have used, each once."""
        ids = [one for text in experiment_ids if (one := names.number(text)) is not None]
        return [
            _DatasetSummary(str(one.experiment_id), one.name, one.digest, one.context)
            for one in self._db.all(_DATA_SETS, {"experiments": ids})
        ]

    def trial(self, run_id: str) -> Any:
        """The facts about the run's trial that a change needs; a search is refused."""
        if names.search_of(run_id) is not None:
            self.get(run_id)
            raise invalid(
                f"run {run_id} stands for a search, to which nothing is logged: log to the runs of its trials"
            )
        number = names.number(run_id)
        row = None if number is None else self._db.first(_IN_RUN, {"id": number})
        if row is None:
            raise missing(f"Run with id={run_id}")
        return row

    def _points(self, run_id: str, key: str) -> _Points | None:
        """The trial, groups and metric that ``key`` means in the run; None: there is nothing of it."""
        if names.search_of(run_id) is not None:
            return None
        row = self.trial(run_id)
        places = names.places(key, row.native)
        found = self._db.all(
            _WHERE_REPORTED, {"trial": row.id, "names": [name for _, name in places]}
        )
        for group, name in places:
            groups = [one for one in found if one.metric == name and group in ("", one.group_name)]
            if groups:
                named = [one.group_name for one in groups]
                return _Points({"trial": row.id, "groups": named, "metric": name}, groups)
        return None

    def _system(self, run_id: str, key: str) -> dict[str, Any] | None:
        """The place of the profiler's number with this key, for the statements in :mod:`history`."""
        group = key.removeprefix(names.SYSTEM).partition("/")[0]
        if not key.startswith(names.SYSTEM) or group not in names.SYSTEM_GROUPS:
            return None
        trial = names.number(run_id)
        for one in self._db.all(_SYSTEM, {"trial": trial, "group": group}):
            for path, _ in names.numbers_in(one.last, (one.metric,)):
                if names.system_key(group, path) == key:
                    return {"trial": trial, "groups": [group], "path": list(path)}
        return None

    def history(
        self, run_id: str, key: str, limit: int | None = None, page_token: str | None = None
    ) -> tuple[list[Metric], str | None]:
        """The run's values of the metric, by time; one page, and the token of the next page."""
        offset = SearchUtils.parse_start_offset_from_page_token(page_token)
        more = None if limit is None else limit + 1
        points = self._points(run_id, key)
        statement, given = history.PAGE, None if points is None else points.given
        if given is None:
            statement, given = history.PAGE_NESTED, self._system(run_id, key)
        if given is None:
            found = self.get(run_id)
            if key in found.data.metrics:
                return [one for one in found.data._metric_objs if one.key == key], None
            return [], None
        rows = self._db.all(statement, {**given, "limit": more, "offset": offset})
        token = None
        if limit is not None and len(rows) > limit:
            rows = rows[:limit]
            token = SearchUtils.create_page_token(offset + limit)
        return [Metric(key, value, moment, step) for moment, step, value in rows], token

    def sample(
        self, run_id: str, key: str, most: int, steps: tuple[int, int] | None
    ) -> list[MetricWithRunId]:
        """At most ``most`` points of the metric, spread evenly over its steps or reports."""
        first, last = steps or _ALL_STEPS
        bounds = {"most": most, "first": first, "last": last}
        rows: list[Any] = []
        points = self._points(run_id, key)
        if points is None:
            place = self._system(run_id, key)
            if place is None:
                found = [one for one in self.get(run_id).data._metric_objs if one.key == key]
                return [MetricWithRunId(one, run_id) for one in found]
            rows = self._db.all(history.SAMPLE_NESTED, {**place, **bounds})
            return _points_of(run_id, key, rows)
        given = {**points.given, **bounds}
        if points.are_in_every_report and points.count > most * _MANY and most > 1:
            (group,) = points.given["groups"]
            rows = self._db.all(history.SAMPLE_STEPS, {**given, "group": group})
        if len(rows) < most:
            rows = self._db.all(history.SAMPLE, given)
        return _points_of(run_id, key, rows)


def _points_of(run_id: str, key: str, rows: Sequence[Any]) -> list[MetricWithRunId]:
    return [
        MetricWithRunId(Metric(key, value, moment, step), run_id) for moment, step, value in rows
    ]


def _latest(one: Any, native: bool) -> Iterator[tuple[str, float]]:
    """Yield the values that MLflow shows of a summary: a metric, or every number that the profiler
    reported."""
    value = names.metric_value(one.last)
    if value is not None:
        yield names.shown_key(one.group_name, one.metric, native), value
    elif one.group_name in names.SYSTEM_GROUPS and isinstance(one.last, dict):
        for path, number in names.numbers_in(one.last, (one.metric,)):
            yield names.system_key(one.group_name, path), number


def status_of(status: Any) -> str:
    """The name of a run's status, which clients give as a number or a name."""
    return status if isinstance(status, str) else str(RunStatus.to_string(status))
