"""``det run``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from determined.cli.arguments.places import ProjectName
from determined.cli.errors import CliError, talk
from determined.cli.launched import follow, start
from determined.cli.launched.nouns import reference
from determined.cli.launched.publishing import Published
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.wire.kinds import TaskKind

app = typer.Typer(add_completion=False)


@app.command(
    "run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
def run(
    ctx: typer.Context,
    program: Annotated[
        list[str] | None,
        typer.Argument(help="the program and its arguments", metavar="-- PROGRAM [ARGUMENT]"),
    ] = None,
    here: Annotated[
        bool,
        typer.Option(
            "--here", help="send this directory, and bring back what the program changes in it"
        ),
    ] = False,
    fetch: Annotated[
        str | None,
        typer.Option(
            "--fetch",
            help="bring the files of an earlier run into this directory, by its ID or a beginning of it",
            metavar="ID",
        ),
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", min=0, help="slots (GPUs, else CPU slots)")
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", help="resource pool", metavar="NAME")
    ] = None,
    workspace_name: start.Workspace = None,
    project_name: ProjectName = None,
    config_file: start.ConfigFile = None,
    volume: start.Volumes = None,
    include: start.Includes = None,
    config: start.Overrides = None,
    detach: start.Detach = False,
    publish: start.Publish = None,
) -> None:
    """Run a program of this directory on the cluster, as if it ran here: det run --here -- python3 train.py

    The directory is sent as a model definition is (.detignore leaves files out, at most 95 MiB), the output
    is printed, and new and changed files come back when the program has ended, however it has ended. A file
    that was changed here meanwhile stays, and the task's version is put beside it. The exit code is the
    program's; Ctrl-C asks, as in det cmd run.
    """
    from determined.cli.launched import returned

    shared = state(ctx)
    if fetch is not None:
        if program or here:
            raise typer.BadParameter(
                "--fetch brings files of an earlier run: leave the program out"
            )
        returned.fetch(reference(shared, TaskKind.COMMAND, fetch), Path.cwd())
        return
    if not here:
        raise CliError(
            "say det run --here -- PROGRAM: it sends this directory and brings changed files back; "
            "det cmd run PROGRAM runs a program without files"
        )
    if not program and config_file is None:
        raise typer.BadParameter("give the program to run, or --config-file with an entrypoint")
    start.refuse_unattended(publish, detach)
    chosen = [*(config or ()), "return_files=true"]
    if slots is not None:
        chosen.append(f"resources.slots={slots}")
    if pool is not None:
        chosen.append(f"resources.resource_pool={pool}")
    directory = Path.cwd()
    with Published(publish or (), shared) as local:
        given: dict[str, Any] = start.configuration(
            config_file, chosen, volume, program or (), ports=local.ports
        )
        task = start.send(
            shared,
            TaskKind.COMMAND,
            given,
            directory,
            include,
            workspace=workspace_name,
            project=project_name,
        )
        if detach:
            echo(task.id)
            return
        talk(f"command {task.id}")
        local.start(task.id)
        code = follow.follow(task)
    if code == follow.DETACHED:
        task.reload()
    if code == follow.DETACHED and not task.has_ended:
        talk(f"its files, when it has ended: det run --fetch {task.id}")
    else:
        returned.fetch(task, directory, told=True)
    follow.exit_as(code)
