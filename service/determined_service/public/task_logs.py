"""Task logs: in by COPY, out as a page or followed."""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Query, Request
from starlette.responses import Response

from determined.common.wire import paths, serving
from determined.common.wire.serving import Served
from determined_service.access.dependencies import (
    Admission,
    MayNamedUnlessEnded,
    TaskReader,
    TrialReader,
    may_named,
    may_serve,
)
from determined_service.access.looking_again import look_again_for
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import BigCount, BigId, Count, Id, ManyIds, Name, Pattern
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, ndjson_error
from determined_service.base.json import JsonResponse, ndjson
from determined_service.base.streams import Stream
from determined_service.deleting.deletions import task_of_deletion
from determined_service.ingest.logs import (
    LogLines,
    read_lines,
    read_shipped_lines,
    read_upstream_lines,
)
from determined_service.state.change import reader
from determined_service.views.logs import (
    LogFilter,
    check_pattern,
    follow_logs,
    follow_logs_of_trial,
    lines_json,
    log_fields,
    read_logs,
    read_logs_of,
)
from determined_service.views.paging import OrderBy
from determined_service.views.tasks import require_task
from determined_service.views.trials import require_tasks
from determined_service.web.request import json_example, off_loop, raw_body
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf, logs_queue

router = Router("Logs")

NDJSON = "application/x-ndjson"
VERB = "write the logs of"


async def _read(request: Request, read: Callable[[Any], LogLines]) -> LogLines:
    given = await raw_body(request, large=True)
    return await off_loop(request, read, given)


_LINES = {
    "stream": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
    "seq": 0,
    "task_id": "1.2f6c7d2e",
    "allocation_id": "1.2f6c7d2e.1",
    "agent_id": "agent-1",
    "lines": [
        {
            "t": 1795266000.5,
            "stdtype": "stdout",
            "level": "INFO",
            "rank": 0,
            "source": "task",
            "log": "hi\n",
        }
    ],
}
_UPSTREAM_LINES = {"logs": [{"taskId": "1.2f6c7d2e", "log": "hi\n", "level": "LOG_LEVEL_INFO"}]}


@router.post(paths.LOGS, openapi_extra=json_example(_LINES))
async def store_logs(
    request: Request,
    served: Annotated[
        Served | None, may_serve(Kind.ALLOCATION, serving.ALLOCATION, serving.DELETION)
    ],
    db: Db,
) -> Response:
    """Lines of one task's processes.

    Body: `{"stream": uuid, "seq": int, "task_id", "allocation_id", "agent_id", "lines": [{"t": epoch
    seconds, "stdtype", "level", "rank", "source", "log"}]}`. The same (stream, seq) twice is stored
    once; the answer comes after the commit. A supervisor writes the log of its own allocation, until a week
    after the allocation's end: it may have been cut off from the service. A deletion's run writes the log of
    the deletion.
    """
    only: tuple[str, str | None] | None = None
    allocation_id = None
    if served is not None and served.kind == serving.DELETION:
        async with reader(db).connect() as conn:
            only = (await task_of_deletion(conn, int(served.id)), None)
    elif served is not None:
        allocation_id = served.id
        only = (allocation_id.rpartition(".")[0], allocation_id)
    lines = await _read(request, functools.partial(read_lines, only=only))
    return JsonResponse({"stored": await logs_queue(request).submit(lines, allocation_id)})


@router.post("/api/v1/task/logs", openapi_extra=json_example(_UPSTREAM_LINES))
async def post_task_logs(
    request: Request, admission: Annotated[Admission, may_named(Action.REPORT, Kind.TASK, VERB)]
) -> Response:
    """Lines as Determined's own harness sends them (`v1TaskLog`)."""
    await _hand_in(request, admission, await _read(request, read_upstream_lines))
    return JsonResponse({})


_unless_ended = Depends(MayNamedUnlessEnded(Action.REPORT, Kind.TASK, VERB))


@router.post("/task-logs", openapi_extra=json_example([{"task_id": "1.2f6c7d2e", "log": "hi\n"}]))
async def post_shipped_logs(
    request: Request, admission: Annotated[Admission | None, _unless_ended]
) -> Response:
    """Lines of unmanaged trials as Determined's own client sends them.

    Lines of an earlier run are accepted but dropped: after a refusal that client stops reading the output
    of its script, and the script would hang for ever.
    """
    if admission is not None:
        await _hand_in(request, admission, await _read(request, read_shipped_lines))
    return JsonResponse({})


async def _hand_in(request: Request, admission: Admission, lines: LogLines) -> None:
    if lines.tasks:
        await admission.admit(*lines.tasks)
        await logs_queue(request).submit(lines)


Texts = Annotated[list[str], Query(default_factory=list)]


