"""``det task``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from determined.cli.arguments.options import Csv, Includes, Json, Overrides, chosen
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.launched import start
from determined.cli.launched.nouns import expanded
from determined.cli.output import format as f
from determined.cli.output import log_lines, render
from determined.cli.output.render import Column, Record
from determined.cli.printing import echo
from determined.cli.state import state

app = group(
    "Tasks of every kind: whatever runs on the cluster, or waits for slots.", default="list"
)

TaskId = Annotated[str, typer.Argument(help="task ID, or the beginning of one", metavar="ID")]
TaskIds = Annotated[
    list[str], typer.Argument(help="task IDs, or the beginnings of some", metavar="ID")
]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="print what it prints until it ends")]
ProjectId = Annotated[
    int | None, typer.Option("--project_id", help="ID of the task's project", metavar="N")
]


def _agents(record: Record) -> Any:
    found = [agent for one in record.get("resources") or () for agent in one["agentDevices"]]
    return ", ".join(found) if found else "unassigned"


def _priority(record: Record) -> Any:
    return record["priority"] if record.get("schedulerType") == "SCHEDULER_TYPE_PRIORITY" else None


TASKS = (
    Column("Task ID", "taskId"),
    Column("Allocation ID", "allocationId", spare=9),
    Column("Name", "name"),
    Column("Slots Needed", "slotsNeeded", spare=4),
    Column("Registered Time", f.field("registeredTime", f.time), spare=7),
    Column("Agent", _agents),
    Column("Priority", _priority, spare=6),
    Column("Resource Pool", "resourcePool", spare=5),
    Column(
        "Ports", lambda record: ", ".join(str(p["port"]) for p in record["proxyPorts"]), spare=3
    ),
)


def _running(ctx: typer.Context) -> dict[str, Any]:
    found = state(ctx).session.get("/api/v1/tasks", params={"limit": 0})
    return dict(found["allocationIdToSummary"])


def _whole(ctx: typer.Context, words: list[str]) -> list[str]:
    """The ids that begin with these words, among the tasks that run and the latest ones."""

    def known() -> list[str]:
        found = state(ctx).session.get("/api/v1/tasks", params={"limit": 1000})
        ids = [one["taskId"] for one in found["allocationIdToSummary"].values()]
        return list(dict.fromkeys([*ids, *(one["taskId"] for one in found["tasks"])]))

    return expanded(words, known, "task")


def _path(task_id: str, action: str = "") -> str:
    return f"/api/v1/tasks/{quote(task_id, safe='')}{action}"


@app.command("list|ls")
def list_tasks(ctx: typer.Context, json: Json = False, csv: Csv = False) -> None:
    """List what runs, and what waits for slots."""
    found = _running(ctx)
    render.show(TASKS, list(found.values()), chosen(json, csv), document=found, what="tasks")


@app.command("logs")
def logs(
    ctx: typer.Context,
    task_id: TaskId,
    follow: log_lines.Follow = False,
    json: log_lines.JsonLines = False,
    head: log_lines.Head = None,
    tail: log_lines.Tail = None,
    agent_id: log_lines.AgentIds = None,
    container_id: log_lines.ContainerIds = None,
    rank_id: log_lines.RankIds = None,
    timestamp_before: log_lines.Before = None,
    timestamp_after: log_lines.After = None,
    level: log_lines.Level = None,
    source: log_lines.Sources = None,
    stdtype: log_lines.Stdtypes = None,
    allocation_id: log_lines.AllocationIds = None,
) -> None:
    """Print the output of a task of any kind."""
    from determined.experimental import _logs as sdk

    filters = log_lines.filters(
        follow,
        head,
        tail,
        agent_id,
        container_id,
        rank_id,
        timestamp_before,
        timestamp_after,
        level,
        source,
        stdtype,
        allocation_id,
    )
    (one,) = _whole(ctx, [task_id])
    log_lines.show(sdk.iter_batches_of_task(state(ctx).session, one, **filters), json)


@app.command("kill")
def kill(
    ctx: typer.Context,
    task_ids: TaskIds,
    root: Annotated[
        bool, typer.Option("--root", help="also the tasks above it, and all that stand under those")
    ] = False,
) -> None:
    """Kill tasks of any kind, and all that stand under them."""
    from determined.common.api import errors

    refused = 0
    for one in _whole(ctx, task_ids):
        try:
            body = {"taskId": one, "killFromRoot": root}
            state(ctx).session.post(_path(one, "/kill"), json=body)
        except (errors.BadRequestException, errors.ForbiddenException) as error:
            refused += 1
            talk(f"error: {error.message}")
        else:
            talk(f"killed task {one}")
    if refused:
        raise typer.Exit(1)


@app.command("pause")
def pause(ctx: typer.Context, task_id: TaskId) -> None:
    """End the process of a generic task, and of those under it; unpaused, they begin anew."""
    (one,) = _whole(ctx, [task_id])
    state(ctx).session.post(_path(one, "/pause"), json={})
    talk(f"paused task {one}")


@app.command("unpause")
def unpause(ctx: typer.Context, task_id: TaskId) -> None:
    """Let a paused generic task, and those under it, wait for slots again."""
    (one,) = _whole(ctx, [task_id])
    state(ctx).session.post(_path(one, "/unpause"), json={})
    talk(f"unpaused task {one}")


@app.command("config")
def config(ctx: typer.Context, task_id: TaskId, json: Json = False) -> None:
    """Print the configuration of a task, as YAML if --json is not given."""
    import orjson
    import yaml

    (one,) = _whole(ctx, [task_id])
    found = orjson.loads(state(ctx).session.get(_path(one, "/config"))["config"])
    if json:
        render.print_json(found)
    else:
        echo(yaml.safe_dump(found, sort_keys=False), end="")


@app.command("create")
def create(
    ctx: typer.Context,
    config_file: Annotated[Path, typer.Argument(help="YAML file", metavar="CONFIG_FILE")],
    context: start.Context = None,
    include: Includes = None,
    project_id: ProjectId = None,
    config: Overrides = None,
    follow: Follow = False,
    fork: Annotated[
        str | None, typer.Option("--fork", help="take the files of this task", metavar="ID")
    ] = None,
    parent: Annotated[
        str | None, typer.Option("-p", "--parent", help="the task above it", metavar="ID")
    ] = None,
    inherit_context: Annotated[
        bool, typer.Option("--inherit_context", help="take the files of the task above it")
    ] = False,
    no_pause: Annotated[bool, typer.Option("--no_pause", help="it cannot be paused")] = False,
) -> None:
    """Create a generic task: a program that can be paused, and stand under another task."""
    from determined.common.api import tasks
    from determined.experimental import _submission

    data = start.configuration(config_file, config, None, kind="GenericConfig")
    known = [one for one in (fork, parent) if one is not None]
    whole = dict(zip(known, _whole(ctx, known), strict=False)) if known else {}
    _create(
        ctx,
        {
            "config": _submission.as_text(data),
            "contextDirectory": tasks.files_of(context, include or ()),
            "projectId": project_id,
            "forkedFrom": whole.get(fork or ""),
            "parentId": whole.get(parent or ""),
            "inheritContext": inherit_context,
            "noPause": no_pause,
        },
        follow,
    )


@app.command("fork")
def fork_task(
    ctx: typer.Context, task_id: TaskId, follow: Follow = False, project_id: ProjectId = None
) -> None:
    """Create a generic task with the configuration and the files of another one."""
    (one,) = _whole(ctx, [task_id])
    body: dict[str, Any] = {
        "config": "",
        "contextDirectory": [],
        "projectId": project_id,
        "forkedFrom": one,
    }
    _create(ctx, body, follow)


def _create(ctx: typer.Context, body: dict[str, Any], follow: bool) -> None:
    from determined.common.api.log_lines import follow_lines
    from determined.common.api.tasks import warnings_of

    session = state(ctx).session
    given = {name: value for name, value in body.items() if value is not None}
    answer = session.post("/api/v1/generic-tasks", json=given, timeout=300.0, max_retries=0)
    for warning in warnings_of(answer):
        talk(f"warning: {warning}")
    task_id = answer["taskId"]
    echo(f"Created task {task_id}")
    if follow:
        log_lines.show(follow_lines(session, _path(task_id, "/logs"), {}), json=False)
        ended = session.get(_path(task_id))["task"]
        if ended["state"] != "STATE_COMPLETED":
            raise CliError(f"task {task_id} ended {f.state(ended['state'])}: {ended['reason']}")
