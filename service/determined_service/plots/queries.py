"""Reads a search from the tables, with a fixed number of statements for any number of trials."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row

from determined_searchers.settings import Form
from determined_service.base.json import by_name
from determined_service.ingest.values import finite
from determined_service.plots.model import PlottedOutcome, PlottedTrial, Point, Search
from determined_service.plots.occupancy import ladders

MOST_CURVES = 1000
"""Trials whose curves are drawn."""
MOST_POINTS = 60_000
"""Points of all curves together."""
POINTS_PER_CURVE = (10, 400)
"""Points of one curve: at least, at most."""


class NoSuchExperiment(LookupError):
    """The experiment does not exist (any more)."""


def read_search(
    db_url: str, experiment_id: int, prefect_url: str | None = None, *, curves: bool = True
) -> Search:
    """The experiment as it is now, without the trials' points unless ``curves``.

    ``prefect_url``: the address of Prefect's pages, for links.

    Raises NoSuchExperiment; psycopg.Error when Postgres does not answer.
    """
    with psycopg.connect(db_url, row_factory=dict_row) as conn:
        # All statements see the same moment of a search that goes on.
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.read_only = True
        search = _experiment(conn, experiment_id)
        search.prefect_url = prefect_url
        search.trials = _trials(conn, search)
        if curves:
            _read_curves(conn, search)
    return search


Connection = psycopg.Connection[dict[str, Any]]


def _experiment(conn: Connection, experiment_id: int) -> Search:
    row = conn.execute(
        """
        SELECT e.name, e.state, e.reason, e.description, e.labels, e.config, e.resource_pool AS pool,
               e.start_time AS start, e.end_time AS "end", now(), u.username AS owner,
               r.flow_run_id::text
        FROM experiments e JOIN users u ON u.id = e.owner_id
        LEFT JOIN kept_runs r ON r.experiment_id = e.id WHERE e.id = %s
        """,
        [experiment_id],
    ).fetchone()
    if row is None:
        raise NoSuchExperiment(f"experiment {experiment_id} does not exist")
    return Search(id=experiment_id, ladders=ladders(row["config"]), **row)


_TRIALS = """
    SELECT t.id, t.request_id, t.state, t.hparams, t.op_length, t.op_index, t.op_complete,
           t.stop_requested, t.early_exit, k.flow_run_id::text, t.searcher_metric_value AS metric,
           b.steps_completed AS best_steps, b.end_time AS best_time,
           greatest(v.last_steps, 0) AS steps, coalesce(v.count, 0) AS validations,
           coalesce(v.count - v.finite_count, 0) AS not_finite, w.max AS time,
           -- An unmanaged trial has no allocation: it runs until its script ends or falls silent.
           r.trial_id IS NOT NULL OR e.unmanaged AS running
    FROM trials t
    JOIN experiments e ON e.id = t.experiment_id
    JOIN tasks k ON k.id = t.task_id
    LEFT JOIN metrics b ON b.id = t.best_validation_id
    LEFT JOIN metric_summaries v
        ON v.trial_id = t.id AND v.group_name = 'validation' AND v.metric = %(metric)s
    LEFT JOIN metric_summaries w
        ON w.trial_id = t.id AND w.group_name = 'validation' AND w.metric = %(time_metric)s
    LEFT JOIN (
        SELECT DISTINCT trial_id FROM allocations
        WHERE experiment_id = %(id)s AND state = 'RUNNING'
    ) r ON r.trial_id = t.id
    WHERE t.experiment_id = %(id)s
    ORDER BY t.id
"""


def _trials(conn: Connection, search: Search) -> list[PlottedTrial]:
    given = {"id": search.id, "metric": search.metric, "time_metric": search.time_metric}
    brackets = _brackets(conn, search.id)
    return [_trial(row, search, brackets) for row in conn.execute(_TRIALS, given)]


def _brackets(conn: Connection, experiment_id: int) -> dict[str, int]:
    """The bracket of each trial, according to the searcher's saved state, which may lag behind."""
    row = conn.execute(
        "SELECT jsonb_path_query_first(snapshot, '$.method_state.**.trial_table') AS pairs "
        "FROM searches WHERE experiment_id = %s",
        [experiment_id],
    ).fetchone()
    pairs = row["pairs"] if row else None
    if not isinstance(pairs, list):
        return {}
    return {pair[0]: pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2}