LineBytes = Annotated[
    Count,
    Query(
        description="Of each line so many bytes; `bytes` is the size of a line that is cut. 0: all."
    ),
]


def log_filter(
    allocationIds: Texts,
    agentIds: Texts,
    containerIds: Texts,
    rankIds: Annotated[ManyIds, Query(default_factory=list)],
    levels: Texts,
    stdtypes: Texts,
    sources: Texts,
    timestampBefore: Name | None = None,
    timestampAfter: Name | None = None,
    searchText: Pattern | None = None,
    enableRegex: bool = False,
    beforeId: Annotated[
        BigId | None, Query(description="Only lines stored before this one.")
    ] = None,
    afterId: Annotated[BigId | None, Query(description="Only lines stored after this one.")] = None,
    lineBytes: LineBytes = 0,
) -> LogFilter:
    """Filters for lines; each list holds alternatives. The rank -1 finds lines of no rank."""
    return LogFilter.read(
        allocation_ids=allocationIds,
        agent_ids=agentIds,
        container_ids=containerIds,
        rank_ids=rankIds,
        levels=levels,
        stdtypes=stdtypes,
        sources=sources,
        before=timestampBefore,
        after=timestampAfter,
        text=searchText,
        regex=enableRegex,
        before_id=beforeId,
        after_id=afterId,
        line_bytes=lineBytes,
    )


Filter = Annotated[LogFilter, Depends(log_filter)]
LineLimit = Annotated[BigCount, Query(description="The most lines to return; 0: all.")]


async def _lines(
    db: Database, rows: AsyncIterator[list[sa.Row[Any]]], trial_id: Id | None = None
) -> AsyncIterator[bytes]:
    try:
        async for chunk in rows:
            async with db.answers.hold(sum(len(row.log) for row in chunk)):
                async for piece in db.answers.made(lines_json(chunk, trial_id)):
                    yield piece
    except ApiError as error:
        # The answer has begun; its last line is how it can still fail.
        yield ndjson_error(error)


@router.get("/api/v1/tasks/{task_id}/logs")
async def read_task_logs(
    task_id: str,
    user: TaskReader,
    request: Request,
    db: Db,
    hub: HubOf,
    wanted: Filter,
    limit: LineLimit = 0,
    follow: bool = False,
    orderBy: OrderBy = "ORDER_BY_ASC",
) -> Response:
    """Lines of a task, each as `{"result": …}`.

    With `follow` the answer goes on until the task has ended. The last n lines: `limit=n` and
    `orderBy=ORDER_BY_DESC` (newest first).
    """
    async with db.tx() as conn:
        await require_task(conn, task_id)
    await check_pattern(db, wanted)
    descending = orderBy == "ORDER_BY_DESC"
    rows = (
        follow_logs(db, hub, task_id, wanted, limit=limit, look_again=look_again_for(request, user))
        if follow
        else read_logs(db, task_id, wanted, limit=limit, descending=descending)
    )
    return Stream(_lines(db, rows), media_type=NDJSON)


@router.get("/api/v1/trials/{trial_id}/logs")
async def read_trial_logs(
    trial_id: Id,
    user: TrialReader,
    request: Request,
    db: Db,
    hub: HubOf,
    wanted: Filter,
    limit: LineLimit = 0,
    follow: bool = False,
    orderBy: OrderBy = "ORDER_BY_ASC",
) -> Response:
    """Lines of all legs of a trial, task by task; see the logs of a task."""
    async with db.tx() as conn:
        tasks = await require_tasks(conn, trial_id)
    await check_pattern(db, wanted)
    descending = orderBy == "ORDER_BY_DESC"
    rows = (
        follow_logs_of_trial(
            db, hub, trial_id, wanted, limit=limit, look_again=look_again_for(request, user)
        )
        if follow
        else read_logs_of(db, tasks, wanted, limit=limit, descending=descending)
    )
    return Stream(_lines(db, rows, trial_id), media_type=NDJSON)


@router.get("/api/v1/tasks/{task_id}/logs/fields")
async def read_task_log_fields(task_id: str, user: TaskReader, db: Db) -> Response:
    """The values to which the filters can be set, one line of `{"result": …}`."""
    async with db.tx() as conn:
        await require_task(conn, task_id)
        found = await log_fields(conn, task_id)
    return Response(ndjson(found), media_type=NDJSON)


@router.get("/api/v1/trials/{trial_id}/logs/fields")
async def read_trial_log_fields(trial_id: Id, user: TrialReader, db: Db) -> Response:
    """The values to which the filters can be set, one line of `{"result": …}`."""
    async with db.tx() as conn:
        found = await log_fields(conn, *await require_tasks(conn, trial_id))
    return Response(ndjson(found), media_type=NDJSON)
