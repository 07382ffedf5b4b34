"""``det exec``"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli.entering.enter import Node, TrialOrTask
from determined.cli.state import state

app = typer.Typer(add_completion=False)


@app.command("exec")
def exec_(
    ctx: typer.Context,
    task: TrialOrTask,
    program: Annotated[
        list[str],
        typer.Argument(
            help="the program and its arguments, after --", metavar="-- PROGRAM [ARGUMENT]"
        ),
    ],
    node: Node = 0,
    tty: Annotated[
        bool,
        typer.Option("-t", "--tty", help="with a terminal, for programs that one types into"),
    ] = False,
) -> None:
    """Run a program beside a trial or another task, and print what it prints.

    It runs on the same machine or in the same container, in the same directory, as the same account and with
    the same variables, but for the task's token. The exit code is the program's. It ends with the task, and
    with Ctrl-C here.
    """
    from determined.cli.entering import enter
    from determined.cli.launched import follow

    follow.exit_as(enter.program(state(ctx).session, task, node, program, tty))
