"""Waiting until a task can be used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from determined.cli.errors import CliError, talk
from determined.cli.launched.nouns import noun_of

if TYPE_CHECKING:
    from determined.experimental._task import Task

PATIENCE_S = 2.0
"""What takes longer is told, with the reason."""
ASK_S = (0.05, 1.0)


def wait(task: Task) -> None:
    """Waits until the task is ready; says meanwhile what it waits for.

    Raises CliError when it has ended.
    """
    noun = noun_of(task)
    began = time.monotonic()
    told, delay = "", ASK_S[0]
    while True:
        task.reload()
        if task.state == "RUNNING":
            return
        if task.state in ("TERMINATED", "TERMINATING"):
            how = task.document.get("exitStatus")
            raise CliError(
                f"{noun.title} {task.id} has ended{f': {how}' if how else ''}; its output:"
                f" det {noun.group} logs {task.id}"
            )
        if time.monotonic() - began > PATIENCE_S:
            words = _reason(task)
            if words != told:
                talk(f"{noun.title} {task.id} waits: {words}")
                told = words
        time.sleep(delay)
        delay = min(delay * 1.15, ASK_S[1])


def _reason(task: Task) -> str:
    agent = (task.document.get("container") or {}).get("parent") or "its agent"
    match task.state:
        case "QUEUED":
            return task.waits_because() or "for its slots"
        case "WAITING":
            return f"its server starts on agent {agent}"
        case _:
            return f"agent {agent} prepares it (files, packages, its image)"
