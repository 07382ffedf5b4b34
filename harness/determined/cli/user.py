"""``det user`` (``det u``)"""

from __future__ import annotations

import getpass
import os
import sys
from enum import StrEnum
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import completion
from determined.cli.arguments.options import Csv, Json, Yaml, chosen
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.wire import limits

if TYPE_CHECKING:
    from determined.experimental._user import User

app = group("Users, login and logout.", default="list")
defaults = group(
    "Your defaults: values for what your configurations leave open.", default="describe"
)
app.add_typer(defaults, name="defaults")

USERS = (
    Column("Username", "username"),
    Column("Display Name", "displayName", spare=5),
    Column("Admin", "admin"),
    Column("Active", "active"),
    Column("Remote", "remote", spare=9),
    Column("ID", "id", spare=7),
    Column("Last Login", f.field("lastAuthAt", f.time), spare=4),
)


def _password(user: str) -> str:
    """The password from $DET_PASS, else from the terminal or the first line of standard input."""
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
    username: Annotated[
        str | None,
        typer.Argument(help="default: determined", autocompletion=completion.users),
    ] = None,
) -> None:
    """Log in, and store the token for later commands."""
    from determined.common.api import authentication
    from determined.common.api.token_store import TokenStore

    shared = state(ctx)
    user = username or shared.user or os.environ.get("DET_USER") or authentication.DEFAULT_USER
    url = shared.address.url
    # Before the password is asked for.
    authentication.check_service(shared.address, shared.transport)
    local = shared.address.local
    if local is not None and user in local.passwords:
        talk(
            f"no login is needed for {user} of the local cluster: `det -u {user} …` takes its password from"
            f" {local.data_dir / 'cluster.json'}"
        )
    token = authentication.new_token(url, user, _password(user), transport=shared.transport)
    TokenStore().set_token(url, user, token)
    talk(f"logged in to {url} as {user}")


@app.command("logout")
def logout(
    ctx: typer.Context,
    everyone: Annotated[
        bool, typer.Option("-a", "--all", help="each user who is logged in from here")
    ] = False,
) -> None:
    """Log out, and delete the stored token."""
    from determined.common.api import Session, authentication
    from determined.common.api.token_store import TokenStore

    shared = state(ctx)
    url, store = shared.address.url, TokenStore()
    if everyone and shared.user:
        raise typer.BadParameter("give --all, or the user with -u, not both")
    user = shared.user or store.active_user(url)
    tokens = {
        one: store.token(url, one) for one in (store.users(url) if everyone else [user]) if one
    }
    if not any(tokens.values()):
        raise CliError(f"not logged in to {url}")
    for one, token in tokens.items():
        if token is None:
            continue
        with Session(url, token, transport=shared.transport) as session:
            authentication.logout(session, one, store)
        talk(f"logged out {one} from {url}")


@app.command("create")
def create(
    ctx: typer.Context,
    username: Annotated[str, typer.Argument(metavar="USERNAME")],
    admin: Annotated[bool, typer.Option("--admin", help="make an administrator")] = False,
    password: Annotated[
        str | None,
        typer.Option(
            "--password", help="default: asked for, so that no list of processes shows it"
        ),
    ] = None,
    remote: Annotated[bool, typer.Option("--remote", help="never logs in by a password")] = False,
) -> None:
    """Create a user. For administrators. A remote one never logs in by a password, and has none.

    Without a terminal and without --password, the password is the first line of standard input.
    """
    from determined.experimental import _user

    users = state(ctx).users
    if password is None and not remote:
        _user.require_may_create(state(ctx).session)
        password = _new_password(ctx, username)
    users.create_user(username, admin, password, remote)
    talk(f"created {username}" + (", an administrator" if admin else ""))


class Truth(StrEnum):
    """A value of an option that turns something on or off."""

    TRUE = "true"
    FALSE = "false"


