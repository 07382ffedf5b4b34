"""Whether an event that a retraining or a pipeline waits for has happened: :func:`happened`.

What was seen of each event is noted in the row of whoever waits (``marks``). The transaction that begins a
run writes the new marks, so each event begins one run at most; and what happened while no service ran, or
while another run was open, is seen afterwards and begins one run.
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    experiments,
    live_metrics,
    model_alias_history,
    models,
    trials,
)
from determined_service.base.db import as_asker
from determined_service.base.errors import BadRequest, NotFound
from determined_service.recurring.best import best_checkpoint
from determined_service.recurring.triggers import (
    AliasMoves,
    ExperimentEnds,
    LiveMetric,
    NewData,
    Trigger,
)
from determined_service.state import states
from determined_service.views.models import alias_version, find_model

Mark = dict[str, Any]
"""What was seen last. ``at``: when it began a run last."""


@dataclass(frozen=True, slots=True)
class EventWatch:
    """Who waits for the events ``triggers``, in the name of the user ``owner_id``. ``own``: which experiments
    (rows of ``experiments``) do not count, because it has run them. The other fields are a retraining's: its
    id, its model, and the alias whose live values count.
    """

    triggers: Sequence[Trigger]
    owner_id: int
    own: sa.ColumnElement[bool] = field(default_factory=sa.false)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    retraining_id: int | None = None
    model_id: int | None = None
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Happened:
    """What has happened, in words for the history, and the marks of after that. ``forced``: it asks for a
    training although the data is what it was.
    """

    causes: list[str]
    marks: dict[str, Mark]
    forced: bool = False


LOOK = "a look for new data"
"""The cause of runs that begin with nothing more than the time for a look."""
OVERLAP = datetime.timedelta(minutes=1)
"""How far before the last look completed experiments are looked for: the end is written a little before it
can be seen."""
CAUSE_CHARS = 300
FORCING = (AliasMoves, ExperimentEnds)
"""Events that have a model trained again on the same data: what it begins with is new. (A live metric that
falls on unchanged data would only give the same model again.)"""
BEST_OF = 20
"""Among so many of an experiment's best trials its best checkpoint is looked for."""

e = experiments.c


async def first_marks(conn: AsyncConnection, watch: EventWatch) -> dict[str, Mark]:
    """The marks of a watch that is new: events count from now on, or go on from its ``marks``.

    Raises NotFound for a model or an experiment that does not exist, BadRequest for a watch that would begin
    itself again and again.
    """
    now = await _now(conn)
    marks = {}
    for trigger in watch.triggers:
        event = trigger.event
        async with as_asker(conn):
            await _require_named(conn, watch, event)
        marks[trigger.key] = watch.marks.get(trigger.key) or await _FIRST[type(event)](
            conn, watch, event, now
        )
    return marks


async def _require_named(conn: AsyncConnection, watch: EventWatch, event: Any) -> None:
    if isinstance(event, AliasMoves):
        other = await find_model(conn, event.model)
        if other.id == watch.model_id:
            raise BadRequest(
                "on.alias: a promotion of this model would begin the next run: name another model"
            )
    if isinstance(event, ExperimentEnds) and event.id is not None:
        found = await conn.execute(sa.select(e.id).where(e.id == event.id))
        if found.first() is None:
            raise NotFound(f"on.experiment: experiment {event.id} does not exist")


async def happened(conn: AsyncConnection, watch: EventWatch) -> Happened:
    """What has happened since the marks were written. Changes nothing."""
    marks: dict[str, Mark] = dict(watch.marks)
    causes: list[str] = []
    forced = False
    if not watch.triggers:
        return Happened(causes, marks)
    now = await _now(conn)
    for trigger in watch.triggers:
        mark = marks.get(trigger.key)
        if mark is None or _rests(trigger, mark, now):
            continue
        found = await _LOOK[type(trigger.event)](conn, watch, trigger.event, mark, now)
        if found is not None:
            cause, after = found
            causes.append(cause[:CAUSE_CHARS])
            marks[trigger.key] = {**after, "at": now.isoformat()}
            forced = forced or isinstance(trigger.event, FORCING)
    return Happened(causes, marks, forced)


def _rests(trigger: Trigger, mark: Mark, now: datetime.datetime) -> bool:
    """Whether it began a run a short time ago: what happens meanwhile is seen after that."""
    seconds = getattr(trigger.event, "cooldown_s", 0.0)
    if not mark.get("at"):
        return False
    return now < datetime.datetime.fromisoformat(mark["at"]) + datetime.timedelta(seconds=seconds)


