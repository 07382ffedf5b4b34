"""The SQL of runs: trials, and searches, as one list that can be filtered, sorted and read in pages.

Filters and orders come parsed (``mlflow.utils.search_utils``) and leave as SQL, so that of ten thousand
trials only a page's leave the database. Every value is a parameter of the statement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from determined.common.wire.mlflow import BEST
from determined_registry.mlflow import names

_STATUS = """
    CASE {state} WHEN 'COMPLETED' THEN 'FINISHED' WHEN 'CANCELED' THEN 'KILLED' WHEN 'ERROR' THEN 'FAILED'
        WHEN 'PAUSED' THEN 'SCHEDULED' WHEN 'DELETING' THEN 'KILLED' WHEN 'DELETE_FAILED' THEN 'KILLED'
        ELSE 'RUNNING' END"""
IS_SEARCH = "(NOT e.unmanaged AND e.config -> 'searcher' ->> 'name' <> 'single')"
_LABELS = f"""
    coalesce((SELECT jsonb_object_agg('{names.LABEL}' || label, 'true')
              FROM jsonb_array_elements_text(e.labels) AS label), '{{}}')"""

# A run started by an MLflow client has that client's tags; our own trials have more.
_TRIAL_TAGS = f"""
    CASE WHEN coalesce(m.native, false) THEN m.tags ELSE
        jsonb_build_object(
            'mlflow.runName', coalesce(m.name, 'trial-' || t.id), 'mlflow.user', u.username,
            'determined.experiment', e.id::text, 'determined.trial', t.id::text,
            'determined.state', t.state, 'determined.restarts', t.restarts::text)
        || CASE WHEN {IS_SEARCH}
            THEN jsonb_build_object('mlflow.parentRunId', '{names.SEARCH}' || e.id) ELSE '{{}}' END
        || CASE WHEN t.reason IS NULL THEN '{{}}'
            ELSE jsonb_build_object('determined.reason', t.reason) END
        || {_LABELS} || coalesce(m.tags, '{{}}')
    END"""
_SEARCH_TAGS = f"""
    jsonb_build_object(
        'mlflow.runName', e.name, 'mlflow.user', u.username, 'determined.experiment', e.id::text,
        'determined.state', e.state, 'determined.progress', round(e.progress::numeric, 3)::text)
    || CASE WHEN e.reason IS NULL THEN '{{}}' ELSE jsonb_build_object('determined.reason', e.reason) END
    || CASE WHEN e.notes = '' THEN '{{}}' ELSE jsonb_build_object('mlflow.note.content', e.notes) END
    || {_LABELS}"""

# LEFT JOIN, though every trial has an owner and a task: Postgres skips such a join if no column of it is
# selected.
TRIALS = f"""
    SELECT t.id AS trial_id, e.id AS experiment_id, t.id::text AS run_id,
           {_STATUS.format(state="t.state")} AS status, k.start_time, t.end_time,
           (m.deleted_at IS NOT NULL OR e.archived) AS deleted, u.username,
           coalesce(m.name, 'trial-' || t.id) AS run_name, coalesce(m.native, false) AS native,
           t.hparams, m.params, {_TRIAL_TAGS} AS tags, m.inputs,
           t.searcher_metric_value AS best, e.config -> 'searcher' ->> 'metric' AS searcher_metric
    FROM trials t JOIN experiments e ON e.id = t.experiment_id LEFT JOIN tasks k ON k.id = t.task_id
    LEFT JOIN users u ON u.id = e.owner_id LEFT JOIN mlflow_runs m ON m.trial_id = t.id"""
SEARCHES = f"""
    SELECT NULL::integer AS trial_id, e.id AS experiment_id, '{names.SEARCH}' || e.id AS run_id,
           {_STATUS.format(state="e.state")} AS status, e.start_time, e.end_time,
           e.archived AS deleted, u.username, e.name AS run_name, false AS native,
           jsonb_build_object('searcher', e.config -> 'searcher') AS hparams, NULL::jsonb AS params,
           {_SEARCH_TAGS} AS tags, NULL::jsonb AS inputs,
           NULL::float8 AS best, NULL::text AS searcher_metric
    FROM experiments e LEFT JOIN users u ON u.id = e.owner_id"""

VALUE = """
    CASE jsonb_typeof({last}) WHEN 'number' THEN ({last})::float8
        WHEN 'boolean' THEN ({last})::boolean::integer::float8
        WHEN 'string' THEN CASE WHEN {last} #>> '{{}}' IN ('NaN', 'Infinity', '-Infinity')
            THEN ({last} #>> '{{}}')::float8 END END"""
"""A reported value as a number; NULL: it is none."""

_ATTRIBUTES = {
    "run_id": "r.run_id",
    "run_name": "r.run_name",
    "status": "r.status",
    "user_id": "r.username",
    "start_time": "(extract(epoch FROM r.start_time) * 1000)::bigint",
    "end_time": "(extract(epoch FROM r.end_time) * 1000)::bigint",
    "artifact_uri": "'mlflow-artifacts:/trials/' || r.run_id",
    "experiment_id": "r.experiment_id::text",
}
_PARAM = """(SELECT coalesce(r.params ->> {key}, CASE jsonb_typeof(v) WHEN 'boolean' THEN initcap(v::text)
    WHEN 'null' THEN 'None' ELSE v #>> '{{}}' END)
    FROM (SELECT coalesce(r.hparams -> {key}, r.hparams #> string_to_array({key}, '.')) AS v) AS given)"""
_OF_DATA_SET = {
    "name": "i -> 'dataset' ->> 'name'",
    "digest": "i -> 'dataset' ->> 'digest'",
    "context": "i -> 'tags' ->> 'mlflow.data.context'",
}
_NUMBER = "^-?[0-9]+([.][0-9]+)?(e-?[0-9]+)?$"
_COMPARATORS = {
    "=": "=",
    "!=": "<>",
    ">": ">",
    ">=": ">=",
    "<": "<",
    "<=": "<=",
    "LIKE": "LIKE",
    "ILIKE": "ILIKE",
    "IN": "= ANY",
    "NOT IN": "<> ALL",
}


@dataclass
class Query:
    """A statement that is being put together: of the runs of some experiments, those that match."""

    experiments: list[int]
    given: dict[str, Any] = field(default_factory=dict)
    joins: list[str] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)
    order: list[tuple[str, str]] = field(default_factory=list)
    _metrics: dict[str, str] = field(default_factory=dict)
    _uses_tags: bool = False

    def bind(self, value: Any) -> str:
        """The parameter that stands for the value."""
        name = f"p{len(self.given)}"
        self.given[name] = value
        return f":{name}"

    def metric(self, key: str) -> str:
        """The metric's last value in each run, as an expression; NULL where the run has none."""
        if key.startswith(BEST):
            metric = self.bind(key.removeprefix(BEST))
            return f"CASE WHEN r.searcher_metric = cast({metric} AS text) AND NOT r.native THEN r.best END"
        if key not in self._metrics:
            alias = f"metric{len(self._metrics)}"
            places = names.places(key, native=False)
            group = self.bind([place[0] for place in places])
            name = self.bind([place[1] for place in places])
            own = self.bind(key)
            known = self.bind(sorted({key, *(place[1] for place in places)}))
            last = VALUE.format(last="s.last")
            self.joins.append(
                f"""
                LEFT JOIN (
                    SELECT DISTINCT ON (s.trial_id) s.trial_id, {last} AS value
                    FROM trials t JOIN metric_summaries s ON s.trial_id = t.id
                    LEFT JOIN mlflow_runs m ON m.trial_id = s.trial_id
                    LEFT JOIN unnest(cast({group} AS text[]), cast({name} AS text[]))
                        WITH ORDINALITY AS place(group_name, metric, rank)
                        ON place.group_name = s.group_name AND place.metric = s.metric
                    WHERE t.experiment_id = ANY(:experiments) AND s.metric = ANY(cast({known} AS text[]))
                      AND CASE WHEN m.native THEN s.metric = cast({own} AS text)
                               ELSE place.rank IS NOT NULL END
                    ORDER BY s.trial_id, place.rank
                ) AS {alias} ON {alias}.trial_id = r.trial_id"""
            )
            self._metrics[key] = f"{alias}.value"
        return self._metrics[key]

    def param(self, key: str) -> str:
        """The parameter's text in each run, as an expression."""
        return _PARAM.format(key=f"cast({self.bind(key)} AS text)")

    def tag(self, key: str) -> str:
        """The tag's text in each run, as an expression."""
        self._uses_tags = True
        return f"(r.tags ->> cast({self.bind(key)} AS text))"

    def attribute(self, key: str) -> str:
        """The attribute of each run. Raises KeyError."""
        return _ATTRIBUTES[key]

    def want(self, kind: str, key: str, comparator: str, value: Any) -> None:
        """Only runs for which the comparison holds. Raises KeyError for an attribute that runs do not
        have."""
        if kind == "dataset":
            self._want_data_set(_OF_DATA_SET[key], comparator, value)
            return
        expression = {
            "metric": self.metric,
            "parameter": self.param,
            "tag": self.tag,
            "attribute": self.attribute,
        }[kind](key)
        if comparator in ("IS NULL", "IS NOT NULL"):
            self.wanted.append(f"{expression} {comparator}")
            return
        sign = _COMPARATORS[comparator]
        if kind == "metric":
            bound = f"cast({self.bind(float(value))} AS float8)"
            compared = f"{expression} {sign} {bound}"
            # For NaN only != is true.
            self.wanted.append(
                compared if sign == "<>" else f"({compared} AND {expression} <> 'NaN')"
            )
        elif comparator in ("IN", "NOT IN"):
            self.wanted.append(f"{expression} {sign} (cast({self.bind(list(value))} AS text[]))")
        elif kind == "attribute" and key in ("start_time", "end_time"):
            self.wanted.append(f"{expression} {sign} cast({self.bind(int(value))} AS bigint)")
        elif kind == "parameter" and sign in ("=", "<>") and names.param_value(value) != value:
            # A number is the same number however it is written: Postgres writes 1e-05 as 0.00001.
            text = self.bind(value)
            same = (
                f"({expression} = cast({text} AS text) OR CASE WHEN {expression} ~ '{_NUMBER}' AND "
                f"cast({text} AS text) ~ '{_NUMBER}' "
                f"THEN {expression}::numeric = cast({text} AS text)::numeric ELSE false END)"
            )
            self.wanted.append(
                same if sign == "=" else f"({expression} IS NOT NULL AND NOT {same})"
            )
        else:
            self.wanted.append(f"{expression} {sign} cast({self.bind(value)} AS text)")

    def _want_data_set(self, expression: str, comparator: str, value: Any) -> None:
        """Only runs that have said they used such a data set."""
        sign = _COMPARATORS[comparator]
        if comparator in ("IN", "NOT IN"):
            compared = f"{sign} (cast({self.bind(list(value))} AS text[]))"
        else:
            compared = f"{sign} cast({self.bind(value)} AS text)"
        self.wanted.append(
            f"EXISTS (SELECT FROM jsonb_array_elements(r.inputs) AS i WHERE ({expression}) {compared})"
        )

    def sort(self, kind: str, key: str, ascending: bool) -> None:
        """Add a criterion after the previous ones. Runs without a value come last, before them those with
        NaN."""
        direction = "ASC" if ascending else "DESC"
        if kind == "metric":
            value = self.metric(key)
            rank = f"CASE WHEN {value} IS NULL THEN 2 WHEN {value} = 'NaN' THEN 1 ELSE 0 END"
            self.order.append((rank, "ASC"))
            if key.startswith(BEST):
                # Of equals `det` names the first.
                self.order += [(value, direction), ("r.trial_id", "ASC")]
                return
        else:
            value = {"parameter": self.param, "tag": self.tag, "attribute": self.attribute}[kind](
                key
            )
            self.order.append((f"({value}) IS NULL", "ASC"))
            if kind != "attribute" or key not in ("start_time", "end_time"):
                # Compare texts as Python does, under any collation of the database.
                value = f'({value}) COLLATE "C"'
        self.order.append((value, direction))

    def page(self, stages: set[str], limit: int | None, offset: int) -> tuple[str, dict[str, Any]]:
        """The statement and its parameters; its rows are ``(trial_id, experiment_id)``, of a search without
        a trial. ``stages``: "active", "deleted" or both.
        """
        trials, searches = TRIALS, SEARCHES
        if not self._uses_tags:
            # Half of the time of a search went into tags of runs that are on no page.
            trials = trials.replace(_TRIAL_TAGS, "NULL::jsonb")
            searches = searches.replace(_SEARCH_TAGS, "NULL::jsonb")
        wanted = list(self.wanted)
        if len(stages) == 1:
            wanted.append("r.deleted" if "deleted" in stages else "NOT r.deleted")
        order = self.order or [("r.start_time", "DESC")]
        columns = "".join(f", {value} AS o{number}" for number, (value, _) in enumerate(order))
        sorting = ", ".join(f"o{number} {way}" for number, (_, way) in enumerate(order))
        # Of runs that are equal so far the younger one comes first. When they began stands in another table,
        # in which only those are looked up that may be on the page.
        most = "" if limit is None else "FETCH FIRST (:limit + :offset) ROWS WITH TIES"
        given = {**self.given, "experiments": self.experiments, "limit": limit, "offset": offset}
        statement = f"""
            SELECT page.trial_id, page.experiment_id FROM (
                SELECT r.trial_id, r.experiment_id{columns} FROM (
                    {trials} WHERE t.experiment_id = ANY(:experiments)
                    UNION ALL
                    {searches} WHERE e.id = ANY(:experiments) AND {IS_SEARCH}
                ) AS r {" ".join(self.joins)}
                {f"WHERE {' AND '.join(wanted)}" if wanted else ""}
                ORDER BY {sorting} {most}
            ) AS page
            JOIN experiments e ON e.id = page.experiment_id
            LEFT JOIN trials t ON t.id = page.trial_id LEFT JOIN tasks k ON k.id = t.task_id
            ORDER BY {sorting}, CASE WHEN t.id IS NULL THEN e.start_time ELSE k.start_time END DESC,
                page.trial_id NULLS FIRST, page.experiment_id LIMIT :limit OFFSET :offset"""
        return statement, given
