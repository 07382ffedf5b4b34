"""Logs of tasks, trials and experiments: a window of lines at a time, filtered by REST."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import orjson
from fastapi import Depends, Query, Request
from starlette.responses import Response

from determined_service.base import topics
from determined_service.base.bounds import BigCount, BigId, Id, Name, Pattern
from determined_service.base.errors import NotFound
from determined_service.base.pages import FRONT_HOME
from determined_service.front import ansi, experiment, trial
from determined_service.front.passage import Passage
from determined_service.front.rendering import PageRouter, page
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

LINES = 200
"""Lines of one page."""
LINE_BYTES = 2000
"""Of a longer line a page shows the beginning, and a link to all of it."""
LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
STREAMS = ("stdout", "stderr")
TRIALS = 100
"""Trials of an experiment among which a reader chooses without typing a number."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader filters by, all of it in the address; and which window is shown.

    Attributes:
        level: lines of this level, and of worse ones.
        rank: a number; -1: lines of no rank; empty: all.
        since, until: moments in ISO 8601, UTC unless they name a zone.
        before, after: ids of lines beside which the window is. line: the id of a line in its middle.
    """

    text: str
    regex: bool
    level: str
    rank: str
    stream: str
    agent: str
    since: str
    until: str
    before: int | None
    after: int | None
    line: int | None

    @property
    def is_end(self) -> bool:
        """The window is the end of the log, which grows."""
        return self.before is None and self.after is None and self.line is None

    def filters(self) -> dict[str, Any]:
        """The filters as REST's parameters."""
        levels = LEVELS[LEVELS.index(self.level) :] if self.level in LEVELS else ()
        found = {
            "searchText": self.text,
            "enableRegex": "true" if self.regex and self.text else "",
            "levels": levels,
            "rankIds": self.rank,
            "stdtypes": self.stream,
            "agentIds": self.agent,
            "timestampAfter": self.since,
            "timestampBefore": self.until,
        }
        return {name: value for name, value in found.items() if value}

    def query(self, **window: int) -> str:
        """The address' parameters with this window, or with none: the end."""
        given = {
            "text": self.text,
            "regex": "true" if self.regex else "",
            "level": self.level,
            "rank": self.rank,
            "stream": self.stream,
            "agent": self.agent,
            "since": self.since,
            "until": self.until,
        }
        return urlencode({name: value for name, value in given.items() if value} | window)


async def _read_wanted(
    text: Pattern = "",
    regex: bool = False,
    level: Name = "",
    rank: Annotated[str, Query(pattern="^(|-1|[0-9]{1,9})$")] = "",
    stream: Name = "",
    agent: Name = "",
    since: Name = "",
    until: Name = "",
    before: BigId | None = None,
    after: BigId | None = None,
    line: BigCount | None = None,
) -> Wanted:
    return Wanted(text, regex, level, rank, stream, agent, since, until, before, after, line)


WantedLines = Annotated[Wanted, Depends(_read_wanted)]


@dataclass(frozen=True, slots=True)
class Window:
    """Lines in the order of storing. ``earlier``, ``later``: there may be more on that side."""

    lines: list[dict[str, Any]]
    earlier: bool
    later: bool


async def window(visit: Visit, rest: str, wanted: Wanted) -> Window:
    """The lines to show of the log at ``rest``. Raises ApiError."""

    async def ask(limit: int, *, backwards: bool, **ids: int) -> list[dict[str, Any]]:
        order = "ORDER_BY_DESC" if backwards else "ORDER_BY_ASC"
        parameters = {
            **wanted.filters(),
            **ids,
            "limit": limit + 1,
            "orderBy": order,
            "lineBytes": LINE_BYTES,
        }
        return await visit.lines(rest, list(_pairs(parameters)))

    if wanted.line is not None:
        half = LINES // 2
        newer, older = await asyncio.gather(
            ask(half, backwards=False, afterId=wanted.line - 1),
            ask(half, backwards=True, beforeId=wanted.line),
        )
        lines = [*reversed(older[:half]), *newer[:half]]
        return Window(_shown(lines), len(older) > half, len(newer) > half)
    if wanted.after is not None:
        found = await ask(LINES, backwards=False, afterId=wanted.after)
        return Window(_shown(found[:LINES]), True, len(found) > LINES)
    before = {} if wanted.before is None else {"beforeId": wanted.before}
    found = await ask(LINES, backwards=True, **before)
    return Window(_shown(found[:LINES][::-1]), len(found) > LINES, wanted.before is not None)


