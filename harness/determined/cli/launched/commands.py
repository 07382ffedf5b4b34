"""list, describe, kill, logs, config and set priority: the same for every kind."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from determined.cli.arguments.options import Csv, Json, Order, chosen
from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.launched.nouns import reference, references
from determined.cli.output import format as f
from determined.cli.output import log_lines, render
from determined.cli.output.render import Column, Record
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.wire.kinds import TaskKind

TaskId = Annotated[str, typer.Argument(help="its ID, or the beginning of its ID", metavar="ID")]
TaskIds = Annotated[list[str], typer.Argument(help="IDs, or the beginnings of IDs", metavar="ID")]
Everybodys = Annotated[bool, typer.Option("-a", "--all", help="also those of other users")]
OnlyIds = Annotated[bool, typer.Option("-q", "--quiet", help="print only the IDs")]
Workspace = Annotated[
    str | None,
    typer.Option("-w", "--workspace-name", help="only of this workspace", metavar="NAME"),
]


class SortBy(StrEnum):
    """The sort keys of a list."""

    ID = "id"
    USERNAME = "username"
    DESCRIPTION = "description"
    STATE = "state"
    EXIT_STATUS = "exitStatus"
    RESOURCE_POOL = "resourcePool"
    WORKSPACE_NAME = "workspaceName"
    START_TIME = "startTime"


def _place(record: Record) -> Any:
    return (record.get("container") or {}).get("parent")


COLUMNS = (
    Column("ID", "id"),
    Column("User", "username", spare=5),
    Column("Description", "description"),
    Column("State", f.field("state", f.state)),
    Column("Exit Status", "exitStatus", spare=2),
    Column("Resource Pool", "resourcePool", spare=7),
    Column("Workspace", "workspaceName", spare=9),
    Column("Slots", "slots", spare=8),
    Column("Agent", _place, spare=4),
    Column("Started", f.field("startTime", f.time), spare=6),
)


def add_commands(app: typer.Typer, noun: TaskKind, *, more: tuple[Column, ...] = ()) -> None:
    """Adds the commands that every kind has. ``more``: further columns of its list."""
    columns = (*COLUMNS[:5], *more, *COLUMNS[5:])
    title = noun.title

    @app.command("list|ls", help=f"List {title}s: your own, unless --all is given.")
    def list_tasks(
        ctx: typer.Context,
        quiet: OnlyIds = False,
        all: Everybodys = False,
        workspace_name: Workspace = None,
        sort_by: Annotated[SortBy, typer.Option("--sort-by")] = SortBy.START_TIME,
        order_by: Annotated[Order, typer.Option("--order-by")] = Order.ASC,
        json: Json = False,
        csv: Csv = False,
    ) -> None:
        fmt = chosen(json, csv)
        shared = state(ctx)
        users = None if all else [shared.username]
        within = None
        if workspace_name is not None:
            within = shared.workspaces.get_workspace(workspace_name).id
        found = [
            task.document for task in shared.tasks.list_tasks(noun, users, workspace_id=within)
        ]
        found.sort(
            key=lambda item: str(item.get(sort_by.value) or ""), reverse=order_by is Order.DESC
        )
        if quiet:
            for item in found:
                echo(item["id"])
            return
        render.show(columns, found, fmt, what=f"{title}s")

    @app.command("describe", help=f"Show a {title}.")
    def describe(ctx: typer.Context, task_id: TaskId, json: Json = False, csv: Csv = False) -> None:
        fmt = chosen(json, csv)
        task = reference(state(ctx), noun, task_id)
        task.reload()
        found = task.document
        if json:
            # A shell's key has no place on a screen.
            found.pop("privateKey", None)
            render.print_json(found)
            return
        render.show_sections([render.Section("", columns, [found])], fmt, document=found)

    @app.command("kill", help=f"Kill {title}s: their processes end at once.")
    def kill(
        ctx: typer.Context,
        task_ids: TaskIds,
        force: Annotated[
            bool, typer.Option("-f", "--force", help="exit with 0 even if some are refused")
        ] = False,
    ) -> None:
        from determined.common.api import errors

        refused = 0
        for task in references(state(ctx), noun, task_ids):
            try:
                task.kill()
            except (errors.BadRequestException, errors.ForbiddenException) as error:
                refused += 1
                talk(f"error: {error.message}")
            else:
                talk(f"killed {title} {task.id}")
        if refused and not force:
            raise typer.Exit(1)

    @app.command("logs", help=f"Print the output of a {title}.")
    @log_lines.options(allocations=True)
    def logs(ctx: typer.Context, task_id: TaskId, chosen: log_lines.ChosenLines) -> None:
        log_lines.show(reference(state(ctx), noun, task_id).iter_log_batches, chosen)

    @app.command("config", help=f"Print the configuration of a {title} as YAML.")
    def config(ctx: typer.Context, task_id: TaskId) -> None:
        import yaml

        found = reference(state(ctx), noun, task_id).get_config()
        echo(yaml.safe_dump(found, sort_keys=False), end="")

    settings = group(f"Change a {title}.")

    @settings.command(
        "priority",
        help=f"Set the priority of a {title}; a lower number is more important, on Kubernetes a higher one.",
    )
    def set_priority(
        ctx: typer.Context,
        task_id: TaskId,
        priority: Annotated[int, typer.Argument(min=1, max=99, help="1 to 99", metavar="N")],
    ) -> None:
        task = reference(state(ctx), noun, task_id)
        for remark in task.set_priority(priority):
            talk(f"warning: {remark}")
        talk(f"{title} {task.id}: priority set to {priority}")

    app.add_typer(settings, name="set")
