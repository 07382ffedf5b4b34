"""``det shell``"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.launched import ready, start
from determined.cli.launched.commands import TaskId, add_commands
from determined.cli.launched.nouns import reference, references
from determined.cli.launched.publishing import Published
from determined.cli.printing import echo
from determined.cli.state import State, state
from determined.common.wire.kinds import TaskKind

if TYPE_CHECKING:
    from determined.experimental._task import Task

app = group("Shells: terminals on the cluster's machines.", default="list")

SshOptions = Annotated[
    list[str] | None,
    typer.Argument(
        help="options of ssh and a program to run there, after --: det shell open ID -- -L 8080:localhost:80",
        metavar="-- SSH_OPTION",
    ),
]
ShowCommand = Annotated[bool, typer.Option("--show-ssh-command", help="print the ssh command, too")]
NoSsh = Annotated[
    bool,
    typer.Option("--no-ssh", help="a terminal without ssh; for machines and images without it"),
]


@app.command("start")
def start_shell(
    ctx: typer.Context,
    ssh_opts: SshOptions = None,
    config_file: start.ConfigFile = None,
    workspace_name: start.Workspace = None,
    volume: start.Volumes = None,
    context: start.Context = None,
    include: start.Includes = None,
    config: start.Overrides = None,
    template: start.Template = None,
    detach: start.Detach = False,
    show_ssh_command: ShowCommand = False,
    no_ssh: NoSsh = False,
    publish: start.Publish = None,
) -> None:
    """Start a shell, and open it.

    To leave it does not end it: det shell open ID comes back, det shell kill ID ends it.
    """
    shared = state(ctx)
    start.refuse_unattended(publish, detach)
    with Published(publish or (), shared) as local:
        given = start.configuration(
            config_file, config, volume, kind="ShellConfig", ports=local.ports
        )
        shell = start.send(
            shared, TaskKind.SHELL, given, context, include, template, workspace=workspace_name
        )
        if detach:
            echo(shell.id)
            return
        talk(f"shell {shell.id}")
        local.start(shell.id)
        _open(shared, shell, ssh_opts or [], show_ssh_command, no_ssh)


@app.command("open")
def open_shell(
    ctx: typer.Context,
    shell_id: TaskId,
    ssh_opts: SshOptions = None,
    show_ssh_command: ShowCommand = False,
    no_ssh: NoSsh = False,
    publish: start.Publish = None,
) -> None:
    """Open a shell: a terminal in it, or a program that is named after --.

    --publish is for ports that the shell was started with; ssh's own -L, after --, is for any.
    """
    shared = state(ctx)
    shell = reference(shared, TaskKind.SHELL, shell_id)
    with Published(publish or (), shared) as local:
        local.start(shell.id)
        _open(shared, shell, ssh_opts or [], show_ssh_command, no_ssh)


@app.command("show-ssh-command")
def show_command(ctx: typer.Context, shell_id: TaskId, ssh_opts: SshOptions = None) -> None:
    """Print the ssh command that opens a shell; its files stay until the shell ends."""
    from determined.cli.launched import ssh

    shared = state(ctx)
    shell = reference(shared, TaskKind.SHELL, shell_id)
    ready.wait(shell)
    access = ssh.prepare(_with_ssh(shell.document))
    echo(shlex.join([*access.argv(ssh.proxy_command(shared)), *(ssh_opts or [])]))


app.command("show_ssh_command", hidden=True)(show_command)


@app.command("config-ssh")
def config_ssh(
    ctx: typer.Context,
    shell_ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="IDs, or the beginnings of IDs; without any: all of your own", metavar="ID"
        ),
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="print the blocks, change no configuration")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="take this cluster's shells out again")
    ] = False,
) -> None:
    """Make shells known to ssh, scp, rsync and VS Code, as det-ID.

    It writes a separate file, which ~/.ssh/config includes. Run it again when shells have started or ended.
    """
    from determined.cli.launched import ssh, ssh_config

    shared = state(ctx)
    if remove:
        had = ssh_config.remove(shared.address.url)
        talk("removed" if had else "nothing to remove")
        return
    found = shared.tasks.list_tasks(TaskKind.SHELL, [shared.username])
    ended = {one.id for one in found if one.has_ended}
    for shell_id in ssh.kept():
        if shell_id in ended:
            ssh.forget(shell_id)
    alive = [one for one in found if one.state == "RUNNING"]
    blocks, hosts = [], []
    for shell in references(shared, TaskKind.SHELL, shell_ids) if shell_ids else alive:
        ready.wait(shell)
        facts = shell.document
        if facts.get("noSsh"):
            talk(f"shell {shell.id} left out: {facts['noSsh']}")
            continue
        blocks.append(ssh.block(ssh.prepare(facts), facts, ssh.proxy_command(shared)))
        hosts.append(ssh.host(shell.id))
    text = "\n".join(blocks)
    if print_only:
        echo(text, end="")
        return
    path = ssh_config.write(shared.address.url, text)
    if hosts:
        talk(f"ssh, scp, rsync and VS Code know {', '.join(hosts)} now ({path})")
    else:
        talk("no shell of yours that ssh can enter runs: start one by det shell start -d")


def _with_ssh(shell: dict[str, Any]) -> dict[str, Any]:
    if shell.get("noSsh"):
        raise CliError(
            f"shell {shell['id']}: {shell['noSsh']}; det shell open --no-ssh {shell['id']} opens a terminal"
        )
    return shell


def _open(
    shared: State, shell: Task, ssh_opts: list[str], show_ssh_command: bool, no_ssh: bool
) -> None:
    """Raises Exit with the exit code of the session."""
    from determined.cli.launched import ssh, terminal

    if no_ssh and (ssh_opts or show_ssh_command):
        raise typer.BadParameter("--no-ssh goes without ssh: leave its options out")
    ready.wait(shell)
    facts, shell_id = shell.document, shell.id
    key = ssh.private_key(facts)
    why = str(facts.get("noSsh") or "") or ("" if ssh.is_here() else "ssh is not installed here")
    if not why and not ssh_opts and not show_ssh_command:
        why = str(facts.get("noTty") or "")
    if why and not no_ssh:
        if ssh_opts or show_ssh_command:
            raise CliError(
                f"shell {shell_id}: {why}, so it takes no options of ssh and no program; det shell open"
                f" --no-ssh {shell_id} opens a terminal, det cmd run runs a program"
            )
        talk(f"a terminal without ssh: {why}")
    if no_ssh or why:
        code = terminal.run(shared.session, shell_id, key)
        if code == terminal.LOST:
            terminal.lost(shell_id)
    else:
        access = ssh.prepare(facts)
        if show_ssh_command:
            echo(shlex.join([*access.argv(ssh.proxy_command(shared)), *ssh_opts]))
        code = ssh.run(shared, access, ssh_opts)
    _say_how_to_come_back(shell)
    raise typer.Exit(code)


def _say_how_to_come_back(shell: Task) -> None:
    from determined.cli.launched import ssh
    from determined.common.api import errors

    try:
        shell.reload()
    except errors.APIException:
        return
    if shell.state in ("TERMINATED", "TERMINATING"):
        ssh.forget(shell.id)
        how = shell.document.get("exitStatus")
        talk(f"shell {shell.id} has ended{f': {how}' if how else ''}")
        return
    talk(
        f"shell {shell.id} goes on: det shell open {shell.id} comes back, det shell kill {shell.id} ends it"
    )


add_commands(app, TaskKind.SHELL)
