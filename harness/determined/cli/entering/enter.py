"""A program beside a task that runs: the way in, and what is said there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from determined.cli.arguments.abbreviated import expanded
from determined.cli.errors import CliError, talk
from determined.cli.launched import terminal
from determined.common.wire import doors
from determined.common.wire.doors import Hello

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.common.tunnel import Tunnel
    from determined.experimental._task import Task

WAIT_SECONDS = doors.OPEN_SECONDS + 10

TrialOrTask = Annotated[
    str,
    typer.Argument(
        help="a trial's ID, or the ID (or its beginning) of a command, notebook, shell or other task",
        metavar="TRIAL|TASK",
    ),
]
Node = Annotated[
    int, typer.Option("--node", help="of a trial on several machines: which one", min=0)
]


@dataclass(frozen=True)
class Entered:
    """An open way into a task. ``nodes``: on how many machines the task runs."""

    tunnel: Tunnel
    secret: str
    agent_id: str
    nodes: int


def task_of(session: Session, given: str) -> Task:
    """The task that a trial's ID, or the beginning of a task's, means. Raises CliError."""
    from determined.experimental._task import Task, TaskVerbs

    if given.isdecimal() and len(given) < 18:
        from determined.experimental import Trial

        trial = Trial(int(given), session)
        trial.reload()
        if not trial.task_id:
            raise CliError(f"trial {given} does not run now: there is nothing to enter")
        return Task(session, trial.task_id)

    def known() -> list[str]:
        return [one["taskId"] for one in TaskVerbs(session).list_allocations().values()]

    (task_id,) = expanded([given], known, "task that runs")
    return Task(session, task_id)


def enter(session: Session, task: Task, node: int) -> Entered:
    """Raises the errors of the API, with the service's words."""
    from determined.common import tunnel
    from determined.common.api import errors

    for again in (False, True):
        found = task.open_door(node, again=again, timeout_s=WAIT_SECONDS)
        try:
            opened = tunnel.connect(session.master, session.token, f"{task.id}:{found['port']}")
        except errors.APIException:
            # Its supervisor has closed it at this moment, or was killed: it is asked once more.
            if again:
                raise
        else:
            return Entered(opened, found["secret"], found["agentId"], int(found["nodes"]))
    raise AssertionError


def run(entered: Entered, hello: Hello, *, typed: bool = True) -> int:
    """The exit code of the program. Raises CliError when it cannot be started."""
    given = {"secret": entered.secret, **hello.to_json()}
    for name in ("term", "rows", "columns"):  # this terminal's are told
        given.pop(name)
    code = terminal.hold(entered.tunnel, given, tty=hello.tty, typed=typed)
    if code == terminal.LOST:
        talk("\nthe connection has ended: the task has ended, or was stopped, or the service was")
    return code


def program(session: Session, given: str, node: int, argv: Sequence[str], tty: bool) -> int:
    """Runs a program beside the task; its exit code."""
    _check(argv)
    if tty and not sys.stdin.isatty():
        raise CliError("--tty needs a terminal here: leave it out where standard input is a file")
    entered = enter(session, task_of(session, given), node)
    try:
        return run(entered, Hello(list(argv), tty=tty))
    except KeyboardInterrupt:
        # The program is ended with the connection.
        entered.tunnel.close()
        return 130


def _check(argv: Sequence[str]) -> None:
    size = sum(len(word.encode(errors="surrogateescape")) for word in argv)
    if len(argv) > doors.MOST_WORDS or size > doors.MOST_BYTES // 2:
        raise CliError(
            f"the program has {len(argv)} words and {size} bytes; {doors.MOST_WORDS} words and"
            f" {doors.MOST_BYTES // 2} bytes are allowed: put the rest into a file"
        )
