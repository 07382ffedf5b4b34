"""``det attach``"""

from __future__ import annotations

import sys

import typer

from determined.cli.entering.enter import Node, TrialOrTask
from determined.cli.errors import CliError, talk
from determined.cli.state import state

app = typer.Typer(add_completion=False)


@app.command("attach")
def attach(ctx: typer.Context, task: TrialOrTask, node: Node = 0) -> None:
    """Open a terminal beside a trial or another task: its machine or container, its files, its variables.

    The task goes on as before. Ctrl-D leaves; Enter, ~ and a dot leave a terminal that hangs.
    """
    from determined.cli.entering import enter
    from determined.cli.launched import follow
    from determined.common.wire.doors import Hello

    if not sys.stdin.isatty():
        raise CliError("det attach needs a terminal; a program runs by det exec TRIAL -- PROGRAM")
    session = state(ctx).session
    entered = enter.enter(session, enter.task_of(session, task), node)
    more = f", node {node} of {entered.nodes}" if entered.nodes > 1 else ""
    talk(f"beside {task} on agent {entered.agent_id}{more}; Ctrl-D leaves, and the task goes on")
    follow.exit_as(enter.run(entered, Hello(tty=True, banner=True)))
