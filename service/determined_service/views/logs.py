"""Task logs: filters, reading, following, the JSON (``v1TaskLogsResponse``)."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_registry.database.tables import task_logs
from determined_service.access.looking_again import LookAgain
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest, Unavailable, of_database
from determined_service.base.hub import Hub, wait_at_most
from determined_service.base.json import one_line_each
from determined_service.state.trial_tasks import task_ids
from determined_service.views.tasks import announced, has_ended, require_task
from determined_service.views.values import parse_time

CHUNK = 1000
STEP_BYTES = 16 * 1024
"""Bytes of log that are written as JSON in one go."""
# Seconds after which an end is noticed that was not announced (a lost connection).
RECHECK_S = 10.0

NO_RANK = -1
"""In a filter by rank: lines of no rank."""

c = task_logs.c
# A line without a level counts as INFO, which is also how it is shown.
_LEVEL = sa.func.coalesce(c.level, "INFO")
# Arbitrary bytes cannot be cast to text; the escape format leaves ASCII as it is.
_TEXT = sa.func.encode(c.log, "escape")
# Postgres writes a time in a fifth of the time that Python needs to read and write it.
_TIME = sa.func.to_char(
    sa.func.timezone("UTC", c.timestamp), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
).label("time")
# Where a line comes from.
_ORIGIN = (
    c.task_id,
    c.level,
    c.allocation_id,
    c.agent_id,
    c.container_id,
    c.rank_id,
    c.stdtype,
    c.source,
)
# Some expressions take time that grows with the power of the line's length.
_PATIENCE = sa.text("SELECT set_config('statement_timeout', :ms, true)")


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A condition on task_logs."""

    clauses: tuple[sa.ColumnElement[bool], ...] = ()
    pattern: str | None = None
    """A regular expression among the clauses, which may take long."""
    line_bytes: int = 0
    """Of each line so many bytes are read; 0: all."""

    @classmethod
    def read(
        cls,
        *,
        allocation_ids: Sequence[str] = (),
        agent_ids: Sequence[str] = (),
        container_ids: Sequence[str] = (),
        rank_ids: Sequence[int] = (),
        levels: Sequence[str] = (),
        stdtypes: Sequence[str] = (),
        sources: Sequence[str] = (),
        before: str | None = None,
        after: str | None = None,
        text: str | None = None,
        regex: bool = False,
        before_id: int | None = None,
        after_id: int | None = None,
        line_bytes: int = 0,
    ) -> Self:
        """From a request's parameters; raises BadRequest."""
        clauses: list[sa.ColumnElement[bool]] = []
        for column, values in (
            (c.allocation_id, allocation_ids),
            (c.agent_id, agent_ids),
            (c.container_id, container_ids),
            (c.stdtype, stdtypes),
            (c.source, sources),
            (_LEVEL, [level.removeprefix("LOG_LEVEL_") for level in levels]),
        ):
            if values:
                clauses.append(column.in_(values))
        if rank_ids:
            ranked = c.rank_id.in_(rank_ids)
            clauses.append(ranked | c.rank_id.is_(None) if NO_RANK in rank_ids else ranked)
        if before:
            clauses.append(c.timestamp < parse_time(before, "timestampBefore"))
        if after:
            clauses.append(c.timestamp > parse_time(after, "timestampAfter"))
        if before_id is not None:
            clauses.append(c.id < before_id)
        if after_id is not None:
            clauses.append(c.id > after_id)
        if text:
            if regex:
                if "\0" in text:
                    raise BadRequest(
                        "searchText: a regular expression cannot hold NUL; write \\000"
                    )
                clauses.append(_TEXT.regexp_match(text))
            else:
                clauses.append(_TEXT.icontains(_escaped(text), autoescape=True))
        return cls(tuple(clauses), text if text and regex else None, line_bytes)


def _escaped(text: str) -> str:
    """``text`` in Postgres' escape format, as ``_TEXT`` is."""
    return "".join(
        f"\\{byte:03o}" if byte == 0 or byte >= 128 else "\\\\" if byte == 92 else chr(byte)
        for byte in text.encode()
    )


async def check_pattern(db: Database, wanted: LogFilter) -> None:
    """Raises BadRequest for a regular expression that Postgres cannot use, or not in a second."""
    if wanted.pattern is None:
        return
    try:
        async with db.tx() as conn:
            await conn.execute(_PATIENCE, {"ms": "1000"})
            await conn.execute(sa.select(sa.literal("").regexp_match(wanted.pattern)))
    except SQLAlchemyError as error:
        raise _not_searched(wanted, error) from error


def _not_searched(wanted: LogFilter, error: SQLAlchemyError) -> Exception:
    refusal = of_database(error)
    if isinstance(refusal, BadRequest) and wanted.pattern is not None:
        why = refusal.message.partition(": ")[2]
        return BadRequest(f"searchText: {show(wanted.pattern)} cannot be searched for: {why}")
    return refusal or error


