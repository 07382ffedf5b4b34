"""Summaries of metrics, which can be read without the reports: count, sum, min, max, last.

Rules:

* ``count`` counts every report that holds the metric, with any value;
* ``sum``, ``min`` and ``max`` are over the finite numbers only: one NaN or infinity does not spoil
  them. A sum that leaves the range of a double becomes infinite;
* ``last`` is the value of the highest step, as it is (NaN and infinities as strings); of several there, and
  of the profiler's groups, which count time, the one that arrived last; of what MLflow's clients log, the one
  with the latest time, and of those the largest, as in MLflow's own store;
* ``type`` is the JSON type; ``string`` once a metric has had values of two types.
"""

from __future__ import annotations

import copy
import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.base.errors import BadRequest
from determined_service.ingest.values import NON_FINITE, PROFILER_GROUPS, replace_nul, type_name


@dataclass(slots=True)
class MetricSummary:
    """One metric of one group; ``sum``, ``low`` and ``high`` mean nothing while ``finite`` is 0."""

    type: str
    count: int = 0
    finite: int = 0
    sum: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    last: Any = None
    steps: int = 0
    time: datetime.datetime | None = None
    """Of ``last``, where the time counts."""

    def is_before(self, time: datetime.datetime | None, value: Any) -> bool:
        """Whether a later report of the same step, with this time and value, is the last."""
        if time is None or self.time is None:
            return True
        return (self.time, _comparable(self.last)) <= (time, _comparable(value))

    def merge(self, later: MetricSummary, *, by_time: bool) -> None:
        """Add a later summary. ``by_time``: the steps do not define the last value."""
        if later.type != self.type:
            self.type = "string"
        self.count += later.count
        self.finite += later.finite
        self.sum += later.sum
        self.low = min(self.low, later.low)
        self.high = max(self.high, later.high)
        if (
            by_time
            or later.steps > self.steps
            or (later.steps == self.steps and self.is_before(later.time, later.last))
        ):
            self.last, self.time = later.last, later.time
        self.steps = max(self.steps, later.steps)


class Summaries:
    """``groups[group][metric]`` of some reports."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, MetricSummary]] = {}

    def add(
        self,
        group: str,
        steps: int,
        metrics: dict[str, Any],
        time: datetime.datetime | None = None,
    ) -> None:
        """One report. The hot loop of ingest: it runs once per metric value. ``time``: where that counts."""
        known = self.groups.setdefault(group, {})
        by_time = group in PROFILER_GROUPS
        for name, value in metrics.items():
            kind = type(value)
            if kind is float or kind is int:
                type_of = "number"
            elif kind is str:
                type_of = "number" if value in NON_FINITE else "string"
            else:
                type_of = type_name(value)
            summary = known.get(name)
            if summary is None:
                summary = known[name] = MetricSummary(type_of, steps=steps)
            elif summary.type != type_of:
                summary.type = "string"
            summary.count += 1
            if steps > summary.steps:
                summary.last, summary.time, summary.steps = value, time, steps
            elif by_time or (
                steps == summary.steps and (time is None or summary.is_before(time, value))
            ):
                summary.last, summary.time = value, time
            if kind is float or kind is int:
                summary.finite += 1
                summary.sum += value
                if value < summary.low:
                    summary.low = value
                if value > summary.high:
                    summary.high = value

    def merge(self, later: Summaries) -> None:
        """Adds reports that came after."""
        for group, metrics in later.groups.items():
            known = self.groups.setdefault(group, {})
            for name, summary in metrics.items():
                mine = known.get(name)
                if mine is None:
                    # A copy, so that additions do not change the batch it came from.
                    known[name] = copy.copy(summary)
                else:
                    mine.merge(summary, by_time=group in PROFILER_GROUPS)


def _comparable(value: Any) -> float:
    """As MLflow's store compares values: NaN as 0."""
    if value == "NaN":
        return 0.0
    return float(value)


_NUMBER = """CASE {last} WHEN '"NaN"' THEN 0 ELSE cast({last} #>> '{{}}' AS float8) END"""
_IS_LAST = f"""
    m.group_name = ANY(:by_time) OR excluded.last_steps > m.last_steps
    OR (excluded.last_steps = m.last_steps AND CASE
        WHEN excluded.last_time = m.last_time
        THEN {_NUMBER.format(last="excluded.last")} >= {_NUMBER.format(last="m.last")}
        ELSE coalesce(excluded.last_time > m.last_time, true) END)"""
