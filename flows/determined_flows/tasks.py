"""The flows of what people launch: commands, notebooks, shells, TensorBoards, generic tasks.

Their runs are what Prefect shows. The processes are started by agents, as the service orders; no worker
executes such a run, unless somebody makes one by hand.
"""

from __future__ import annotations

import prefect

from determined.common.wire.prefect import TASK_FLOWS

_HOW = {
    "command": "det cmd run",
    "notebook": "det notebook start",
    "shell": "det shell start",
    "tensorboard": "det tensorboard start",
    "generic": "det task create",
}


class NotByHand(Exception):
    """Somebody has made, or retried, the run of a task in Prefect."""


def _refuse(kind: str, task_id: str) -> None:
    raise NotByHand(
        f"this run shows a {kind} of the cluster (task {task_id}) and starts nothing: use `{_HOW[kind]}`"
    )


@prefect.flow(name=TASK_FLOWS[0], description="One command.", persist_result=False)
def run_command(task_id: str) -> None:
    """Raises NotByHand."""
    _refuse("command", task_id)


@prefect.flow(name=TASK_FLOWS[1], description="One notebook.", persist_result=False)
def run_notebook(task_id: str) -> None:
    """Raises NotByHand."""
    _refuse("notebook", task_id)


@prefect.flow(name=TASK_FLOWS[2], description="One shell.", persist_result=False)
def run_shell(task_id: str) -> None:
    """Raises NotByHand."""
    _refuse("shell", task_id)


@prefect.flow(name=TASK_FLOWS[3], description="One TensorBoard.", persist_result=False)
def run_tensorboard(task_id: str) -> None:
    """Raises NotByHand."""
    _refuse("tensorboard", task_id)


@prefect.flow(name=TASK_FLOWS[4], description="One generic task.", persist_result=False)
def run_generic(task_id: str) -> None:
    """Raises NotByHand."""
    _refuse("generic", task_id)
