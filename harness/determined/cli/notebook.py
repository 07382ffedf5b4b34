"""``det notebook``"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from determined.cli.arguments.confirmation import Yes, confirm
from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.launched import opening, start
from determined.cli.launched.commands import Everybodys, TaskId, TaskIds, add_commands
from determined.cli.launched.nouns import reference, references
from determined.cli.launched.publishing import Published
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.wire.kinds import TaskKind

COLUMNS = (
    Column("ID", "id"),
    Column("User", "username", spare=5),
    Column("Description", "description"),
    Column("Size", f.field("bytes", f.size)),
    Column("Ended", f.field("endTime", f.time)),
)

app = group("Notebooks: JupyterLab on the cluster's machines.", default="list")

Preview = Annotated[
    bool, typer.Option("--preview", help="print the complete configuration, start nothing")
]
Restore = Annotated[
    str | None,
    typer.Option(
        "--restore",
        help="begin with the files that this notebook of yours left, and with its configuration unless"
        " another is given",
        metavar="ID",
    ),
]


@app.command("start")
def start_notebook(
    ctx: typer.Context,
    config_file: start.ConfigFile = None,
    workspace_name: start.Workspace = None,
    volume: start.Volumes = None,
    context: start.Context = None,
    include: start.Includes = None,
    config: start.Overrides = None,
    template: start.Template = None,
    no_browser: start.NoBrowser = False,
    detach: start.Detach = False,
    publish: start.Publish = None,
    preview: Preview = False,
    restore: Restore = None,
) -> None:
    """Start JupyterLab on the cluster, and open it in the browser."""
    shared = state(ctx)
    start.refuse_unattended(publish, detach)
    with Published(publish or (), shared) as local:
        given = start.configuration(
            config_file, config, volume, kind="NotebookConfig", ports=local.ports
        )
        fields: dict[str, Any] = {} if template is None else {"templateName": template}
        if restore is not None:
            before = reference(shared, TaskKind.NOTEBOOK, restore)
            fields["restoreId"] = before.id
            if not given:
                given = before.get_config()
        if preview:
            import yaml

            fields |= start.place(shared, workspace_name)
            found, warnings = shared.tasks.preview_notebook(given, context, include or (), **fields)
            for warning in warnings:
                talk(f"warning: {warning}")
            echo(yaml.safe_dump(found, sort_keys=False).rstrip())
            return
        task = start.send(
            shared, TaskKind.NOTEBOOK, given, context, include, workspace=workspace_name, **fields
        )
        if detach:
            echo(task.id)
            return
        talk(f"notebook {task.id}")
        opening.show(task, browser=not no_browser)
        local.start(task.id)
        local.hold(f"notebook {task.id}")


@app.command("open")
def open_notebook(ctx: typer.Context, task_id: TaskId, no_browser: start.NoBrowser = False) -> None:
    """Open a notebook of yours in the browser."""
    opening.show(reference(state(ctx), TaskKind.NOTEBOOK, task_id), browser=not no_browser)


@app.command("files")
def list_files(
    ctx: typer.Context, all: Everybodys = False, json: Json = False, csv: Csv = False
) -> None:
    """List the notebooks that have ended and whose files are kept, for --restore."""
    fmt = chosen(json, csv)
    found = state(ctx).tasks.list_notebook_files(all)
    render.show(COLUMNS, found, fmt, what="notebooks")


@app.command("delete-files")
def delete_files(ctx: typer.Context, task_ids: TaskIds, yes: Yes = False) -> None:
    """Delete the files that ended notebooks left: no other notebook can begin with them then."""
    meant = references(state(ctx), TaskKind.NOTEBOOK, task_ids)
    ids = ", ".join(task.id for task in meant)
    confirm(f"Delete the files of notebook {ids}? This cannot be undone.", yes)
    for task in meant:
        task.delete_notebook_files()
        talk(f"the files of notebook {task.id} are being deleted")


add_commands(app, TaskKind.NOTEBOOK)
