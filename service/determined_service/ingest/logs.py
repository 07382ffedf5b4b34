"""Task logs into Postgres: :func:`read_lines`, :func:`read_upstream_lines`, :class:`LogsQueue`."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined.common.wire import limits
from determined.common.wire.checks import show
from determined.common.wire.legs import LogBatch
from determined_service.base import topics
from determined_service.base.checks import check_int, check_text, check_time
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest, Forbidden
from determined_service.base.hub import notify
from determined_service.base.units import MACHINE
from determined_service.ingest.copy_text import NULL, bytea_field, copy_rows, text_field
from determined_service.ingest.group_commit import GroupCommit
from determined_service.ingest.log_policies import LogWatch, PolicyMatches
from determined_service.ingest.log_room import ROW_BYTES, LogRoom
from determined_service.ingest.streams import (
    StreamPosition,
    advance_streams,
    is_repeated,
    lock_streams,
    read_position,
)

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
COLUMNS = "task_id, allocation_id, agent_id, container_id, rank_id, timestamp, level, stdtype, source, log"
OWN_SOURCE = "service"
"""The ``source`` of lines that the service itself adds."""
# Ids of one task's lines become visible in order, so that followers miss none: a second service process waits
# here for the first one's commit.
_LOCK_TASK = sa.text("SELECT pg_advisory_xact_lock(7301, hashtext(:task_id))")


@dataclass(slots=True)
class LogLines:
    """Lines ready for COPY, by the tasks that they belong to, and how much they take there."""

    position: StreamPosition | None = None
    rows: dict[str, list[bytes]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    # The lines as they were printed, by allocation: for the log policies.
    by_allocation: dict[str, list[str]] = field(default_factory=dict)
    # By allocation, the agent that claims to have written the last lines.
    agents: dict[str, str] = field(default_factory=dict)
    # The same, the node of a gang.
    nodes: dict[str, int] = field(default_factory=dict)
    # The same, the machine, where the agent stands for several.
    machines: dict[str, str] = field(default_factory=dict)
    matches: PolicyMatches = field(default_factory=PolicyMatches)

    @property
    def tasks(self) -> Collection[str]:
        """Those to which the lines belong."""
        return self.rows.keys()

    def add(
        self,
        *,
        task_id: str,
        log: str,
        time: datetime.datetime,
        allocation_id: str | None = None,
        agent_id: str | None = None,
        node: int | None = None,
        machine: str | None = None,
        container_id: str | None = None,
        rank: int | None = None,
        level: str | None = None,
        stdtype: str | None = None,
        source: str | None = None,
    ) -> None:
        """Adds one line as it was printed, its newline included. Raises BadRequest."""
        check_text(task_id, "task_id")
        for path, text in (
            ("allocation_id", allocation_id),
            ("agent_id", agent_id),
            ("container_id", container_id),
            ("stdtype", stdtype),
            ("source", source),
        ):
            if text is not None:
                check_text(text, path)
        if rank is not None:
            check_int(rank, "rank", least=-limits.INT32 - 1, most=limits.INT32)
        check_time(time, "the time of a line")
        # A sender may write the log of its task, and sets off the log policies of that task's allocations
        # only.
        if allocation_id is not None and allocation_id.rpartition(".")[0] == task_id:
            self.by_allocation.setdefault(allocation_id, []).append(log)
            if agent_id is not None:
                self.agents[allocation_id] = agent_id
            if node is not None:
                check_int(node, "node", least=0, most=limits.INT32)
                self.nodes[allocation_id] = node
            if machine is not None:
                check_text(machine, "machine")
                if not MACHINE.fullmatch(machine):
                    raise BadRequest(f"machine: {show(machine)} is not a machine's name")
                self.machines[allocation_id] = machine
        printed = log.encode("utf-8", "backslashreplace")
        row = (
            b"\t".join(
                (
                    text_field(task_id),
                    text_field(allocation_id),
                    text_field(agent_id),
                    text_field(container_id),
                    NULL if rank is None else b"%d" % rank,
                    time.isoformat().encode(),
                    text_field(level if level in LEVELS else None),
                    text_field(stdtype),
                    text_field(source),
                    bytea_field(printed),
                )
            )
            + b"\n"
        )
        self.rows.setdefault(task_id, []).append(row)
        # In the row each byte that was printed has two characters.
        size = len(row) - len(printed) + ROW_BYTES
        self.sizes[task_id] = self.sizes.get(task_id, 0) + size


def read_lines(body: LogBatch, only: tuple[str, str | None] | None = None) -> LogLines:
    """Read the lines that a supervisor, or the run of a deletion, sends. Raises BadRequest, Forbidden.

    ``only``: the task, and the allocation, if any, for which the sender may write; None: for all.
    """
    try:
        lines = LogLines(read_position(body))
        if only is not None and (body["task_id"], body.get("allocation_id")) != only:
            whose = f"task {only[0]}" if only[1] is None else f"allocation {only[1]}"
            raise Forbidden(f"this token writes the log of {whose} alone")
        for line in body["lines"]:
            lines.add(
                task_id=body["task_id"],
                allocation_id=body.get("allocation_id"),
                agent_id=body.get("agent_id"),
                node=body.get("node"),
                machine=body.get("machine"),
                log=line["log"],
                time=datetime.datetime.fromtimestamp(line["t"], datetime.UTC),
                rank=line.get("rank"),
                level=line.get("level"),
                stdtype=line.get("stdtype"),
                source=line.get("source"),
            )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise BadRequest(
            f"invalid log lines: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    return lines


def read_upstream_lines(body: Any) -> LogLines:
    """The body of ``POST /api/v1/task/logs`` (``v1TaskLog``); raises BadRequest."""
    try:
        lines = LogLines(read_position(body))
        for line in body["logs"]:
            time = line.get("timestamp")
            lines.add(
                task_id=line["taskId"],
                allocation_id=line.get("allocationId"),
                agent_id=line.get("agentId"),
                container_id=line.get("containerId"),
                log=line["log"],
                time=datetime.datetime.fromisoformat(time)
                if time
                else datetime.datetime.now(datetime.UTC),
                rank=line.get("rankId"),
                level=str(line.get("level") or "").removeprefix("LOG_LEVEL_"),
                stdtype=line.get("stdtype"),
                source=line.get("source"),
            )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise BadRequest(
            f"invalid log lines: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    return lines


def read_shipped_lines(body: Any) -> LogLines:
    """The body of ``POST /task-logs``: a list of lines, as the scripts of unmanaged experiments send
    them with Determined's own client; raises BadRequest."""
    lines = LogLines()
    try:
        for line in body:
            rank = line.get("rank_id", line.get("rank"))
            lines.add(
                task_id=line["task_id"],
                log=line["log"],
                # Determined's client sends its start time with every line.
                time=datetime.datetime.now(datetime.UTC),
                rank=None if rank is None else int(rank),
                level=line.get("level"),
                stdtype=line.get("stdtype"),
                source=line.get("source"),
            )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise BadRequest(
            f"invalid log lines: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    return lines


async def add_line(
    conn: AsyncConnection, task_id: str, allocation_id: str | None, text: str, level: str = "ERROR"
) -> None:
    """Adds a line of the service's own (``text``, without its newline) to a task's log.

    No log policy looks at it, and it counts for no quota.
    """
    lines = LogLines()
    lines.add(
        task_id=task_id,
        allocation_id=allocation_id,
        log=text + "\n",
        time=datetime.datetime.now(datetime.UTC),
        level=level,
        source=OWN_SOURCE,
    )
    await conn.execute(_LOCK_TASK, {"task_id": task_id})
    await copy_rows(conn, f"task_logs ({COLUMNS})", lines.rows[task_id])
    await notify(conn, topics.logs(task_id))


class LogsQueue:
    """Stores lines of many requests in one transaction, and the matches of log policies.

    ``quotas``: those that are in force.
    """

    def __init__(self, db: Database, quotas: Callable[[], Quotas]) -> None:
        self._watch = LogWatch(db)
        write = functools.partial(write_logs, room=LogRoom(quotas))
        # Lines may be a megabyte each: fewer at once than of metrics.
        self._queue = GroupCommit[LogLines](db, write, max_items=64)

    async def submit(self, lines: LogLines, supervisor_of: str | None = None) -> int:
        """The number of lines stored, once they are (0: a repetition, or their owner's logs are full).

        ``supervisor_of``: the allocation whose supervisor sends them. Raises NotFound, Conflict when that
        does not exist any more, or ended too long ago.
        """
        if supervisor_of is not None:
            await self._watch.require_open(supervisor_of)
        lines.matches = await self._watch.look(
            lines.by_allocation, lines.agents, lines.nodes, lines.machines
        )
        return int(await self._queue.submit(lines))

    async def run(self) -> None:
        """Write until cancelled; lines that still wait then are refused as Unavailable."""
        try:
            await self._queue.run()
        finally:
            await self._watch.close()


async def write_logs(
    conn: AsyncConnection, groups: Sequence[LogLines], room: LogRoom
) -> Sequence[int]:
    """Stores ``groups`` as far as there is room, and which log policies matched; answers with the number of
    lines stored of each (0: a repetition, or no room)."""
    last = await lock_streams(conn, [group.position for group in groups])
    after = dict(last)
    new = [group for group in groups if not is_repeated(group.position, after)]
    tasks = sorted({task for group in new for task in group.tasks})
    for task in tasks:
        await conn.execute(_LOCK_TASK, {"task_id": task})
    sizes: dict[str, int] = {}
    for group in new:
        for task, size in group.sizes.items():
            sizes[task] = sizes.get(task, 0) + size
    full, notices = await room.take(conn, sizes) if sizes else (set[str](), {})
    rows = [
        row for group in new for task, of in group.rows.items() if task not in full for row in of
    ]
    if rows:
        await copy_rows(conn, f"task_logs ({COLUMNS})", rows)
    for task, text in notices.items():
        await add_line(conn, task, None, text, "WARNING")
    for group in new:
        await group.matches.store(conn)
        for allocation_id, text in group.matches.notices:
            await add_line(conn, allocation_id.rpartition(".")[0], allocation_id, text, "WARNING")
    await advance_streams(conn, {key: seq for key, seq in after.items() if seq != last[key]})
    await notify(conn, *(topics.logs(task) for task in tasks))
    stored = {id(group) for group in new}
    return [
        sum(len(rows) for task, rows in group.rows.items() if task not in full)
        if id(group) in stored
        else 0
        for group in groups
    ]
