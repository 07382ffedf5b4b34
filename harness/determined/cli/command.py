"""``det command`` (``det cmd``)"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.launched import follow, start
from determined.cli.launched.commands import add_commands
from determined.cli.launched.publishing import Published
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.wire.kinds import TaskKind

app = group("Commands: programs that run on the cluster's machines.", default="list")

Words = Annotated[
    list[str] | None,
    typer.Argument(
        help="the program and its arguments; what looks like an option of det comes after --",
        metavar="PROGRAM [ARGUMENT]",
    ),
]


@app.command(
    "run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
def run(
    ctx: typer.Context,
    entrypoint: Words = None,
    config_file: start.ConfigFile = None,
    volume: start.Volumes = None,
    context: start.Context = None,
    include: start.Includes = None,
    workspace_name: start.Workspace = None,
    config: start.Overrides = None,
    template: start.Template = None,
    detach: start.Detach = False,
    publish: start.Publish = None,
) -> None:
    """Run a program on the cluster, and print what it prints.

    The exit code is the program's; 128 and the number of the signal that ended it. Ctrl-C asks whether the
    command shall go on without this terminal; a second one kills it.
    """
    if not entrypoint and config_file is None:
        raise typer.BadParameter("give the program to run, or --config-file with an entrypoint")
    start.refuse_unattended(publish, detach)
    shared = state(ctx)
    with Published(publish or (), shared) as local:
        given = start.configuration(
            config_file, config, volume, entrypoint or (), ports=local.ports
        )
        task = start.send(
            shared, TaskKind.COMMAND, given, context, include, template, workspace=workspace_name
        )
        if detach:
            echo(task.id)
            return
        talk(f"command {task.id}")
        local.start(task.id)
        follow.exit_as(follow.follow(task))


add_commands(app, TaskKind.COMMAND)