async def _chunk(
    db: Database, task_id: str, wanted: LogFilter, limit: int, after: int, descending: bool
) -> list[sa.Row[Any]]:
    """At most ``limit`` lines, and no more than one after ``limits.ANSWER_PIECE_BYTES``: lines may be a
    megabyte each."""
    order = c.id.desc() if descending else c.id
    whole = sa.func.octet_length(c.log)
    line: sa.ColumnElement[Any] = c.log
    size: sa.ColumnElement[int] = whole
    cut: sa.ColumnElement[int] = sa.literal(0)
    if wanted.line_bytes:
        line = sa.func.substr(c.log, 1, wanted.line_bytes)
        size = sa.func.least(whole, wanted.line_bytes)
        cut = sa.case((whole > wanted.line_bytes, whole), else_=0)
    before = (sa.func.sum(size).over(order_by=order) - size).label("before")
    shown = (c.id, _TIME, line.label("log"), cut.label("cut"), *_ORIGIN)
    statement = sa.select(*shown, before).where(c.task_id == task_id, *wanted.clauses)
    if not descending:
        statement = statement.where(c.id > after)
    elif after:
        statement = statement.where(c.id < after)
    found = statement.order_by(order).limit(limit).subquery()
    columns = [column for column in found.c if column.name != "before"]
    lines = sa.select(*columns).where(found.c.before < limits.ANSWER_PIECE_BYTES)
    try:
        async with db.tx() as conn:
            if wanted.pattern is not None:
                await conn.execute(_PATIENCE, {"ms": str(round(limits.SEARCH_S * 1000))})
            key = found.c.id.desc() if descending else found.c.id
            return list((await conn.execute(lines.order_by(key))).all())
    except SQLAlchemyError as error:
        raise _not_searched(wanted, error) from error


async def read_logs(
    db: Database,
    task_id: str,
    wanted: LogFilter,
    *,
    limit: int = 0,
    after: int = 0,
    descending: bool = False,
) -> AsyncIterator[list[sa.Row[Any]]]:
    """The lines stored now, in the order of storing (or backwards), at most ``limit`` lines if not 0.

    ``after``: the id of a line; the lines behind it (backwards: before it) are read. 0: all lines.
    """
    left = limit
    while True:
        size = min(CHUNK, left) if limit else CHUNK
        rows = await _chunk(db, task_id, wanted, size, after, descending)
        if not rows:
            return
        yield rows
        after = rows[-1].id
        left -= len(rows)
        if limit and left <= 0:
            return


async def follow_logs(
    db: Database,
    hub: Hub,
    task_id: str,
    wanted: LogFilter,
    *,
    limit: int = 0,
    look_again: LookAgain | None = None,
) -> AsyncIterator[list[sa.Row[Any]]]:
    """The stored lines and then new lines, until the task has ended and all lines were given.

    ``look_again``: what the reader sees, after each wait. Raises NotFound once it does not see the task.
    """
    after = 0
    left = limit
    async with db.tx() as conn:
        awaited = await announced(conn, task_id)
    if look_again is not None:
        awaited = [*awaited, *look_again.topics]
    with hub.subscribe(awaited) as event:
        while True:
            event.clear()
            # Before the rows: rows stored after the end was seen belong to no task.
            async with db.tx() as conn:
                ended = await has_ended(conn, task_id)
            async for rows in read_logs(db, task_id, wanted, limit=left, after=after):
                yield rows
                after = rows[-1].id
                if limit:
                    left -= len(rows)
            if limit and left <= 0:
                return
            if ended:
                return
            if hub.closed:
                raise Unavailable("the service is stopping: follow the log again in a moment")
            await wait_at_most(event, RECHECK_S)
            if look_again is not None:
                await look_again.look()
                async with db.tx() as conn:
                    await require_task(conn, task_id)


async def read_logs_of(
    db: Database,
    task_ids: Sequence[str],
    wanted: LogFilter,
    *,
    limit: int = 0,
    descending: bool = False,
) -> AsyncIterator[list[sa.Row[Any]]]:
    """As :func:`read_logs`, of all ``task_ids``, one after the other (or the last one first)."""
    left = limit
    for task_id in reversed(task_ids) if descending else task_ids:
        async for rows in read_logs(db, task_id, wanted, limit=left, descending=descending):
            yield rows
            if limit:
                left -= len(rows)
        if limit and left <= 0:
            return