# Near the end of a double's range Postgres raises instead of giving an infinity.
_UPSERT = sa.text(
    f"""
    WITH stored AS (
    INSERT INTO metric_summaries AS m (
        trial_id, group_name, metric, type, count, finite_count, sum, min, max, last, last_steps, last_time
    )
    SELECT g.trial_id, g.group_name, g.metric, g.type, g.count, g.finite_count,
           g.sum, g.min, g.max, g.last::jsonb, g.last_steps, g.last_time
    FROM unnest(
        cast(:trial_id AS int[]), cast(:group_name AS text[]), cast(:metric AS text[]),
        cast(:type AS text[]), cast(:count AS bigint[]), cast(:finite_count AS bigint[]),
        cast(:sum AS float8[]), cast(:min AS float8[]), cast(:max AS float8[]),
        cast(:last AS text[]), cast(:last_steps AS bigint[]), cast(:last_time AS timestamptz[])
    ) AS g(
        trial_id, group_name, metric, type, count, finite_count, sum, min, max, last, last_steps, last_time
    )
    ON CONFLICT (trial_id, group_name, metric) DO UPDATE SET
        type = CASE WHEN m.type = excluded.type THEN m.type ELSE 'string' END,
        count = m.count + excluded.count,
        finite_count = m.finite_count + excluded.finite_count,
        sum = CASE
            WHEN m.sum IS NULL THEN excluded.sum
            WHEN excluded.sum IS NULL THEN m.sum
            WHEN abs(m.sum / 2 + excluded.sum / 2) > 8.9e307
                THEN (m.sum / 2 + excluded.sum / 2) * 'Infinity'::float8
            ELSE m.sum + excluded.sum
        END,
        min = least(m.min, excluded.min),
        max = greatest(m.max, excluded.max),
        last = CASE WHEN {_IS_LAST} THEN excluded.last ELSE m.last END,
        last_time = CASE WHEN {_IS_LAST} THEN excluded.last_time ELSE m.last_time END,
        last_steps = greatest(m.last_steps, excluded.last_steps)
    RETURNING trial_id, metric, xmax = 0 AS new
    ), sized AS (
    INSERT INTO metric_sizes AS s (trial_id, owner_id, bytes)
    SELECT * FROM unnest(cast(:sized AS int[]), cast(:owners AS int[]), cast(:sizes AS bigint[]))
    ON CONFLICT (trial_id) DO UPDATE SET bytes = s.bytes + excluded.bytes
    )
    SELECT trial_id, min(metric) AS name FROM stored WHERE new GROUP BY trial_id ORDER BY trial_id
    """
)
_COUNTS = sa.text(
    """
    SELECT trial_id, count(*) AS names, count(DISTINCT group_name) AS groups
    FROM metric_summaries WHERE trial_id = ANY(:ids) GROUP BY trial_id
    """
)


async def store_summaries(
    conn: AsyncConnection, by_trial: dict[int, Summaries], sizes: Mapping[tuple[int, int], int]
) -> None:
    """Add the summaries to the stored ones, and to the sizes of trials the bytes ``sizes`` by trial and
    owner, in one statement; rows are locked in the order of their key.

    Raises BadRequest when a new name would be one too many for its trial. The caller's transaction must fail
    then.
    """
    rows = sorted(
        (
            (trial_id, group, name, summary)
            for trial_id, summaries in by_trial.items()
            for group, metrics in summaries.groups.items()
            for name, summary in metrics.items()
        ),
        key=lambda row: row[:3],
    )
    if not sizes:
        return
    sized = sorted(sizes)
    stored = await conn.execute(
        _UPSERT,
        {
            "trial_id": [row[0] for row in rows],
            "group_name": [replace_nul(row[1]) for row in rows],
            "metric": [row[2] for row in rows],
            "by_time": sorted(PROFILER_GROUPS),
            "sized": [trial_id for trial_id, _ in sized],
            "owners": [owner_id for _, owner_id in sized],
            "sizes": [sizes[one] for one in sized],
            **_columns(row[3] for row in rows),
        },
    )
    new = {row.trial_id: row.name for row in stored}
    # Names are seldom new, so this is seldom asked.
    if new:
        for found in await conn.execute(_COUNTS, {"ids": list(new)}):
            _check_count(found.names, limits.METRIC_NAMES, "names of metrics", found, new)
            _check_count(found.groups, limits.METRIC_GROUPS, "groups of metrics", found, new)


def _check_count(count: int, most: int, what: str, found: Any, new: dict[int, str]) -> None:
    if count > most:
        raise BadRequest(
            f"metrics: trial {found.trial_id} would have {count} different {what}, at most {most} are "
            f"allowed; nothing of this batch was stored, in which {show(new[found.trial_id])} is new"
        )


def _columns(summaries: Iterable[MetricSummary]) -> dict[str, list[Any]]:
    given = list(summaries)
    return {
        "type": [one.type for one in given],
        "count": [one.count for one in given],
        "finite_count": [one.finite for one in given],
        "sum": [float(one.sum) if one.finite else None for one in given],
        "min": [float(one.low) if one.finite else None for one in given],
        "max": [float(one.high) if one.finite else None for one in given],
        "last": [orjson.dumps(one.last).decode() for one in given],
        "last_steps": [one.steps for one in given],
        "last_time": [one.time for one in given],
    }
