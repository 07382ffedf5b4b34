"""``det task``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli.arguments.abbreviated import expanded
from determined.cli.arguments.options import Csv, Includes, Json, Overrides, chosen
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.launched import start
from determined.cli.output import format as f
from determined.cli.output import log_lines, render
from determined.cli.output.render import Column, Record
from determined.cli.printing import echo
from determined.cli.state import state

if TYPE_CHECKING:
    from determined.experimental._task import Task

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


def _whole(ctx: typer.Context, words: list[str]) -> list[str]:
    """The ids that begin with these words, among the tasks that run and the latest ones."""
    return expanded(words, lambda: state(ctx).tasks.list_task_ids(), "task")


def _references(ctx: typer.Context, words: list[str]) -> list[Task]:
    """The SDK's objects for the tasks that :func:`_whole` finds, not loaded."""
    from determined.experimental._task import Task

    return [Task(state(ctx).session, one) for one in _whole(ctx, words)]


def _reference(ctx: typer.Context, word: str) -> Task:
    (found,) = _references(ctx, [word])
    return found


@app.command("list|ls")
def list_tasks(ctx: typer.Context, json: Json = False, csv: Csv = False) -> None:
    """List what runs, and what waits for slots."""
    found = state(ctx).tasks.list_allocations()
    render.show(TASKS, list(found.values()), chosen(json, csv), document=found, what="tasks")


@app.command("logs")
@log_lines.options(allocations=True)
def logs(ctx: typer.Context, task_id: TaskId, chosen: log_lines.ChosenLines) -> None:
    """Print the output of a task of any kind."""
    log_lines.show(_reference(ctx, task_id).iter_log_batches, chosen)


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
    for task in _references(ctx, task_ids):
        try:
            task.kill(from_root=root)
        except (errors.BadRequestException, errors.ForbiddenException) as error:
            refused += 1
            talk(f"error: {error.message}")
        else:
            talk(f"killed task {task.id}")
    if refused:
        raise typer.Exit(1)


@app.command("pause")
def pause(ctx: typer.Context, task_id: TaskId) -> None:
    """End the process of a generic task, and of those under it; unpaused, they begin anew."""
    task = _reference(ctx, task_id)
    task.pause()
    talk(f"paused task {task.id}")


@app.command("unpause")
def unpause(ctx: typer.Context, task_id: TaskId) -> None:
    """Let a paused generic task, and those under it, wait for slots again."""
    task = _reference(ctx, task_id)
    task.unpause()
    talk(f"unpaused task {task.id}")


@app.command("config")
def config(ctx: typer.Context, task_id: TaskId, json: Json = False) -> None:
    """Print the configuration of a task, as YAML if --json is not given."""
    import yaml

    found = _reference(ctx, task_id).get_config()
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
    from determined.experimental import _submission

    data = start.configuration(config_file, config, None, kind="GenericConfig")
    known = [one for one in (fork, parent) if one is not None]
    whole = dict(zip(known, _whole(ctx, known), strict=False)) if known else {}
    made = state(ctx).tasks.create_generic_task(
        _submission.as_text(data),
        context,
        include or (),
        project_id=project_id,
        forked_from=whole.get(fork or ""),
        parent_id=whole.get(parent or ""),
        inherit_context=inherit_context,
        no_pause=no_pause,
    )
    _report(made, follow)


@app.command("fork")
def fork_task(
    ctx: typer.Context, task_id: TaskId, follow: Follow = False, project_id: ProjectId = None
) -> None:
    """Create a generic task with the configuration and the files of another one."""
    (one,) = _whole(ctx, [task_id])
    made = state(ctx).tasks.create_generic_task("", project_id=project_id, forked_from=one)
    _report(made, follow)


def _report(task: Task, follow: bool) -> None:
    for warning in task.warnings:
        talk(f"warning: {warning}")
    echo(f"Created task {task.id}")
    if follow:
        log_lines.write(task.iter_log_batches(follow=True), json=False)
        task.reload()
        if task.state != "COMPLETED":
            raise CliError(f"task {task.id} ended {task.state}: {task.document['reason']}")
