"""Why each request of a job waits, and what has to end first: :func:`explain_job`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.printable import counted
from determined_service.base.aside import Lane
from determined_service.scheduling.forecast import NAMED, Forecast, forecast
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.queue import QueueView
from determined_service.scheduling.reasons import (
    ExcludedEverywhere,
    NoAgent,
    NoneAdmitted,
    TooWide,
    Unplaced,
)
from determined_service.scheduling.scheduler import Waiting
from determined_service.scheduling.wording import in_words
from determined_service.state.nodes import NODES
from determined_service.views.values import moment

EXPLAINED = 100
"""How many requests of a job are explained; the others wait behind these."""

# Dozens of decisions: not in the event loop's thread, and one caller at a time.
_LANE = Lane("forecast")
_ROWS = sa.text(
    """
    SELECT a.id, a.trial_id, a.requested_at, k.kind, k.id AS task_id
    FROM allocations a JOIN tasks k ON k.id = a.task_id WHERE a.id = ANY(:ids)
    """
)


async def explain_job(
    conn: AsyncConnection, seen: QueueView, job: int | str, schedulers: PoolSchedulers
) -> list[dict[str, Any]]:
    """The requests that wait of ``job`` (an experiment's number, a task's id), in the order of service.

    First those that an agent has accepted and cannot start yet. Each has ``allocationId``, ``trialId``,
    ``since``, ``slotsWanted``, ``reason`` in words and, the first one that can be placed some day,
    ``forecast`` in words.
    """
    every = [one for one in seen.decision.waiting if _is_of(one, job)]
    accepted = await _accepted(conn, job)
    if not every:
        return accepted
    mine = every[:EXPLAINED]
    first = next((one for one in mine if not _needs_agents(one)), None)
    found = Forecast()
    if first is not None:
        line = [one.request for one in seen.decision.waiting]
        found = await _LANE.run(forecast, schedulers, seen.snapshot, line, first.request)
    named = {*found.any_of, *found.all_of, *found.stopping}
    ids = [*(one.request.id for one in mine), *named]
    rows = {row.id: row for row in await conn.execute(_ROWS, {"ids": ids})}
    return accepted + [
        {
            "allocationId": one.request.id,
            "trialId": rows[one.request.id].trial_id,
            "since": moment(rows[one.request.id].requested_at),
            "slotsWanted": one.request.slots,
            "reason": in_words(one),
            "forecast": _in_words(found, rows) if one is first else None,
        }
        for one in mine
        if one.request.id in rows
    ]


def first_reasons(seen: QueueView, jobs: Collection[int | str]) -> dict[int | str, str]:
    """Why the first waiting request of each of ``jobs`` waits, in words; without a forecast, which costs
    much."""
    found: dict[int | str, str] = {}
    for one in seen.decision.waiting:
        group = one.request.group
        job = one.request.id.rpartition(".")[0] if group is None else group
        if job in jobs and job not in found:
            found[job] = in_words(one)
    return found


_ACCEPTED = sa.text(
    f"""
    SELECT n.id, n.agent_id, n.waits_for, n.assigned_at, a.trial_id, a.slots
    FROM {NODES} AS n JOIN allocations a ON a.id = n.id
    WHERE n.state = 'ASSIGNED' AND n.waits_for IS NOT NULL
      AND CASE WHEN cast(:experiment_id AS int) IS NULL THEN a.task_id = :task_id
               ELSE a.experiment_id = :experiment_id END
    ORDER BY n.assigned_at, n.id LIMIT {EXPLAINED}
    """
)


async def _accepted(conn: AsyncConnection, job: int | str) -> list[dict[str, Any]]:
    is_task = isinstance(job, str)
    given = {"experiment_id": None if is_task else job, "task_id": job if is_task else None}
    return [
        {
            "allocationId": row.id,
            "trialId": row.trial_id,
            "since": moment(row.assigned_at),
            "slotsWanted": row.slots,
            "reason": f"agent {row.agent_id} cannot start it yet: {row.waits_for}",
            "forecast": None,
        }
        for row in await conn.execute(_ACCEPTED, given)
    ]


def _is_of(one: Waiting, job: int | str) -> bool:
    if isinstance(job, int):
        return one.request.group == job
    return one.request.group is None and one.request.id.rpartition(".")[0] == job


def _in_words(found: Forecast, rows: Mapping[str, sa.Row[Any]]) -> str | None:
    if any(one not in rows for one in (*found.stopping, *found.any_of, *found.all_of)):
        return _without_names(found)

    def named(ids: tuple[str, ...]) -> str:
        return ", ".join(_name(rows[one]) for one in ids if one in rows)

    trials = all(row.trial_id is not None for row in rows.values())
    if found.stopping:
        words = _count(found.count, trials, found.stopping, rows)
        return f"starts when what was asked to stop has ended: {words}"
    if len(found.any_of) == 1:
        return f"starts when {_named(found.any_of, rows)} ends"
    more = f" and {found.count - NAMED} more" if found.count > NAMED else ""
    if found.any_of and trials:
        return f"starts when one of the trials {named(found.any_of)}{more} ends"
    if found.any_of:
        return f"starts when one of these ends: {_named(found.any_of, rows)}{more}"
    if found.all_of:
        words = _count(found.count, trials, found.all_of, rows)
        return f"starts when {words}{more} have ended, if they end in the order in which they began"
    return None


def _without_names(found: Forecast) -> str:
    """The same where some of it is what the reader may not see, or was deleted meanwhile."""
    if found.stopping:
        return "starts when what was asked to stop has ended"
    if found.any_of:
        return f"starts when one of {counted(found.count, 'allocation')} ahead of it ends"
    several = counted(found.count, "allocation")
    return f"starts when {several} ahead of it have ended, if they end in the order in which they began"


def _name(row: sa.Row[Any]) -> str:
    return str(row.task_id if row.trial_id is None else row.trial_id)


def _named(ids: tuple[str, ...], rows: Mapping[str, sa.Row[Any]]) -> str:
    """``trial 3, command 6f0a…``"""
    kinds = ((rows[one].kind.lower(), _name(rows[one])) for one in ids if one in rows)
    return ", ".join(f"{kind} {name}" for kind, name in kinds)


def _count(count: int, trials: bool, ids: tuple[str, ...], rows: Mapping[str, sa.Row[Any]]) -> str:
    if not trials:
        return _named(ids, rows)
    names = ", ".join(_name(rows[one]) for one in ids if one in rows)
    return f"{'trial' if count == 1 else 'trials'} {names}"


def _needs_agents(one: Waiting) -> bool:
    """Whether it could not be placed even if everything ended, or nobody knows what has to end."""
    return isinstance(one.reason, NoAgent | NoneAdmitted | ExcludedEverywhere | TooWide | Unplaced)
