"""Accounting: who used which slots, when; as JSON, and as CSV where Determined's `det` asks for it."""

# Parameters are named as in the API; Determined's `det` writes them with underscores.
# ruff: noqa: N803
from __future__ import annotations

import csv
import datetime
import io
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query
from starlette.responses import Response

from determined.common.printable import FORMULAS
from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.access.dependencies import ClusterReader
from determined_service.base.checks import check_time
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest
from determined_service.base.json import JsonResponse
from determined_service.base.streams import Stream
from determined_service.views import usage
from determined_service.views.usage import Unit
from determined_service.views.values import moment
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Cluster")

PERIODS: dict[str, Unit] = {
    "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY": "day",
    "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_MONTHLY": "month",
}
KINDS = {
    "username": "byUsername",
    "experiment_label": "byExperimentLabel",
    "resource_pool": "byResourcePool",
    "agent": "byAgentLabel",
}
"""Aggregations, and Determined's names of them in JSON."""

Time = Annotated[str, Query(description="RFC 3339, or a date: midnight, UTC.", max_length=100)]
Day = Annotated[str, Query(description="YYYY-MM-DD; of months also YYYY-MM.", max_length=100)]
Period = Annotated[str, Query(description=" or ".join(PERIODS), max_length=100)]


def time_range(after: str, before: str) -> tuple[datetime.datetime, datetime.datetime]:
    """The two times of a request for allocations. Raises BadRequest."""
    begin, end = _time(after, "timestampAfter"), _time(before, "timestampBefore")
    if end < begin:
        raise BadRequest(
            f"timestampBefore: {before} is before timestampAfter, {after}: exchange the two"
        )
    if end - begin > datetime.timedelta(days=limits.USAGE_DAYS):
        raise BadRequest(
            f"timestampBefore: {(end - begin).days} days after timestampAfter, at most {limits.USAGE_DAYS}"
            " are allowed: ask for shorter times one after the other"
        )
    return begin, end


def _time(text: str, name: str) -> datetime.datetime:
    try:
        # A plus in an address that was not encoded is a blank.
        found = datetime.datetime.fromisoformat(
            text.strip().replace(" ", "+" if "T" in text else " ")
        )
        found = found.replace(tzinfo=datetime.UTC) if found.tzinfo is None else found
        return check_time(found, name).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise BadRequest(
            f"{name}: expected a time such as 2026-01-31T00:00:00Z, or a date, found {show(text)}"
        ) from None


def day_range(first: str, last: str, unit: Unit) -> tuple[datetime.date, datetime.date]:
    """The first day, and the one after the last, of a request for sums; whole months if these are asked for.

    Raises BadRequest.
    """
    begin, end = _day(first, "startDate", unit), _day(last, "endDate", unit)
    if end < begin:
        raise BadRequest(f"endDate: {last} is before startDate, {first}: exchange the two")
    most = limits.USAGE_DAYS if unit == "day" else limits.USAGE_MONTHS
    months = (end.year - begin.year) * 12 + end.month - begin.month
    count = (end - begin).days + 1 if unit == "day" else months + 1
    if count > most:
        raise BadRequest(
            f"endDate: {count} {unit}s from startDate on, at most {most} are allowed: ask for fewer"
            + (", or for months" if unit == "day" else "")
        )
    return begin, _next(end, unit)


def _next(day: datetime.date, unit: Unit) -> datetime.date:
    if unit == "day":
        return day + datetime.timedelta(days=1)
    return (day.replace(day=1) + datetime.timedelta(days=31)).replace(day=1)


def _day(text: str, name: str, unit: Unit) -> datetime.date:
    given = text.strip()
    try:
        found = datetime.date.fromisoformat(f"{given}-01" if len(given) == 7 else given)
        if len(given) == 7 and unit == "day":
            raise ValueError
        check_time(datetime.datetime.combine(found, datetime.time()), name)
    except ValueError:
        what = "a date such as 2026-01-31" if unit == "day" else "a month such as 2026-01"
        raise BadRequest(f"{name}: expected {what}, found {show(text)}") from None
    return found.replace(day=1) if unit == "month" else found


def _unit(period: str) -> Unit:
    if period not in PERIODS:
        raise BadRequest(f"period: expected {' or '.join(PERIODS)}, found {show(period)}")
    return PERIODS[period]


def _given(name: str, camel: str, snake: str) -> str:
    if not (camel or snake):
        raise BadRequest(f"{name}: it is missing; give a time or a date")
    return camel or snake


async def _pages(
    db: Database, begin: datetime.datetime, end: datetime.datetime
) -> AsyncIterator[list[sa.Row[Any]]]:
    last = None
    while True:
        async with db.tx() as conn:
            rows = await usage.page(conn, begin, end, last)
        yield rows
        if len(rows) < usage.PAGE:
            return
        last = rows[-1]


def _entry(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "startTime": moment(row.began),
        "endTime": moment(row.ended),
        "experimentId": row.experiment_id,
        "userId": row.user_id,
        "username": row.username,
        "labels": row.labels,
        "seconds": row.seconds,
        "slots": row.slots,
        "allocationId": row.id,
        "resourcePool": row.resource_pool,
        "agents": row.agents,
    }


