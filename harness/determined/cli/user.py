"""``det user`` (``det u``)"""

from __future__ import annotations

import getpass
import os
import sys
from typing import Annotated

import typer

from determined.cli import _format as f
from determined.cli import _render
from determined.cli._errors import CliError, talk
from determined.cli._groups import group
from determined.cli._options import Csv, Json, chosen
from determined.cli._render import Column
from determined.cli._state import state

app = group("Who is logged in.", default="list")

USERS = (
    Column("Username", "username"),
    Column("Display Name", "displayName"),
    Column("Admin", "admin"),
    Column("Active", "active"),
    Column("Remote", "remote"),
    Column("ID", "id"),
    Column("Last Login", f.field("lastAuthAt", f.time)),
)


def _password(user: str) -> str:
    """From the terminal, $DET_PASS, or the first line of standard input."""
    given = os.environ.get("DET_PASS")
    if given is not None:
        return given
    if sys.stdin.isatty():
        return getpass.getpass(f"Password for user {user!r}: ")
    line = sys.stdin.readline()
    if not line:
        raise CliError("no password: type it, set DET_PASS, or give it on standard input")
    return line.rstrip("\n")


@app.command("login")
def login(
    ctx: typer.Context,
    username: Annotated[str | None, typer.Argument(help="default: determined")] = None,
) -> None:
    """Log in; the token is kept for the next commands."""
    from determined.common.api import authentication
    from determined.common.api.token_store import TokenStore

    shared = state(ctx)
    user = username or shared.user or os.environ.get("DET_USER") or authentication.DEFAULT_USER
    url = shared.address.url
    token = authentication.login(url, user, _password(user), transport=shared.transport_or_tls())
    TokenStore().set_token(url, user, token)
    talk(f"logged in to {url} as {user}")


@app.command("logout")
def logout(ctx: typer.Context) -> None:
    """End the login and forget its token."""
    from determined.common.api import Session, authentication
    from determined.common.api.token_store import TokenStore

    shared = state(ctx)
    url, store = shared.address.url, TokenStore()
    user = shared.user or store.active_user(url)
    token = store.token(url, user)
    if user is None or token is None:
        raise CliError(f"not logged in to {url}")
    with Session(url, token, transport=shared.transport_or_tls()) as session:
        authentication.logout(session, user, store)
    talk(f"logged out {user} from {url}")


@app.command("whoami")
def whoami(ctx: typer.Context, json: Json = False) -> None:
    """Who the service takes you for."""
    from determined.common.api import authentication

    user = authentication.current_user(state(ctx).session)
    if json:
        _render.print_json(user)
    else:
        typer.echo(user["username"])


@app.command("list|ls")
def list_users(
    ctx: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="inactive ones too")] = False,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """All users."""
    from determined.common.api import pages

    params = {} if all_ else {"active": True}
    found = pages.read(state(ctx).session, "/api/v1/users", "users", params)
    _render.show(USERS, found, chosen(json, csv))