def _pairs(parameters: Mapping[str, Any]) -> Any:
    for name, value in parameters.items():
        for one in value if isinstance(value, tuple) else (value,):
            yield name, one


def _shown(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "id": int(line["id"]),
            "time": line["timestamp"],
            "level": line["level"].removeprefix("LOG_LEVEL_"),
            "rank": line["rankId"],
            "agent": line["agentId"],
            "stream": line["stdtype"],
            "source": line["source"],
            "bytes": line.get("bytes", 0),
            "pieces": ansi.pieces(line["log"].rstrip("\r\n")),
        }
        for line in lines
    ]


async def _shown_log(
    visit: Visit, rest: str, wanted: Wanted, base: str, **extra: Any
) -> dict[str, Any]:
    """What the template ``log.html`` reads. ``base``: the address of this log's page."""
    found = await window(visit, rest, wanted)

    def address(**ids: int) -> str:
        query = wanted.query(**{**extra, **ids})
        return f"{base}?{query}" if query else base

    return {
        "log": found,
        "wanted": wanted,
        "address": address,
        "log_base": base,
        "rest_base": f"{FRONT_HOME}{rest}",
        "without_filters": f"{base}?{urlencode(extra)}" if extra else base,
        "kept": extra,
        "levels": LEVELS,
        "streams": STREAMS,
    }


@router.get("/trials/{trial_id}/logs", include_in_schema=False)
async def of_trial(request: Request, visit: Visitor, trial_id: Id, wanted: WantedLines) -> Response:
    """The log of all legs of a trial."""
    shown, log = await asyncio.gather(
        trial.head(visit, trial_id, tab="logs"),
        _shown_log(
            visit, f"/trials/{trial_id}/logs", wanted, f"{FRONT_HOME}/trials/{trial_id}/logs"
        ),
    )
    shown["live"] = _live(shown["trial"], wanted)
    shown["command"] = f"det trial logs {trial_id}"
    return page("trial_logs", request, visit, **shown, **log)


def _live(found: dict[str, Any], wanted: Wanted) -> str:
    """The topics of a window that grows: what the trial's last task prints, and its state."""
    if found.get("endTime") or not wanted.is_end:
        return ""
    return f"{topics.trial(found['id'])} {topics.logs(found['taskId'])}"


@router.get("/experiments/{experiment_id}/logs", include_in_schema=False)
async def of_experiment(
    request: Request,
    visit: Visitor,
    experiment_id: Id,
    wanted: WantedLines,
    trial_id: Annotated[Id | None, Query(alias="trial")] = None,
) -> Response:
    """The log of one of an experiment's trials; if none is chosen, of one that failed, else of the newest."""
    shown, trials = await asyncio.gather(
        experiment.head(visit, experiment_id),
        visit.get(
            f"/experiments/{experiment_id}/trials",
            {"sortBy": "SORT_BY_ID", "orderBy": "ORDER_BY_DESC", "limit": TRIALS},
        ),
    )
    some = trials["trials"]
    if trial_id is None and some:
        failed = (one for one in some if one["state"] == "STATE_ERROR")
        trial_id = next(failed, some[0])["id"]
    chosen, log = None, {}
    if trial_id is not None:
        chosen = next((one for one in some if one["id"] == trial_id), None)
        if chosen is None:
            chosen = (await visit.get(f"/trials/{trial_id}"))["trial"]
        if chosen["experimentId"] != experiment_id:
            raise NotFound(
                f"trial {trial_id} belongs to experiment {chosen['experimentId']}, not to {experiment_id}"
            )
        base = f"{FRONT_HOME}/experiments/{experiment_id}/logs"
        log = await _shown_log(visit, f"/trials/{trial_id}/logs", wanted, base, trial=trial_id)
        shown["live"] = _live(chosen, wanted)
    shown["command"] = "" if trial_id is None else f"det trial logs {trial_id}"
    return page(
        "logs_of_experiment",
        request,
        visit,
        tab="logs",
        trials=some,
        count=trials["pagination"]["total"],
        chosen=chosen,
        **shown,
        **log,
    )