@router.get("/api/v1/resources/allocation/raw")
async def raw(
    user: ClusterReader,
    db: Db,
    timestampAfter: Time = "",
    timestampBefore: Time = "",
    timestamp_after: Time = "",
    timestamp_before: Time = "",
) -> Response:
    """The allocations that used slots between the two times, by their begin. `seconds` are those between the
    two times. 400 for more than a hundred thousand, which only the CSV can hold."""
    begin, end = time_range(
        _given("timestampAfter", timestampAfter, timestamp_after),
        _given("timestampBefore", timestampBefore, timestamp_before),
    )
    found: list[dict[str, Any]] = []
    async for rows in _pages(db, begin, end):
        found += [_entry(row) for row in rows]
        if len(found) > limits.USAGE_ENTRIES:
            raise BadRequest(
                f"more than {limits.USAGE_ENTRIES} allocations: ask for a shorter time, or for CSV at"
                " /resources/allocation/raw"
            )
    return JsonResponse({"resourceEntries": found})


@router.get("/api/v1/resources/allocation/aggregated")
async def aggregated(
    user: ClusterReader,
    db: Db,
    startDate: Day = "",
    endDate: Day = "",
    start_date: Day = "",
    end_date: Day = "",
    period: Period = "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY",
) -> Response:
    """Seconds of slots by day or month (UTC), in total and by user, label, pool and agent. Both dates
    are included."""
    unit = _unit(period)
    begin, end = day_range(
        _given("startDate", startDate, start_date), _given("endDate", endDate, end_date), unit
    )
    entries: dict[datetime.date, dict[str, Any]] = {}
    day = begin
    while day < end:
        entries[day] = {
            "period": period,
            "periodStart": _name(day, unit),
            "seconds": 0.0,
            **{name: {} for name in KINDS.values()},
        }
        day = _next(day, unit)
    async with db.tx() as conn:
        for row in await usage.sums(conn, begin, end, unit):
            if row.type == "total":
                entries[row.period]["seconds"] = row.seconds
            else:
                entries[row.period][KINDS[row.type]][row.key] = row.seconds
    return JsonResponse({"resourceEntries": list(entries.values())})


def _name(day: datetime.date, unit: Unit) -> str:
    return day.isoformat() if unit == "day" else day.isoformat()[:7]


def _cell(value: Any) -> Any:
    """Text that a spreadsheet shows and does not run."""
    if isinstance(value, str) and value.startswith(FORMULAS):
        return f"'{value}"
    return "" if value is None else value


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Lines of CSV; a text that a spreadsheet would take for a formula gets ``'`` in front."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return out.getvalue()


Columns = dict[str, Callable[[sa.Row[Any]], Any]]

_COMMON: Columns = {
    "username": lambda row: row.username,
    "labels": lambda row: ",".join(row.labels),
    "slots": lambda row: row.slots,
    "start_time": lambda row: moment(row.began),
    "end_time": lambda row: moment(row.ended),
    "seconds": lambda row: row.seconds,
}
_PLACE: Columns = {
    "resource_pool": lambda row: row.resource_pool,
    "agents": lambda row: ",".join(sorted(row.agents)),
}
RAW: Columns = {
    "experiment_id": lambda row: row.experiment_id,
    "kind": lambda row: row.kind,
    **_COMMON,
    **_PLACE,
}
ALLOCATIONS: Columns = {
    "allocation_id": lambda row: row.id,
    "task_type": lambda row: row.kind,
    "workspace_name": lambda row: row.workspace_name,
    "experiment_id": lambda row: row.experiment_id,
    **_COMMON,
    "slot_hours": lambda row: row.slots * row.seconds / 3600,
    **_PLACE,
}
SUMS = ("aggregation_type", "aggregation_key", "date", "seconds")


async def _lines(
    columns: Columns, first: list[sa.Row[Any]], rest: AsyncIterator[list[sa.Row[Any]]]
) -> AsyncIterator[str]:
    yield csv_text([list(columns), *([cell(row) for cell in columns.values()] for row in first)])
    async for rows in rest:
        yield csv_text([cell(row) for cell in columns.values()] for row in rows)


async def _csv(db: Database, columns: Columns, after: str, before: str) -> Response:
    begin, end = time_range(
        _given("timestamp_after", after, ""), _given("timestamp_before", before, "")
    )
    rest = _pages(db, begin, end)
    # A database that does not answer is said with a status; later only the connection can break off.
    first = await anext(rest)
    return Stream(_lines(columns, first, rest), media_type="text/csv")


@router.get("/resources/allocation/raw")
async def raw_csv(
    user: ClusterReader, db: Db, timestamp_after: Time = "", timestamp_before: Time = ""
) -> Response:
    """As JSON under `/api/v1`, in lines of CSV as they are read."""
    return await _csv(db, RAW, timestamp_after, timestamp_before)


@router.get("/resources/allocation/allocations-csv")
async def allocations_csv(
    user: ClusterReader, db: Db, timestamp_after: Time = "", timestamp_before: Time = ""
) -> Response:
    """The same with the ids of allocations, their workspace (as it is called now) and hours of slots."""
    return await _csv(db, ALLOCATIONS, timestamp_after, timestamp_before)


@router.get("/resources/allocation/aggregated")
async def aggregated_csv(
    user: ClusterReader,
    db: Db,
    start_date: Day = "",
    end_date: Day = "",
    period: Period = "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_DAILY",
) -> Response:
    """As JSON under `/api/v1`, in CSV; days without use have no line."""
    unit = _unit(period)
    begin, end = day_range(
        _given("start_date", start_date, ""), _given("end_date", end_date, ""), unit
    )
    async with db.tx() as conn:
        rows = await usage.sums(conn, begin, end, unit)
    found = [(row.type, row.key, _name(row.period, unit), row.seconds) for row in rows]
    return Response(csv_text([SUMS, *found]), media_type="text/csv")
