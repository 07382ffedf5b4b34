"""The stacks of a task's processes, on each of its machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from determined.cli.entering import enter
from determined.cli.errors import talk
from determined.cli.printing import echo
from determined.common.wire import doors
from determined.common.wire.doors import Hello

if TYPE_CHECKING:
    from determined.common.api import Session


def dump(session: Session, given: str, node: int | None) -> int:
    """Prints them, one machine after the other. 1: one of them could not be asked."""
    from determined.common.api import errors

    task = enter.task_of(session, given)
    at, nodes, failed = node or 0, (node or 0) + 1, 0
    while at < nodes:
        try:
            entered = enter.enter(session, task, at)
        except errors.APIException as error:
            # The first one knows how many there are.
            if node is not None or at == 0:
                raise
            talk(f"error: node {at}: {error.message}")
            failed = 1
        else:
            if node is None:
                nodes = entered.nodes
            if nodes > 1:
                echo(f"node {at}, agent {entered.agent_id}")
            # Its options keep the task's files from being imported in the place of the platform's.
            hello = Hello(["python3", "-P", "-m", doors.STACKS])
            failed = enter.run(entered, hello, typed=False) or failed
        at += 1
    return failed