@app.command("edit")
def edit(
    ctx: typer.Context,
    target_user: Annotated[
        str, typer.Argument(metavar="TARGET_USER", autocompletion=completion.users)
    ],
    display_name: Annotated[str | None, typer.Option("--display-name", metavar="NAME")] = None,
    username: Annotated[
        str | None, typer.Option("--username", metavar="NAME", help="the new name to log in with")
    ] = None,
    admin: Annotated[
        Truth | None, typer.Option("--admin", case_sensitive=False, help="an administrator, or not")
    ] = None,
    active: Annotated[
        Truth | None, typer.Option("--active", case_sensitive=False, help="may log in, or not")
    ] = None,
    remote: Annotated[
        Truth | None,
        typer.Option("--remote", case_sensitive=False, help="never logs in by a password, or does"),
    ] = None,
) -> None:
    """Change a user: for administrators, but for one's own display name."""
    given = {
        "display_name": display_name,
        "username": username,
        "admin": None if admin is None else admin is Truth.TRUE,
        "active": None if active is None else active is Truth.TRUE,
        "remote": None if remote is None else remote is Truth.TRUE,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise typer.BadParameter("give --display-name, --username, --admin, --active or --remote")
    _change(ctx, target_user, changes)


@app.command("activate")
def activate(
    ctx: typer.Context,
    username: Annotated[str, typer.Argument(autocompletion=completion.users)],
) -> None:
    """Let a user log in again. For administrators."""
    _change(ctx, username, {"active": True})


@app.command("deactivate")
def deactivate(
    ctx: typer.Context,
    username: Annotated[str, typer.Argument(autocompletion=completion.users)],
) -> None:
    """Forbid a user to log in, and end the user's shells and notebooks. For administrators."""
    _change(ctx, username, {"active": False})


@app.command("rename")
def rename(
    ctx: typer.Context,
    target_user: Annotated[str, typer.Argument(autocompletion=completion.users)],
    new_username: Annotated[str, typer.Argument()],
) -> None:
    """Give a user another name to log in with. For administrators."""
    _change(ctx, target_user, {"username": new_username})


_IN_JSON = {"display_name": "displayName"}


def _change(ctx: typer.Context, username: str, changes: dict[str, Any]) -> None:
    going_on = _named(ctx, username).edit(**changes)
    words = ", ".join(
        f"{_IN_JSON.get(name, name)} is now {json_text(value)}" for name, value in changes.items()
    )
    talk(f"changed {username}: {words}")
    for kind, command in (("experiments", "det e kill"), ("tasks", "det task kill")):
        if ids := " ".join(map(str, going_on.get(kind) or ())):
            talk(f"note: {kind} of {username} go on until somebody ends them: {command} {ids}")


@app.command("change-password")
def change_password(
    ctx: typer.Context,
    username: Annotated[
        str | None, typer.Argument(help="default: yourself; others: administrators")
    ] = None,
) -> None:
    """Change a password: first your old one is asked for, then twice the new one.

    Without a terminal, each is a line of standard input (the new one once), and the old one may be DET_PASS.
    The user's other sessions end; tasks that run go on.
    """
    me = state(ctx).users.whoami()
    if username is None or username == me.username:
        old = _password(me.username)
        me.change_password(_new_password(ctx, me.username), old_password=old)
        talk(f"changed the password of {me.username}; your other sessions have ended")
        return
    other = _named(ctx, username)
    other.edit()  # An empty change: whoever may change nothing of the user is not asked for a password.
    other.change_password(_new_password(ctx, username))
    talk(f"changed the password of {username}, whose sessions have ended")


def _named(ctx: typer.Context, username: str) -> User:
    if len(username) > limits.NAME_CHARS:
        raise CliError(
            f"there is no user of that name: it has {len(username)} characters, and names have at most"
            f" {limits.NAME_CHARS}"
        )
    return state(ctx).users.get_user_by_name(username)


def _new_password(ctx: typer.Context, user: str) -> str:
    """Asked for twice at a terminal, with the length that it needs; that is checked before it is repeated."""
    from determined.common.api import authentication

    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if not line:
            raise CliError("no new password: give it on a line of standard input")
        return line.rstrip("\n")
    least = authentication.shortest_password(state(ctx).session)
    needs = f", at least {least} characters" if least else ""
    new = getpass.getpass(f"New password for user {user!r}{needs}: ")
    if len(new) < least:
        raise CliError(f"{authentication.short(new, least)}: nothing was changed")
    if getpass.getpass("The new password again: ") != new:
        raise CliError("the two new passwords differ: nothing was changed")
    return new


@app.command("link-with-agent-user")
def link_with_agent_user(
    ctx: typer.Context,
    username: Annotated[
        str, typer.Argument(metavar="DET_USERNAME", autocompletion=completion.users)
    ],
    agent_uid: Annotated[int, typer.Option("--agent-uid", min=0, help="number of the account")],
    agent_user: Annotated[str, typer.Option("--agent-user", help="name of the account")],
    agent_gid: Annotated[int, typer.Option("--agent-gid", min=0, help="number of its group")],
    agent_group: Annotated[str, typer.Option("--agent-group", help="name of its group")],
) -> None:
    """Link a user with an account of the agents' machines: the user's tasks run under it. For administrators.

    The link is taken away in Python: client.get_user_by_name(NAME).link_with_agent().
    """
    user = _named(ctx, username)
    user.link_with_agent(agent_uid, agent_gid, agent_user, agent_group)
    talk(
        f"linked {username} with {agent_user} ({agent_uid}), group {agent_group} ({agent_gid}): later tasks "
        "run under this account on agents that run as root"
    )


@app.command("whoami")
def whoami(ctx: typer.Context, json: Json = False) -> None:
    """Show the current user."""
    user = state(ctx).users.whoami()
    if json:
        render.print_json(user.document)
    else:
        echo(user.username)


@defaults.command("describe")
def describe_defaults(ctx: typer.Context, json: Json = False, yaml: Yaml = False) -> None:
    """Print your defaults as YAML; {} if there are none."""
    if json and yaml:
        raise CliError("--json and --yaml exclude each other: leave one of them out")
    found = state(ctx).users.get_user_defaults()
    (render.print_json if json else render.print_yaml)(found)


@defaults.command("set")
def set_defaults(
    ctx: typer.Context,
    config_file: Annotated[
        Path, typer.Argument(help="YAML or JSON file with fields of configurations")
    ],
) -> None:
    """Set your defaults in place of those before.

    They hold for what you submit from now on, beneath its configuration and template, above what its
    workspace and the cluster give.
    """
    from determined import expconf

    # Checked here, too, where lines are known.
    config = expconf.check_defaults(expconf.read_yaml(config_file))
    for remark in state(ctx).users.set_user_defaults(config):
        talk(f"warning: {remark}")
    talk("set your defaults")


@defaults.command("delete")
def delete_defaults(ctx: typer.Context) -> None:
    """Take your defaults away. What was submitted with them stays as it is."""
    state(ctx).users.set_user_defaults({})
    talk("deleted your defaults")


@app.command("list|ls")
def list_users(
    ctx: typer.Context,
    all_: Annotated[bool, typer.Option("--all", "-a", help="also list inactive users")] = False,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List the users."""
    found = state(ctx).users.list_users(None if all_ else True)
    render.show(USERS, found, chosen(json, csv), what="users")
