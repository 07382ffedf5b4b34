"""``det notebook``"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli.arguments.confirmation import Yes, confirm
from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.launched import opening, start
from determined.cli.launched.commands import Everybodys, TaskId, TaskIds, add_commands
from determined.cli.launched.nouns import NOTEBOOK, whole_id, whole_ids
from determined.cli.launched.publishing import Published
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column
from determined.cli.printing import echo
from determined.cli.state import state

FILES = "/api/v1/notebook-files"
COLUMNS = (
    Column("ID", "id"),
    Column("User", "username", spare=5),
    Column("Description", "description"),
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
    start.refuse_absent(template, workspace_name)
    shared = state(ctx)
    start.refuse_unattended(publish, detach)
    with Published(publish or (), shared) as local:
        given = start.configuration(
            config_file, config, volume, kind="NotebookConfig", ports=local.ports
        )
        more: dict[str, object] = {"preview": True} if preview else {}
        if restore is not None:
            before = whole_id(shared.session, NOTEBOOK, restore)
            more["restoreId"] = before
            if not given:
                given = shared.session.get(f"{NOTEBOOK.path}/{before}")["config"]
        answer = start.send(shared, NOTEBOOK.plural, given, context, include, more=more)
        if preview:
            import yaml

            echo(yaml.safe_dump(answer["config"], sort_keys=False).rstrip())
            return
        task_id = answer[NOTEBOOK.name]["id"]
        if detach:
            echo(task_id)
            return
        talk(f"notebook {task_id}")
        opening.show(shared.session, NOTEBOOK, task_id, browser=not no_browser)
        local.start(task_id)
        local.hold(f"notebook {task_id}")


@app.command("open")
def open_notebook(ctx: typer.Context, task_id: TaskId, no_browser: start.NoBrowser = False) -> None:
    """Open a notebook of yours in the browser."""
    session = state(ctx).session
    one = whole_id(session, NOTEBOOK, task_id)
    opening.show(session, NOTEBOOK, one, browser=not no_browser)


@app.command("files")
def list_files(
    ctx: typer.Context, all: Everybodys = False, json: Json = False, csv: Csv = False
) -> None:
    """List the notebooks that have ended and whose files are kept, for --restore."""
    fmt = chosen(json, csv)
    asked = {"everybody": all, "limit": -1}
    found = state(ctx).session.get(FILES, params=asked)["notebookFiles"]
    render.show(COLUMNS, found, fmt, what="notebooks")


@app.command("delete-files")
def delete_files(ctx: typer.Context, task_ids: TaskIds, yes: Yes = False) -> None:
    """Delete the files that ended notebooks left: no other notebook can begin with them then."""
    session = state(ctx).session
    chosen_ids = whole_ids(session, NOTEBOOK, task_ids)
    confirm(f"Delete the files of notebook {', '.join(chosen_ids)}? This cannot be undone.", yes)
    for one in chosen_ids:
        session.delete(f"{FILES}/{one}")
        talk(f"the files of notebook {one} are being deleted")


add_commands(app, NOTEBOOK)