async def _now(conn: AsyncConnection) -> datetime.datetime:
    """By the clock that the rows are written by."""
    now: datetime.datetime = (await conn.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()
    return now


Found = tuple[str, Mark] | None
"""What is said of it, and the mark of after it; None: nothing has happened."""


async def _first_look(
    conn: AsyncConnection, watch: EventWatch, event: NewData, now: datetime.datetime
) -> Mark:
    return {"next": (now + datetime.timedelta(seconds=event.every_s)).isoformat()}


async def _look(
    conn: AsyncConnection,
    watch: EventWatch,
    event: NewData,
    mark: Mark,
    now: datetime.datetime,
) -> Found:
    if now < datetime.datetime.fromisoformat(mark["next"]):
        return None
    return LOOK, await _first_look(conn, watch, event, now)


async def _no_value(
    conn: AsyncConnection, watch: EventWatch, event: LiveMetric, now: datetime.datetime
) -> Mark:
    return {"id": 0}


async def _live_metric(
    conn: AsyncConnection,
    watch: EventWatch,
    event: LiveMetric,
    mark: Mark,
    now: datetime.datetime,
) -> Found:
    assert watch.model_id is not None
    champion = await alias_version(conn, watch.model_id, watch.alias)
    c = live_metrics.c
    found = await conn.execute(
        sa.select(c.id, c.value)
        .where(
            c.retraining_id == watch.retraining_id,
            c.name == event.metric,
            # Values of an earlier champion say nothing of this one.
            c.version.is_not_distinct_from(champion),
            # Each value begins one run at most.
            c.id > mark["id"],
        )
        .order_by(c.id.desc())
        .limit(event.last)
    )
    rows = found.all()
    if len(rows) < event.last:
        return None
    mean = sum(row.value for row in rows) / len(rows)
    below = event.below is not None and mean < event.below
    above = event.above is not None and mean > event.above
    if not (below or above):
        return None
    what = "is" if event.last == 1 else f"has a mean of the last {event.last} values of"
    bound = f"below {event.below:.6g}" if below else f"above {event.above:.6g}"
    return f"live {event.metric} {what} {mean:.6g}, {bound}", {"id": rows[0].id}


async def _last_move(
    conn: AsyncConnection, watch: EventWatch, event: AliasMoves, now: datetime.datetime
) -> Mark:
    # The number, as models may be renamed.
    model = await find_model(conn, event.model)
    h = model_alias_history.c
    found = await conn.execute(
        sa.select(sa.func.coalesce(sa.func.max(h.id), 0)).where(
            h.model_id == model.id, h.alias == event.alias
        )
    )
    return {"model": model.id, "id": found.scalar_one()}


async def _alias_moves(
    conn: AsyncConnection,
    watch: EventWatch,
    event: AliasMoves,
    mark: Mark,
    now: datetime.datetime,
) -> Found:
    h = model_alias_history.c
    found = await conn.execute(
        sa.select(h.id, h.to_version, models.c.name)
        .join(models, models.c.id == h.model_id)
        .where(
            h.model_id == mark["model"],
            h.alias == event.alias,
            h.id > mark["id"],
            h.to_version.is_not(None),
        )
        .order_by(h.id.desc())
        .limit(1)
    )
    row = found.first()
    if row is None:
        return None
    words = f"{event.alias} of model {row.name} stands for version {row.to_version} now"
    return words, {**mark, "id": row.id}


async def _last_end(
    conn: AsyncConnection, watch: EventWatch, event: ExperimentEnds, now: datetime.datetime
) -> Mark:
    if event.best:
        return {"best": await _best(conn, event)}
    since = now - OVERLAP
    rows = await _completed(conn, watch, event, since)
    return {"since": since.isoformat(), "seen": [_name(row) for row in rows]}


async def _experiment_ends(
    conn: AsyncConnection,
    watch: EventWatch,
    event: ExperimentEnds,
    mark: Mark,
    now: datetime.datetime,
) -> Found:
    if event.best:
        best = await _best(conn, event)
        if best is None or best == mark["best"]:
            return None
        return f"experiment {event.id} has a new best checkpoint, {best}", {"best": best}
    since = datetime.datetime.fromisoformat(mark["since"])
    rows = await _completed(conn, watch, event, since)
    seen = set(mark["seen"])
    fresh = [row for row in rows if _name(row) not in seen]
    if not fresh:
        return None
    last = fresh[-1]
    more = f" and {len(fresh) - 1} before it" if len(fresh) > 1 else ""
    after = last.end_time - OVERLAP
    kept = [_name(row) for row in rows if row.end_time >= after]
    return f"experiment {last.id} has completed{more}", {"since": after.isoformat(), "seen": kept}


async def _best(conn: AsyncConnection, event: ExperimentEnds) -> str | None:
    assert event.id is not None
    least = await conn.scalar(
        sa.select(e.config["searcher"]["smaller_is_better"].astext).where(e.id == event.id)
    )
    metric = trials.c.searcher_metric_value
    found = await conn.execute(
        sa.select(trials.c.id)
        .where(trials.c.experiment_id == event.id, metric.is_not(None))
        # As the indexes have it: the experiment may have a hundred thousand trials.
        .order_by(-metric if least == "false" else metric, trials.c.id)
        .limit(BEST_OF)
    )
    best = await best_checkpoint(conn, list(found.scalars()))
    return None if best is None else str(best)


def _name(row: sa.Row[Any]) -> str:
    """An experiment that is continued may complete again."""
    return f"{row.id} {row.end_time.isoformat()}"


async def _completed(
    conn: AsyncConnection, watch: EventWatch, event: ExperimentEnds, since: datetime.datetime
) -> list[sa.Row[Any]]:
    """Those that have completed since then, the last one last; not the watcher's own ones."""
    if event.id is not None:
        which = e.id == event.id
    elif event.label is not None:
        which = sa.and_(e.owner_id == watch.owner_id, e.labels.contains([event.label]))
    else:
        which = sa.and_(e.owner_id == watch.owner_id, e.name == event.name)
    found = await conn.execute(
        sa.select(e.id, e.end_time)
        .where(which, e.state == states.COMPLETED, e.end_time > since, ~watch.own)
        .order_by(e.end_time.desc(), e.id.desc())
        .limit(1_000)
    )
    return list(reversed(found.all()))


_FIRST: dict[type, Callable[..., Awaitable[Mark]]] = {
    NewData: _first_look,
    LiveMetric: _no_value,
    AliasMoves: _last_move,
    ExperimentEnds: _last_end,
}
_LOOK: dict[type, Callable[..., Awaitable[Found]]] = {
    NewData: _look,
    LiveMetric: _live_metric,
    AliasMoves: _alias_moves,
    ExperimentEnds: _experiment_ends,
}
