"""Waiting until a task can be used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from determined.cli.errors import CliError, talk
from determined.cli.launched.nouns import Noun

if TYPE_CHECKING:
    from determined.common.api import Session

PATIENCE_S = 2.0
"""What takes longer is told, with the reason."""
ASK_S = (0.05, 1.0)


def wait(session: Session, noun: Noun, task_id: str) -> dict[str, Any]:
    """The task's JSON once it is ready; says meanwhile what it waits for.

    Raises CliError when it has ended.
    """
    began = time.monotonic()
    told, delay = "", ASK_S[0]
    while True:
        task: dict[str, Any] = session.get(f"{noun.path}/{task_id}")[noun.name]
        state = task["state"]
        if state == "STATE_RUNNING":
            return task
        if state in ("STATE_TERMINATED", "STATE_TERMINATING"):
            why = f": {task['exitStatus']}" if task.get("exitStatus") else ""
            raise CliError(
                f"{noun.title} {task_id} has ended{why}; its output: det {noun.word} logs {task_id}"
            )
        if time.monotonic() - began > PATIENCE_S:
            words = _reason(session, task)
            if words != told:
                talk(f"{noun.title} {task_id} waits: {words}")
                told = words
        time.sleep(delay)
        delay = min(delay * 1.15, ASK_S[1])


def _reason(session: Session, task: dict[str, Any]) -> str:
    agent = (task.get("container") or {}).get("parent") or "its agent"
    match task["state"]:
        case "STATE_QUEUED":
            why = session.get(f"/api/v1/job-queues/{task['jobId']}/explanation")
            reasons = [one["reason"] for one in why.get("waiting") or ()]
            return str(reasons[0]) if reasons else "for its slots"
        case "STATE_WAITING":
            return f"its server starts on agent {agent}"
        case _:
            return f"agent {agent} prepares it (files, packages, its image)"
