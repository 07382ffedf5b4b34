"""``det rbac``"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from determined.cli import completion
from determined.cli.arguments.options import (
    Csv,
    Json,
    Limit,
    Offset,
    Pages,
    PagesOption,
    bound,
    chosen,
)
from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.output.render import Column, Section
from determined.cli.state import state

app = group("Roles, and who has which where.", default="list-roles")

RoleName = Annotated[str, typer.Argument(metavar="ROLE_NAME")]
Workspace = Annotated[
    str | None,
    typer.Option("-w", "--workspace-name", help="where the role holds; default: everywhere"),
]
User = Annotated[
    str | None,
    typer.Option("-u", "--username-to-assign", help="the user", autocompletion=completion.users),
]
Group = Annotated[str | None, typer.Option("-g", "--group-name-to-assign", help="the group")]

EVERYWHERE = "everywhere"
NOT_IN_FORCE = (
    "roles do not hold in this cluster, whose configuration has no `security.authz.type: rbac`. Assignments "
    "are kept"
)


def _scope(mask: dict[str, Any]) -> str:
    return "in a workspace, or everywhere" if mask["workspace"] else EVERYWHERE


ROLES = (
    Column("Role", "name"),
    Column("ID", "roleId"),
    Column("Can Be Assigned", lambda one: _scope(one["scopeTypeMask"])),
    Column("Description", "description", spare=5),
)
PERMISSIONS = (
    Column("Permission", lambda one: one["id"].removeprefix("PERMISSION_TYPE_")),
    Column("Holds", lambda one: _scope(one["scopeTypeMask"])),
)
ASSIGNMENTS = (
    Column("Role", "role"),
    Column("User", "user"),
    Column("Group", "group"),
    Column("Where", "where"),
)

PLACES = (Column("Role", "role"), Column("Where", "where"))


def _assignments(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for kind, key in (("user", "userRoleAssignments"), ("group", "groupRoleAssignments")):
        for one in found[key]:
            place = one["roleAssignment"]
            yield {
                "role": found["role"]["name"],
                "user": one["name"] if kind == "user" else None,
                "group": one["name"] if kind == "group" else None,
                "where": place["workspaceName"] or EVERYWHERE,
            }


def _places(summary: dict[str, Any]) -> list[str]:
    everywhere = [EVERYWHERE] if summary["scopeCluster"] else []
    return [*everywhere, *summary["workspaceNames"]]


@app.command("list-roles")
def list_roles(
    ctx: typer.Context,
    exclude_global_roles: Annotated[
        bool,
        typer.Option(
            "--exclude-global-roles", help="only roles that can be assigned in a workspace"
        ),
    ] = False,
    limit: Limit = 200,
    offset: Offset = 0,
    pages: PagesOption = Pages.ALL,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List the roles."""
    people = state(ctx).people
    found = people.list_roles(
        in_workspace=exclude_global_roles, offset=offset, limit=bound(pages, limit) or -1
    )
    render.show(ROLES, found, chosen(json, csv), what="roles")


@app.command("describe-role")
def describe_role(
    ctx: typer.Context, role_name: RoleName, json: Json = False, csv: Csv = False
) -> None:
    """Show a role's permissions, and who has it, as far as you may see that."""
    found = state(ctx).people.read_role(role_name)
    role = found["role"]
    render.show_sections(
        (
            Section(role["name"], PERMISSIONS, role["permissions"]),
            Section("Assignments", ASSIGNMENTS, list(_assignments(found))),
        ),
        chosen(json, csv),
        document=found,
    )


@app.command("list-users-roles")
def list_users_roles(
    ctx: typer.Context,
    username: Annotated[str, typer.Argument(autocompletion=completion.users)],
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List a user's roles, its own and those of its groups, as far as you may see them."""
    found = state(ctx).people.roles_of_user(username)
    rows = [row for one in found for row in _assignments(one)]
    render.show(ASSIGNMENTS, rows, chosen(json, csv), document={"roles": found}, what="assignments")


@app.command("list-groups-roles")
def list_groups_roles(
    ctx: typer.Context,
    group_name: Annotated[str, typer.Argument()],
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List a group's roles, as far as you may see them."""
    found = state(ctx).people.roles_of_group(group_name)
    rows = [
        {"role": role["name"], "where": place}
        for role, one in zip(found["roles"], found["assignments"], strict=True)
        for place in _places(one)
    ]
    render.show(PLACES, rows, chosen(json, csv), document=found, what="assignments")


@app.command("my-permissions")
def my_permissions(ctx: typer.Context, json: Json = False, csv: Csv = False) -> None:
    """Show what you may do by your roles, and where."""
    shared = state(ctx)
    found = shared.people.my_permissions()
    fmt = chosen(json, csv)
    if fmt is render.Format.TABLE and not found["inForce"]:
        talk(f"note: {NOT_IN_FORCE}")
    sections = []
    for role, place in zip(found["roles"], found["assignments"], strict=True):
        title = f"{role['name']}: {', '.join(_places(place))}"
        sections.append(Section(title, PERMISSIONS, role["permissions"]))
    if fmt is render.Format.TABLE and not sections:
        talk("you have no roles")
    render.show_sections(sections, fmt, document=found)


@app.command("assign-role")
def assign_role(
    ctx: typer.Context,
    role_name: RoleName,
    workspace_name: Workspace = None,
    username: User = None,
    group_name: Group = None,
) -> None:
    """Assign a role to a user or a group: administrators; in a workspace, also its WorkspaceAdmins."""
    _change(ctx, role_name, workspace_name, username, group_name)


@app.command("unassign-role")
def unassign_role(
    ctx: typer.Context,
    role_name: RoleName,
    workspace_name: Workspace = None,
    username: User = None,
    group_name: Group = None,
) -> None:
    """Take a role from a user or a group: administrators; in a workspace, also its WorkspaceAdmins."""
    _change(ctx, role_name, workspace_name, username, group_name, take=True)


def _change(
    ctx: typer.Context,
    role: str,
    workspace: str | None,
    user: str | None,
    group_name: str | None,
    *,
    take: bool = False,
) -> None:
    if (user is None) == (group_name is None):
        raise typer.BadParameter(
            "give either -u, --username-to-assign, or -g, --group-name-to-assign"
        )
    state(ctx).people.assign(role, user=user, group=group_name, workspace=workspace, take=take)
    whose = f"user {user}" if user is not None else f"group {group_name}"
    where = EVERYWHERE if workspace is None else f"in workspace {workspace}"
    talk(f"{'took' if take else 'assigned'} {role} {where} {'from' if take else 'to'} {whose}")
