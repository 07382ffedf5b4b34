"""The SQL of metric histories: what one trial reported of one metric, in the order of the reports."""

from __future__ import annotations

from determined_registry.mlflow.run_rows import VALUE

POINTS = f"""
    SELECT round(extract(epoch FROM x.end_time) * 1000)::bigint AS moment, x.steps_completed AS step,
           {VALUE.format(last="found.last")} AS value, x.id
    FROM metrics x
    -- OFFSET 0: looked for once in each report, not once for each mention above.
    CROSS JOIN LATERAL (SELECT x.metrics -> cast(:metric AS text) AS last OFFSET 0) AS found
    WHERE x.trial_id = :trial AND x.group_name = ANY(cast(:groups AS text[])) AND NOT x.archived
      AND found.last IS NOT NULL"""
"""Moments are milliseconds since 1970."""

PAGE = f"""
    SELECT p.moment, p.step, p.value FROM ({POINTS}) AS p WHERE p.value IS NOT NULL
    ORDER BY p.moment, p.step, p.value LIMIT :limit OFFSET :offset"""

_NUMBERS = """
    x.trial_id = :trial AND NOT x.archived AND x.steps_completed BETWEEN :first AND :last
      AND CASE jsonb_typeof(x.metrics -> cast(:metric AS text)) WHEN 'number' THEN true
          WHEN 'boolean' THEN true WHEN 'string'
          THEN x.metrics ->> cast(:metric AS text) IN ('NaN', 'Infinity', '-Infinity') ELSE false END"""
"""The reports whose value is a number: those of :data:`POINTS`, without making anything of them."""

_OF_CHOSEN = f"""
    SELECT round(extract(epoch FROM x.end_time) * 1000)::bigint AS moment, x.steps_completed AS step,
           {VALUE.format(last="(x.metrics -> cast(:metric AS text))")} AS value
    FROM chosen c JOIN metrics x ON x.id = c.id
    ORDER BY x.steps_completed, x.end_time, x.id"""

SAMPLE = f"""
    WITH every AS MATERIALIZED (
        SELECT x.id, row_number() OVER (ORDER BY x.steps_completed, x.end_time, x.id) - 1 AS place
        FROM metrics x WHERE x.group_name = ANY(cast(:groups AS text[])) AND {_NUMBERS}
    ), parts AS (
        SELECT count(*) AS total, count(*) / :most AS size, count(*) % :most AS larger FROM every
    ), chosen AS (
        SELECT id FROM every, parts
        WHERE total <= :most OR place = total - 1 OR (place < total - size AND
            CASE WHEN place < larger * (size + 1) THEN place % (size + 1)
                 ELSE (place - larger * (size + 1)) % size END = 0)
    ) {_OF_CHOSEN}"""
"""So many points, spread evenly over the reports, as MLflow's own store chooses them: of so many parts the
first report each, of the last part the last. ``larger`` parts have a report more. Reads every report."""

SAMPLE_STEPS = f"""
    WITH ends AS (
        SELECT (SELECT x.steps_completed FROM metrics x WHERE x.group_name = :group AND {_NUMBERS}
                ORDER BY x.steps_completed LIMIT 1) AS low,
               (SELECT x.steps_completed FROM metrics x WHERE x.group_name = :group AND {_NUMBERS}
                ORDER BY x.steps_completed DESC LIMIT 1) AS high
    ), sized AS (
        SELECT low, high, cast(high AS numeric) - low + 1 AS size FROM ends
    ), chosen AS (
        SELECT DISTINCT found.id
        FROM sized, generate_series(0, cast(:most AS bigint) - 1) AS part CROSS JOIN LATERAL (
            SELECT x.id FROM metrics x WHERE x.group_name = :group AND {_NUMBERS}
              AND x.steps_completed >= CASE WHEN part = :most - 1 THEN high ELSE cast(
                  low + part * div(size, :most) + least(part, mod(size, :most)) AS bigint) END
            ORDER BY x.steps_completed LIMIT 1
        ) AS found
    ) {_OF_CHOSEN}"""
"""The same of the steps: of each part the next report from its first step on. Fewer points where the steps
of the reports are not spread evenly. Others are looked at only where the metric is not in each."""


def nested(statement: str) -> str:
    """The statement for a number within a reported object: ``:path`` is its place instead of ``:metric``."""
    for arrow, within in (("->", "#>"), ("->>", "#>>")):
        statement = statement.replace(
            f"x.metrics {arrow} cast(:metric AS text)", f"x.metrics {within} cast(:path AS text[])"
        )
    return statement


PAGE_NESTED = nested(PAGE)
SAMPLE_NESTED = nested(SAMPLE)
