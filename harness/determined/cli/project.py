"""``det project`` (``det p``)"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli.arguments import places
from determined.cli.arguments.confirmation import Yes, confirm
from determined.cli.arguments.options import Json, chosen
from determined.cli.arguments.places import PlaceList, Project, Workspace, project
from determined.cli.errors import talk
from determined.cli.experiment.lists import EXPERIMENTS
from determined.cli.groups import group
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column, Format, Section
from determined.cli.state import state

app = group("Projects: experiments of a workspace that belong together.")

PROJECTS = (
    Column("ID", "id"),
    Column("Name", "name"),
    Column("Key", "key", spare=7),
    Column("Description", "description", spare=3),
    Column("Owner", "username", spare=5),
    Column("Experiments", "numExperiments", spare=4),
    Column("Active", "numActiveExperiments", spare=8),
    Column("Last Started", f.field("lastExperimentStartedAt", f.time), spare=9),
    Column("Archived", "archived", spare=6),
)
DETAILS = (
    Column("Workspace", "workspaceName"),
    *PROJECTS,
    Column("State", lambda r: str(r["state"]).removeprefix("WORKSPACE_STATE_")),
    Column("Reason", "errorMessage"),
)
NOTES = (Column("Name", "name"), Column("Contents", "contents"))
Everybodys = Annotated[
    bool, typer.Option("-a", "--all", help="also archived experiments and those of other users")
]
Description = Annotated[str | None, typer.Option("--description", help="what it is about")]
Key = Annotated[
    str | None,
    typer.Option("--key", help="1 to 5 capital letters and digits, unique in the cluster"),
]


@app.command("list|ls")
@places.list_options
def list_projects(
    ctx: typer.Context,
    workspace_name: Workspace,
    wanted: PlaceList,
) -> None:
    """List the projects of a workspace."""
    one = state(ctx).workspaces.get_workspace(workspace_name)
    render.show(PROJECTS, one.iter_projects(**wanted.pages), wanted.format, what="projects")


@app.command("list-experiments")
@places.list_options
def list_experiments(
    ctx: typer.Context,
    workspace_name: Workspace,
    project_name: Project,
    all_: Everybodys = False,
    *,
    wanted: PlaceList,
) -> None:
    """List your experiments of a project."""
    from determined.experimental._enums import ExperimentSortBy, OrderBy

    one = project(ctx, workspace_name, project_name)
    shared = state(ctx)
    found = shared.experiments.iter_experiments(
        ExperimentSortBy[wanted.sort_by.name],
        OrderBy[wanted.order_by.name],
        users=None if all_ else [shared.username],
        archived=None if all_ else False,
        project_id=one.id,
        offset=wanted.offset,
        page_size=wanted.page_size,
    )
    render.show(EXPERIMENTS, found, wanted.format, what="experiments")


@app.command("describe")
def describe(
    ctx: typer.Context,
    workspace_name: Workspace,
    project_name: Project,
    all_: Everybodys = False,
    json: Json = False,
) -> None:
    """Show a project, its notes, and your experiments in it."""
    one = project(ctx, workspace_name, project_name)
    if json:
        render.print_json(one.document)
        return
    shared = state(ctx)
    found = shared.experiments.list_experiments(
        users=None if all_ else [shared.username],
        archived=None if all_ else False,
        project_id=one.id,
    )
    sections = [
        Section("", DETAILS, [one.document]),
        Section("Notes", NOTES, one.notes),
        Section("Experiments", EXPERIMENTS, [each.document for each in found]),
    ]
    render.show_sections(sections, Format.TABLE, document=one.document)


@app.command("create")
def create(
    ctx: typer.Context,
    workspace_name: Workspace,
    name: Annotated[str, typer.Argument(help="unique in the workspace, whatever its case")],
    description: Description = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Create a project in a workspace."""
    within = state(ctx).workspaces.get_workspace(workspace_name)
    made = within.create_project(name, description, key=key)
    render.show_one(DETAILS, made.document, chosen(json, csv=False))


@app.command("edit")
def edit(
    ctx: typer.Context,
    workspace_name: Workspace,
    project_name: Project,
    new_name: Annotated[str | None, typer.Option("--new_name", help="the new name")] = None,
    description: Description = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Change a project's name, description or key."""
    if new_name is None and description is None and key is None:
        raise typer.BadParameter("give --new_name, --description or --key")
    one = project(ctx, workspace_name, project_name)
    one.edit(name=new_name, description=description, key=key)
    render.show_one(DETAILS, one.document, chosen(json, csv=False))


@app.command("archive")
def archive(ctx: typer.Context, workspace_name: Workspace, project_name: Project) -> None:
    """Archive a project: nothing can be made in it."""
    project(ctx, workspace_name, project_name).archive()
    talk(f"archived project {project_name!r}")


@app.command("unarchive")
def unarchive(ctx: typer.Context, workspace_name: Workspace, project_name: Project) -> None:
    """Open an archived project again."""
    project(ctx, workspace_name, project_name).unarchive()
    talk(f"unarchived project {project_name!r}")


@app.command("move")
def move(
    ctx: typer.Context,
    workspace_name: Workspace,
    project_name: Project,
    to: Annotated[str, typer.Argument(help="the workspace to move it to", metavar="TO")],
) -> None:
    """Move a project with its experiments to another workspace."""
    one = project(ctx, workspace_name, project_name)
    target = state(ctx).workspaces.get_workspace(to)
    one.move(target)
    talk(f"project {project_name!r} is in workspace {target.name!r}")


@app.command("delete")
def delete(
    ctx: typer.Context, workspace_name: Workspace, project_name: Project, yes: Yes = False
) -> None:
    """Permanently delete a project with its experiments; nothing may run in it. What goes is shown first."""
    one = project(ctx, workspace_name, project_name)
    places.say_contents(f"project {one.name!r}", one.contents())
    confirm(f"Delete project {one.name!r} with all this? This cannot be undone.", yes)
    one.delete()
    places.wait_until_deleted(one, "project")
