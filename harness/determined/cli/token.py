"""``det token`` (``det tkn``)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import completion
from determined.cli.arguments.options import Json, Yaml
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column
from determined.cli.printing import echo
from determined.cli.state import state

if TYPE_CHECKING:
    from determined.experimental._access_token import AccessToken

app = group("Access tokens: what a program sends in a user's name.", default="list")

Id = Annotated[int, typer.Argument(metavar="TOKEN_ID", min=1)]
User = Annotated[
    str | None,
    typer.Argument(metavar="USERNAME", autocompletion=completion.users),
]


def _expiry(one: Mapping[str, Any]) -> str:
    expiry = one.get("expiry") or ""
    return "never" if expiry >= "9999" else f.time(expiry)


TOKENS = (
    Column("ID", "id"),
    Column("User", "username"),
    Column("Description", "description"),
    Column("Read Only", "readOnly", spare=6),
    Column("Workspace", "workspaceName", spare=5),
    Column("Created At", f.field("createdAt", f.time), spare=5),
    Column("Expires At", _expiry),
    Column("Last Used", f.field("lastUsedAt", f.time), spare=7),
    Column("Revoked", "revoked", spare=8),
)


def _show(found: list[AccessToken], json: bool, yaml: bool) -> None:
    documents = [one.document for one in found]
    if json:
        render.print_json(documents)
    elif yaml:
        render.print_yaml(documents)
    else:
        render.show(TOKENS, found, render.Format.TABLE, what="access tokens")


def _one(ctx: typer.Context, token_id: int) -> AccessToken:
    found = state(ctx).access_tokens.list_access_tokens(ids=[token_id])
    if not found:
        raise CliError(
            f"there is no access token {token_id} of yours: det token list --show-inactive lists them"
        )
    return found[0]


@app.command("list|ls")
def list_tokens(
    ctx: typer.Context,
    username: User = None,
    show_inactive: Annotated[
        bool,
        typer.Option("--show-inactive", help="also those that have expired or were revoked"),
    ] = False,
    json: Json = False,
    yaml: Yaml = False,
) -> None:
    """List access tokens: yours, or, for administrators, all users' or one user's."""
    found = state(ctx).access_tokens.list_access_tokens(username, show_inactive=show_inactive)
    _show(found, json, yaml)


@app.command("describe")
def describe(
    ctx: typer.Context,
    token_id: Annotated[list[int], typer.Argument(metavar="TOKEN_ID", min=1)],
    json: Json = False,
    yaml: Yaml = False,
) -> None:
    """Show access tokens, also those that have ended."""
    found = state(ctx).access_tokens.list_access_tokens(ids=token_id)
    missing = sorted(set(token_id) - {one.id for one in found})
    _show(found, json, yaml)
    if missing:
        raise CliError(f"no access tokens of yours: {', '.join(map(str, missing))}")


@app.command("create")
def create(
    ctx: typer.Context,
    username: User = None,
    expiration_days: Annotated[
        int | None,
        typer.Option(
            "-e",
            "--expiration-days",
            min=-1,
            help="days until it ends; -1: never; default: as long as the cluster says",
        ),
    ] = None,
    description: Annotated[
        str, typer.Option("-d", "--description", help="what it is for", metavar="TEXT")
    ] = "",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="nothing can be changed by it")
    ] = False,
    workspace_name: Annotated[
        str | None,
        typer.Option(
            "-w",
            "--workspace-name",
            help="it shows this workspace alone, and is read-only; in a cluster with roles",
            metavar="NAME",
        ),
    ] = None,
    json: Json = False,
    yaml: Yaml = False,
) -> None:
    """Make an access token, and print it, this once.

    A program sends it as DET_USER_TOKEN. It is good until it ends or is revoked; a logout or a new password
    does not end it. Administrators make tokens of other users, too.
    """
    if expiration_days == 0:
        raise typer.BadParameter("--expiration-days 0: give 1 or more, or -1 for ever")
    shared = state(ctx)
    user_id = None if username is None else shared.users.get_user_by_name(username).user_id
    place = None if workspace_name is None else shared.workspaces.get_workspace(workspace_name).id
    made = shared.access_tokens.create_access_token(
        days=expiration_days,
        description=description,
        read_only=read_only or place is not None,
        user_id=user_id,
        workspace_id=place,
    )
    document = {"token": made.token, "tokenId": made.id}
    if json:
        render.print_json(document)
    elif yaml:
        render.print_yaml(document)
    else:
        echo(f"TokenID: {made.id}\nAccess-Token: {made.token}")
        talk("note: it is not shown again")


@app.command("edit")
def edit(
    ctx: typer.Context,
    token_id: Id,
    description: Annotated[
        str | None, typer.Option("-d", "--description", help="what it is for", metavar="TEXT")
    ] = None,
    json: Json = False,
    yaml: Yaml = False,
) -> None:
    """Describe an access token anew."""
    if description is None:
        raise typer.BadParameter("give --description")
    token = _one(ctx, token_id)
    token.set_description(description)
    if json or yaml:
        _show([token], json, yaml)
    talk(f"changed access token {token_id}")


@app.command("revoke")
def revoke(ctx: typer.Context, token_id: Id) -> None:
    """End an access token, at once and for good."""
    _one(ctx, token_id).revoke()
    talk(f"revoked access token {token_id}")


@app.command("login")
def login(
    ctx: typer.Context, token: Annotated[str, typer.Argument(metavar="TOKEN", show_default=False)]
) -> None:
    """Use an access token for later commands, until det user logout.

    Lists of processes show arguments: where others use the machine, set DET_USER_TOKEN instead.
    """
    from determined.common.api import Session, authentication
    from determined.common.api.token_store import TokenStore

    shared = state(ctx)
    authentication.check_service(shared.address, shared.transport)
    url = shared.address.url
    with Session(url, token, transport=shared.transport) as session:
        username = authentication.current_user(session)["username"]
    TokenStore().set_token(url, username, token)
    talk(f"logged in to {url} as {username}, by this access token")
