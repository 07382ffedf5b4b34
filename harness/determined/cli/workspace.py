"""``det workspace`` (``det w``)"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from determined.cli import option_groups, project
from determined.cli.arguments import places
from determined.cli.arguments.confirmation import Yes, confirm
from determined.cli.arguments.options import Csv, Json, Yaml, chosen
from determined.cli.arguments.places import PlaceList, Workspace
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.output.render import Column, Format, Record, Section
from determined.cli.state import state

app = group(
    "Workspaces: projects, models, templates and tasks of one group of people.", default="list"
)

WORKSPACES = (
    Column("ID", "id"),
    Column("Name", "name"),
    Column("Owner", "username", spare=5),
    Column("Projects", "numProjects", spare=4),
    Column("Experiments", "numExperiments", spare=3),
    Column("Archived", "archived", spare=6),
    Column("Pinned", "pinned", spare=8),
)


def _account(record: Record) -> str:
    found = record.get("agentUserGroup") or {}
    if not found:
        return ""
    return "{agentUser} ({agentUid}), group {agentGroup} ({agentGid})".format(**found)


def _storage(record: Record) -> str:
    found = record.get("checkpointStorageConfig")
    return ", ".join(f"{key}={value}" for key, value in found.items()) if found else ""


DETAILS = (
    *WORKSPACES,
    Column("Account on Agents", _account),
    Column("Checkpoint Storage", _storage),
    Column("Default Compute Pool", "defaultComputePool"),
    Column("Default Aux Pool", "defaultAuxPool"),
    Column("State", lambda r: str(r["state"]).removeprefix("WORKSPACE_STATE_")),
    Column("Reason", "errorMessage"),
)
POOLS = (Column("Name", "name"),)
MEMBERS = (
    Column("Name", "name"),
    Column("Kind", "kind"),
    Column("Role", "role"),
)

StorageText = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-storage-config",
        metavar="JSON",
        help="where its experiments store checkpoints, as in checkpoint_storage; {} takes it away; from a "
        "file: --checkpoint-storage-config-file",
    ),
]
StorageFile = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint-storage-config-file",
        metavar="FILE",
        help="the same from a YAML or JSON file",
        # Its name is wider than a help page's column; the option before names it.
        hidden=True,
    ),
]
ComputePool = Annotated[
    str | None,
    typer.Option(
        "--default-compute-pool", metavar="POOL", help="of what asks for slots; '' takes it away"
    ),
]
AuxPool = Annotated[
    str | None,
    typer.Option(
        "--default-aux-pool", metavar="POOL", help="of what asks for none; '' takes it away"
    ),
]
Uid = Annotated[int | None, typer.Option("--agent-uid", metavar="N", help="number of the account")]
User = Annotated[
    str | None,
    typer.Option(
        "--agent-user",
        metavar="NAME",
        help="account on agents of what runs in it; for administrators",
    ),
]
Gid = Annotated[int | None, typer.Option("--agent-gid", metavar="N", help="number of its group")]
Group = Annotated[
    str | None, typer.Option("--agent-group", metavar="NAME", help="name of its group")
]


def _given(
    agent_uid: Uid = None,
    agent_user: User = None,
    agent_gid: Gid = None,
    agent_group: Group = None,
    checkpoint_storage_config: StorageText = None,
    checkpoint_storage_config_file: StorageFile = None,
    default_compute_pool: ComputePool = None,
    default_aux_pool: AuxPool = None,
) -> dict[str, Any]:
    """The fields of the REST API."""
    storage, storage_file = checkpoint_storage_config, checkpoint_storage_config_file
    if storage is not None and storage_file is not None:
        raise typer.BadParameter(
            "give --checkpoint-storage-config or --checkpoint-storage-config-file, not both"
        )
    found: dict[str, Any] = {}
    if storage is not None or storage_file is not None:
        from determined import expconf

        text = storage if storage_file is None else storage_file.read_text()
        data = expconf.load_yaml(text or "{}").data
        if not isinstance(data, dict):
            raise CliError(
                "the checkpoint storage is not a mapping: write it as in checkpoint_storage, such as "
                '{"type": "s3", "bucket": "NAME"}'
            )
        found["checkpointStorageConfig"] = data.get("checkpoint_storage", data)
    if default_compute_pool is not None:
        found["defaultComputePool"] = default_compute_pool
    if default_aux_pool is not None:
        found["defaultAuxPool"] = default_aux_pool
    account = {
        "agentUid": agent_uid,
        "agentUser": agent_user,
        "agentGid": agent_gid,
        "agentGroup": agent_group,
    }
    if any(value is not None for value in account.values()):
        missing = [name for name, value in account.items() if value is None]
        if missing:
            options = ", ".join(f"--agent-{name.removeprefix('agent').lower()}" for name in missing)
            raise typer.BadParameter(f"the account on agents needs {options}, too")
        found["agentUserGroup"] = account
    return found


@app.command("list|ls")
@places.list_options
def list_workspaces(
    ctx: typer.Context,
    wanted: PlaceList,
) -> None:
    """List the workspaces."""
    found = state(ctx).workspaces.iter_workspaces(**wanted.pages)
    render.show(WORKSPACES, found, wanted.format, what="workspaces")


app.command("list-projects")(project.list_projects)


@app.command("list-pools")
def list_pools(
    ctx: typer.Context, workspace_name: Workspace, json: Json = False, csv: Csv = False
) -> None:
    """List the resource pools that a workspace may use."""
    pools = state(ctx).workspaces.get_workspace(workspace_name).list_pools()
    found = [{"name": one.name} for one in pools]
    render.show(POOLS, found, chosen(json, csv), what="resource pools")


@app.command("list-members")
def list_members(
    ctx: typer.Context,
    workspace_name: Workspace,
    json: Json = False,
    yaml: Yaml = False,
    csv: Csv = False,
) -> None:
    """List the users and groups that have a role in a workspace."""
    found = state(ctx).workspaces.get_workspace(workspace_name).list_members()
    if yaml:
        render.print_yaml(found)
        return
    render.show(MEMBERS, found, chosen(json, csv), what="members")


@app.command("describe")
def describe(ctx: typer.Context, workspace_name: Workspace, json: Json = False) -> None:
    """Show a workspace, and its projects."""
    one = state(ctx).workspaces.get_workspace(workspace_name)
    if json:
        render.print_json(one.document)
        return
    sections = [
        Section("", DETAILS, [one.document]),
        Section("Projects", project.PROJECTS, [each.document for each in one.list_projects()]),
    ]
    render.show_sections(sections, Format.TABLE, document=one.document)


@app.command("create")
@option_groups.of(_given, "given")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="unique, whatever its case")],
    given: dict[str, Any],
    json: Json = False,
) -> None:
    """Create a workspace."""
    made = state(ctx).workspaces.create_workspace(name, **given)
    render.show_one(DETAILS, made.document, chosen(json, csv=False))


@app.command("edit")
@option_groups.of(_given, "given")
def edit(
    ctx: typer.Context,
    workspace_name: Workspace,
    name: Annotated[str | None, typer.Option("--name", help="the new name")] = None,
    *,
    given: dict[str, Any],
    json: Json = False,
) -> None:
    """Change a workspace. What is not given stays as it is."""
    if name is not None:
        given["name"] = name
    if not given:
        raise typer.BadParameter("say what to change: det workspace edit --help shows the options")
    one = state(ctx).workspaces.get_workspace(workspace_name)
    one.edit(**given)
    render.show_one(DETAILS, one.document, chosen(json, csv=False))


@app.command("archive")
def archive(ctx: typer.Context, workspace_name: Workspace) -> None:
    """Archive a workspace: nothing can be made in it or its projects."""
    state(ctx).workspaces.get_workspace(workspace_name).archive()
    talk(f"archived workspace {workspace_name!r}")


@app.command("unarchive")
def unarchive(ctx: typer.Context, workspace_name: Workspace) -> None:
    """Open an archived workspace again."""
    state(ctx).workspaces.get_workspace(workspace_name).unarchive()
    talk(f"unarchived workspace {workspace_name!r}")


@app.command("delete")
def delete(ctx: typer.Context, workspace_name: Workspace, yes: Yes = False) -> None:
    """Permanently delete a workspace with its projects and experiments, pipelines and templates.

    What goes is shown first. Nothing may run in it, and models have to leave it before.
    """
    one = state(ctx).workspaces.get_workspace(workspace_name)
    places.say_contents(f"workspace {one.name!r}", one.contents())
    confirm(f"Delete workspace {one.name!r} with all this? This cannot be undone.", yes)
    one.delete()
    places.wait_until_deleted(one, "workspace")