def _trial(row: dict[str, Any], search: Search, brackets: dict[str, int]) -> PlottedTrial:
    reports = search.form is Form.REPORTS
    measured = row["op_length"] if row["op_complete"] and not reports else None
    reached = (row["time"] if reports else measured) or 0.0
    return PlottedTrial(
        id=row["id"],
        request_id=row["request_id"],
        outcome=_outcome(row, search, reached),
        hparams=by_name(row["hparams"]),
        metric=row["metric"],
        best_steps=row["best_steps"],
        best_time=row["best_time"],
        steps=row["steps"],
        validations=row["validations"],
        not_finite=row["not_finite"],
        target=None if reports else row["op_length"],
        targets=row["op_index"],
        reached=reached,
        bracket=brackets.get(row["request_id"]),
        flow_run_id=row["flow_run_id"],
    )


def _outcome(row: dict[str, Any], search: Search, reached: float) -> PlottedOutcome:
    if row["early_exit"] == "INVALID_HP":
        return PlottedOutcome.INVALID
    if row["state"] in ("ERROR", "CANCELED"):
        return PlottedOutcome.FAILED if row["state"] == "ERROR" else PlottedOutcome.CANCELED
    if row["state"] != "COMPLETED":
        return PlottedOutcome.RUNNING if row["running"] else PlottedOutcome.WAITING
    if search.form is Form.REPORTS:
        short = search.length is not None and reached < search.length
        return (
            PlottedOutcome.STOPPED if row["stop_requested"] and short else PlottedOutcome.COMPLETED
        )
    short = search.length is not None and reached < search.length
    return PlottedOutcome.STOPPED if short else PlottedOutcome.COMPLETED


# A curve with more points than the figure shows is thinned to the first point at or after each of a number of
# steps, evenly spread: look-ups in the index, as reading a million rows would take minutes on a busy machine.
# Its last and its best point stay.
_CURVES = """
    WITH chosen AS (
        SELECT t.id, t.best_validation_id AS best, v.last_steps AS last, v.count > %(most)s AS long,
               (SELECT min(m.steps_completed) FROM metrics m
                WHERE m.trial_id = t.id AND m.group_name = 'validation') AS first
        FROM trials t JOIN metric_summaries v
            ON v.trial_id = t.id AND v.group_name = 'validation' AND v.metric = %(metric)s
        WHERE t.id = ANY(%(ids)s)
    ), kept AS (
        SELECT m.id FROM chosen c JOIN metrics m ON m.trial_id = c.id
        WHERE NOT c.long AND m.group_name = 'validation'
        UNION SELECT best FROM chosen WHERE long
        UNION SELECT m.id FROM chosen c
        CROSS JOIN generate_series(0, %(most)s - 1) AS place
        CROSS JOIN LATERAL (
            SELECT m.id FROM metrics m
            WHERE m.trial_id = c.id AND m.group_name = 'validation' AND NOT m.archived
              AND m.steps_completed >= c.first + (c.last - c.first) * place / (%(most)s - 1)
              AND m.metrics ? %(metric)s
            ORDER BY m.steps_completed, m.id LIMIT 1
        ) AS m
        WHERE c.long
    )
    SELECT m.trial_id, m.end_time, m.metrics -> %(metric)s AS value,
           coalesce(m.metrics -> %(time_metric)s, to_jsonb(m.steps_completed)) AS x
    FROM metrics m JOIN kept ON kept.id = m.id
    WHERE NOT m.archived AND m.metrics ? %(metric)s
    ORDER BY m.trial_id, m.steps_completed, m.id
"""


def _read_curves(conn: Connection, search: Search) -> None:
    chosen = [trial.id for trial in search.sample(MOST_CURVES) if trial.validations]
    if not chosen:
        return
    least, most = POINTS_PER_CURVE
    search.curve_points = min(max(MOST_POINTS // len(chosen), least), most)
    given = {
        "ids": chosen,
        "metric": search.metric,
        "time_metric": search.time_metric,
        "most": search.curve_points,
    }
    for row in conn.execute(_CURVES, given):
        x = finite(row["x"])
        if x is not None:
            point = Point(x, finite(row["value"]), row["end_time"])
            search.curves.setdefault(row["trial_id"], []).append(point)