async def follow_logs_of_trial(
    db: Database,
    hub: Hub,
    trial_id: int,
    wanted: LogFilter,
    *,
    limit: int = 0,
    look_again: LookAgain | None = None,
) -> AsyncIterator[list[sa.Row[Any]]]:
    """As :func:`follow_logs`, of the trial's tasks one after the other, also one that comes meanwhile."""
    left = limit
    place = 0
    while True:
        async with db.tx() as conn:
            tasks = await task_ids(conn, trial_id)
        if place >= len(tasks):
            return
        one = tasks[place]
        async for rows in follow_logs(db, hub, one, wanted, limit=left, look_again=look_again):
            yield rows
            if limit:
                left -= len(rows)
        if limit and left <= 0:
            return
        place += 1


def lines_json(rows: Sequence[sa.Row[Any]], trial_id: int | None = None) -> Iterator[bytes]:
    """Rows of :func:`read_logs` as NDJSON, each ``{"result": v1TaskLogsResponse}``; with ``trial_id``,
    ``v1TrialLogsResponse``. ``log`` is the line as printed, ``message`` the line to show; ours: ``bytes``,
    the size of a line of which only the beginning is here.

    In steps of about ``STEP_BYTES`` of log, some of which yield nothing yet: bytes that are not UTF-8 take
    0.4 s for each megabyte. An answer may hold a hundred thousand lines, so what neighbouring lines have in
    common is written once.
    """
    origin: tuple[Any, ...] | None = None
    fields, begin = b"", ""
    found: list[bytes] = []
    size = 0
    for id_, time, line, cut, *rest in rows:
        if origin != (now := tuple(rest)):
            origin = now
            fields, begin = _origin_json(*rest, trial_id=trial_id), _prefix(rest)
        head = b'{"result":{"id":"%d","timestamp":"%s","message":' % (id_, time.encode())
        # Milliseconds are enough to read.
        before = f"[{time[:-4]}Z]{begin} || "
        ending = "" if line.endswith(b"\n") else "\n"
        if size + len(line) > STEP_BYTES and found:
            yield one_line_each(b"".join(found))
            found, size = [], 0
        if len(line) > STEP_BYTES:
            yield from _long_line(line, head, before, ending, _bytes_json(cut) + fields)
            continue
        log = line.decode("utf-8", "backslashreplace")
        message = f"{before}{log}{ending}"
        found.append(
            b'%s%s,"log":%s,%s%s}\n'
            % (head, orjson.dumps(message), orjson.dumps(log), _bytes_json(cut), fields)
        )
        size += len(line)
    yield one_line_each(b"".join(found))


def _long_line(
    line: bytes, head: bytes, before: str, ending: str, fields: bytes
) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    escaped: list[bytes] = []
    for begin in range(0, len(line), STEP_BYTES):
        end = begin + STEP_BYTES
        text = decoder.decode(line[begin:end], final=end >= len(line))
        escaped.append(one_line_each(_escaped_json(text)))
        yield b""
    yield b'%s"%s' % (head, _escaped_json(before))
    yield from escaped
    yield b'%s","log":"' % _escaped_json(ending)
    yield from escaped
    yield b'",%s}\n' % fields


def _bytes_json(cut: int | None) -> bytes:
    return b'"bytes":%d,' % cut if cut else b""


def _escaped_json(text: str) -> bytes:
    """The inside of a JSON string."""
    return orjson.dumps(text)[1:-1]


def _origin_json(
    task_id: str,
    level: str | None,
    allocation_id: str | None,
    agent_id: str | None,
    container_id: str | None,
    rank_id: int | None,
    stdtype: str | None,
    source: str | None,
    *,
    trial_id: int | None,
) -> bytes:
    """The other fields, without the brace before them."""
    return orjson.dumps(
        {
            **({"taskId": task_id} if trial_id is None else {"trialId": trial_id}),
            "level": f"LOG_LEVEL_{level or 'INFO'}",
            "allocationId": allocation_id,
            "agentId": agent_id,
            "containerId": container_id,
            "rankId": rank_id,
            "stdtype": stdtype,
            "source": source,
        }
    )[1:]


def _prefix(origin: Sequence[Any]) -> str:
    _, _, _, _, container_id, rank_id, _, _ = origin
    container = f" {container_id[:8]}" if container_id else ""
    return container if rank_id is None else f"{container} [rank={rank_id}]"


async def log_fields(conn: AsyncConnection, *task_ids: str) -> dict[str, Any]:
    """The values that occur, sorted."""

    async def values(column: sa.ColumnElement[Any]) -> list[Any]:
        rows = await conn.execute(
            sa.select(column).where(c.task_id.in_(task_ids), column.is_not(None)).distinct()
        )
        return sorted(rows.scalars())

    return {
        "allocationIds": await values(c.allocation_id),
        "agentIds": await values(c.agent_id),
        "containerIds": await values(c.container_id),
        "rankIds": await values(c.rank_id),
        "stdtypes": await values(c.stdtype),
        "sources": await values(c.source),
    }