@router.get("/tasks/{task_id}/logs", include_in_schema=False)
async def of_task(request: Request, visit: Visitor, task_id: Name, wanted: WantedLines) -> Response:
    """The log of a command, notebook, shell, TensorBoard or any other task."""
    rest = f"/tasks/{quote(task_id, safe='')}"
    base = f"{FRONT_HOME}{rest}/logs"
    task, log = await asyncio.gather(
        visit.maybe(rest), _shown_log(visit, f"{rest}/logs", wanted, base)
    )
    found = None if task is None else task["task"]
    goes_on = found is not None and not found.get("endTime") and wanted.is_end
    return page(
        "task_logs",
        request,
        visit,
        live=f"{topics.logs(task_id)} {topics.task(task_id)}" if goes_on else "",
        command=f"det task logs {task_id}",
        task=found,
        task_id=task_id,
        **log,
    )


@router.get("/trials/{trial_id}/logs/download", include_in_schema=False)
async def download_of_trial(visit: Visitor, trial_id: Id, wanted: WantedLines) -> Response:
    """Every line that the filters find, as text."""
    return _download(visit, f"/trials/{trial_id}/logs", wanted, f"trial-{trial_id}.log")


@router.get("/tasks/{task_id}/logs/download", include_in_schema=False)
async def download_of_task(visit: Visitor, task_id: Name, wanted: WantedLines) -> Response:
    """Every line that the filters find, as text."""
    name = "".join(
        one if one.isascii() and (one.isalnum() or one in "-.") else "_" for one in task_id
    )
    return _download(visit, f"/tasks/{task_id}/logs", wanted, f"task-{name}.log")


def _download(visit: Visit, rest: str, wanted: Wanted, name: str) -> Response:
    parameters = list(_pairs(wanted.filters()))
    return Passage(visit, f"/api/v1{rest}", parameters, file_name=name, convert=_text)


def _text(lines: bytes) -> bytes:
    """Lines of REST's answer as `det trial logs` prints them; the last one may be why there are no more."""
    found = []
    for line in lines.split(b"\n"):
        if line:
            read = orjson.loads(line)
            if "error" in read:
                found.append(f"error: {read['error'].get('message', 'the log broke off here')}\n")
            else:
                found.append(read["result"]["message"])
    return "".join(found).encode("utf-8", "replace")


@router.get("/trials/{trial_id}/logs/lines/{line_id}", include_in_schema=False)
async def line_of_trial(
    request: Request, visit: Visitor, trial_id: Id, line_id: BigCount
) -> Response:
    """One line, all of it."""
    return await _line(request, visit, f"/trials/{trial_id}/logs", line_id, f"trial {trial_id}")


@router.get("/tasks/{task_id}/logs/lines/{line_id}", include_in_schema=False)
async def line_of_task(
    request: Request, visit: Visitor, task_id: Name, line_id: BigCount
) -> Response:
    """One line, all of it."""
    rest = f"/tasks/{quote(task_id, safe='')}/logs"
    return await _line(request, visit, rest, line_id, f"task {task_id}")


async def _line(request: Request, visit: Visit, rest: str, line_id: int, whose: str) -> Response:
    parameters = {"afterId": line_id - 1, "beforeId": line_id + 1, "limit": 1}
    found = await visit.lines(rest, parameters)
    if not found:
        raise NotFound(f"{whose} has no line {line_id}: its log may have been deleted")
    (line,) = _shown(found)
    back = f"{FRONT_HOME}{rest}?line={line_id}#line-{line_id}"
    return page("log_line", request, visit, line=line, whose=whose, back=back)
