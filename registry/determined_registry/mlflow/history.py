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

# Of each run so many points, spread evenly over its reports: the first of each of so many equal parts, and
# the last one of all.
SAMPLE = f"""
    WITH every AS (
        SELECT p.*, ntile(:most) OVER ordered AS part, row_number() OVER ordered AS place,
               count(*) OVER () AS total
        FROM ({POINTS} AND x.steps_completed BETWEEN :first AND :last) AS p
        WHERE p.value IS NOT NULL
        WINDOW ordered AS (ORDER BY p.step, p.moment, p.value)
    ), firsts AS (
        SELECT DISTINCT ON (part) * FROM every ORDER BY part, place
    )
    SELECT moment, step, value FROM (
        SELECT * FROM firsts WHERE total <= :most OR part < :most
        UNION SELECT * FROM every WHERE place = total
    ) AS chosen ORDER BY place"""
