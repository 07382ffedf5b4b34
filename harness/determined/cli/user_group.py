"""``det user-group``"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli import completion
from determined.cli.arguments.confirmation import Yes, confirm
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
from determined.cli.output.render import Column
from determined.cli.state import state

app = group("Groups of users, who get roles together.", default="list")

Name = Annotated[str, typer.Argument(metavar="GROUP_NAME")]
Usernames = Annotated[
    str,
    typer.Argument(
        metavar="USERNAMES", help="names, with commas between them", autocompletion=completion.users
    ),
]

GROUPS = (
    Column("Name", "name"),
    Column("Members", "numMembers"),
    Column("ID", "groupId", spare=9),
)
MEMBERS = (
    Column("Username", "username"),
    Column("Display Name", "displayName", spare=5),
    Column("Admin", "admin"),
    Column("Active", "active"),
    Column("ID", "id", spare=9),
)


def _split(usernames: str) -> list[str]:
    found = [name.strip() for name in usernames.split(",") if name.strip()]
    if not found:
        raise typer.BadParameter("give at least one name of a user")
    return found


@app.command("list|ls")
def list_groups(
    ctx: typer.Context,
    belongs: Annotated[
        str | None,
        typer.Option("--groups-user-belongs-to", metavar="USER", help="only groups of that user"),
    ] = None,
    limit: Limit = 200,
    offset: Offset = 0,
    pages: PagesOption = Pages.ALL,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List the groups; in a cluster with roles your own ones, unless you may assign roles."""
    people = state(ctx).people
    found = people.list_groups(belongs, offset, bound(pages, limit) or -1)
    render.show(GROUPS, found, chosen(json, csv), what="groups")


@app.command("describe")
def describe(ctx: typer.Context, group_name: Name, json: Json = False, csv: Csv = False) -> None:
    """Show a group's members."""
    found = state(ctx).people.read_group(group_name)
    render.show(MEMBERS, found["users"], chosen(json, csv), document=found, what="members")


@app.command("create")
def create(
    ctx: typer.Context,
    group_name: Name,
    add_user: Annotated[
        list[str] | None,
        typer.Option(
            "--add-user",
            metavar="USERNAME",
            help="a first member; may be repeated",
            autocompletion=completion.users,
        ),
    ] = None,
) -> None:
    """Create a group. For administrators."""
    made = state(ctx).people.create_group(group_name, add_user or [])
    names = ", ".join(one["username"] for one in made["users"])
    talk(f"created group {made['name']}" + (f" with {names}" if names else ""))


@app.command("add-user")
def add_user(ctx: typer.Context, group_name: Name, usernames: Usernames) -> None:
    """Add users to a group, which gives them its roles. For administrators."""
    names = _split(usernames)
    changed = state(ctx).people.change_group(group_name, add=names)
    talk(f"group {changed['name']} has {', '.join(names)}")


@app.command("remove-user")
def remove_user(ctx: typer.Context, group_name: Name, usernames: Usernames) -> None:
    """Remove users from a group, which takes its roles from them. For administrators."""
    names = _split(usernames)
    changed = state(ctx).people.change_group(group_name, remove=names)
    talk(f"group {changed['name']} no longer has {', '.join(names)}")


@app.command("change-name")
def change_name(
    ctx: typer.Context,
    old_group_name: Annotated[str, typer.Argument()],
    new_group_name: Annotated[str, typer.Argument()],
) -> None:
    """Give a group another name. For administrators."""
    state(ctx).people.change_group(old_group_name, new_name=new_group_name)
    talk(f"group {old_group_name} is now {new_group_name}")


@app.command("delete")
def delete(ctx: typer.Context, group_name: Name, yes: Yes = False) -> None:
    """Delete a group. Its members stay, and lose the roles that they have by it. For administrators."""
    people = state(ctx).people
    members = len(people.read_group(group_name)["users"])
    confirm(
        f"Delete group {group_name}? Its members ({members}) lose the roles that they have by it.",
        yes,
    )
    people.delete_group(group_name)
    talk(f"deleted group {group_name}")
