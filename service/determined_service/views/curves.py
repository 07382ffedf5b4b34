"""Curves of many points as few: :func:`thinned`, which keeps what is extreme."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by, array
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import metrics

SHORT_BYTES = 64
"""Longer values are left out of these curves; NaN and infinities are short texts."""
POINT_BYTES = 128
"""About what one point takes."""

m = metrics.c
_ORDER = (m.steps_completed, m.id)
_BACKWARDS = (m.steps_completed.desc(), m.id.desc())


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one curve by their steps, as columns; a value that a report lacks is None."""

    steps: Sequence[int]
    times: Sequence[datetime.datetime]
    values: dict[str, Sequence[Any]]


NO_POINTS = Curve((), (), {})


async def thinned(
    conn: AsyncConnection,
    trial_ids: Collection[int],
    wanted: Sequence[sa.ColumnElement[bool]],
    metric: str,
    names: Collection[str],
    most: int,
    *,
    quick: bool = False,
) -> dict[int, Curve]:
    """By trial, at most ``most`` (4 or more) of the reports that have ``metric``.

    Of a longer curve they are the first and the last report, and of each of equally wide stretches of steps
    the reports with the least and the greatest finite value. So no spike is lost. With ``quick`` it is the
    first report of each stretch instead, which is found without reading the others.

    A trial whose curve is too long, and has fewer steps than stretches, is missing in the answer.

    Args:
        wanted: conditions on the reports, among them their group.
        names: the metrics that the answer shows; values of more than :data:`SHORT_BYTES` are left out.

    The number of statements does not grow with the number of trials.
    """
    of_metric = (*wanted, m.metrics.has_key(metric))
    trial = _each(trial_ids)
    first = sa.select(m.id).where(m.trial_id == trial.c.id, *of_metric)
    some = sa.func.array(first.order_by(*_ORDER).limit(most + 1).scalar_subquery())
    found = (await conn.execute(sa.select(trial.c.id, some.label("some")))).all()
    ids = [one for row in found if len(row.some) <= most for one in row.some]
    curves = {row.id: NO_POINTS for row in found if len(row.some) <= most}
    ends = await _ends(conn, [row.id for row in found if len(row.some) > most], of_metric)
    stretches = max(1, (most - 2) // 2)
    wide = [row for row in ends if row.high - row.low >= stretches]
    if wide:
        choose = _firsts(of_metric) if quick else _extremes(wanted, metric)
        given = {"trials": [row.id for row in wide], "stretches": stretches}
        given |= {"low": [row.low for row in wide], "high": [row.high for row in wide]}
        for pair in await conn.execute(choose, given):
            ids += [int(one) for one in pair if one is not None]
        ids += [one for row in wide for one in (row.first_id, row.last_id)]
        curves |= {row.id: NO_POINTS for row in wide}
    return curves | await _points(conn, ids, sorted(names))


async def _points(
    conn: AsyncConnection, ids: Collection[int], names: Sequence[str]
) -> dict[int, Curve]:
    """By trial, the reports ``ids``. Postgres makes the columns: a row for each report takes ten times as
    long to read."""
    if not ids:
        return {}

    def column(value: Any) -> Any:
        return aggregate_order_by(value, *_ORDER)

    shown = []
    for place, name in enumerate(names):
        is_short = sa.func.pg_column_size(m.metrics[name]) <= SHORT_BYTES
        value = sa.case((is_short, m.metrics[name]))
        shown.append(sa.func.jsonb_agg(column(value)).label(f"value_{place}"))
    statement = sa.select(
        m.trial_id,
        sa.func.array_agg(column(m.steps_completed)),
        sa.func.array_agg(column(m.end_time)),
        *shown,
    )
    # As one array: to write a statement with thousands of parameters takes longer than to run it.
    chosen = sa.func.any(sa.cast(sorted(set(ids)), ARRAY(sa.BigInteger)))
    rows = await conn.execute(statement.where(m.id == chosen).group_by(m.trial_id))
    return {
        trial: Curve(steps, times, dict(zip(names, values, strict=True)))
        for trial, steps, times, *values in rows
    }


def _each(trial_ids: Collection[int]) -> Any:
    ids = sa.cast(list(trial_ids), ARRAY(sa.Integer))
    return sa.func.unnest(ids).table_valued("id").render_derived("trial")


async def _ends(
    conn: AsyncConnection, trial_ids: list[int], wanted: Sequence[sa.ColumnElement[bool]]
) -> Sequence[sa.Row[Any]]:
    """The first and the last report of each trial: their ids, and their steps ``low`` and ``high``."""
    if not trial_ids:
        return []
    trial = _each(trial_ids)
    first, last = (
        sa.select(m.id, m.steps_completed)
        .where(m.trial_id == trial.c.id, *wanted)
        .order_by(*order)
        .limit(1)
        .lateral(name)
        for name, order in (("first", _ORDER), ("last", _BACKWARDS))
    )
    ends = sa.select(
        trial.c.id,
        first.c.id.label("first_id"),
        last.c.id.label("last_id"),
        first.c.steps_completed.label("low"),
        last.c.steps_completed.label("high"),
    )
    joined = trial.join(first, sa.true()).join(last, sa.true())
    return (await conn.execute(ends.select_from(joined))).all()


class _Stretches:
    """Stretches of steps of the trials ``:trials`` between ``:low`` and ``:high``, ``:stretches`` of each.

    Each one is looked up in the index. To group all reports by their stretch takes three times as long:
    Postgres cannot know that there are few groups, and sorts all reports.
    """

    def __init__(self) -> None:
        given = [
            sa.bindparam(name, type_=ARRAY(sa.BigInteger)) for name in ("trials", "low", "high")
        ]
        self.trial = (
            sa.func.unnest(*given).table_valued("id", "low", "high").render_derived("trial")
        )
        count = sa.bindparam("stretches", type_=sa.BigInteger)
        place = (
            sa.func.generate_series(0, count - 1).table_valued("place").render_derived("stretch")
        )
        self.place = place
        width = sa.cast(self.trial.c.high - self.trial.c.low + 1, sa.Numeric)

        def begin(place: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
            return self.trial.c.low + sa.cast(sa.func.floor(width * place / count), sa.BigInteger)

        self.rows = self.trial.join(place, sa.true())
        self.conditions = (
            m.trial_id == self.trial.c.id,
            m.steps_completed >= begin(place.c.place),
            m.steps_completed < begin(place.c.place + 1),
        )


def _extremes(wanted: Sequence[sa.ColumnElement[bool]], metric: str) -> sa.Select[Any]:
    """Of each stretch, the ids of the reports with the least and the greatest value."""
    stretches = _Stretches()
    # OFFSET 0: the value is taken out of the report once, and nothing but a number is read as one. By `->`,
    # which takes half of a subscript's time.
    value = sa.select(m.id, m.metrics.op("->")(metric).label("value"))
    value = value.where(*stretches.conditions, *wanted).offset(sa.literal_column("0"))
    values = value.correlate(stretches.trial, stretches.place).lateral("values")
    # Postgres finds the least of pairs, of a value with its report's id, without sorting.
    pair = array([sa.cast(values.c.value, sa.Float(53)), sa.cast(values.c.id, sa.Float(53))])
    is_number = sa.func.jsonb_typeof(values.c.value) == "number"
    pairs = (
        sa.select(pair.label("pair"))
        .where(is_number)
        .offset(sa.literal_column("0"))
        .lateral("pairs")
    )
    kept = sa.select(
        sa.func.min(pairs.c.pair).label("least"), sa.func.max(pairs.c.pair).label("greatest")
    ).lateral("kept")
    return sa.select(kept.c.least[2], kept.c.greatest[2]).select_from(
        stretches.rows.join(kept, sa.true())
    )


def _firsts(wanted: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """Of each stretch, the id of the first report."""
    stretches = _Stretches()
    first = sa.select(m.id).where(*stretches.conditions, *wanted).order_by(*_ORDER).limit(1)
    kept = first.lateral("kept")
    return sa.select(kept.c.id).select_from(stretches.rows.join(kept, sa.true()))
