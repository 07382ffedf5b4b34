"""Launching commands and the like, and what became of them: for `det` and for flows."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from determined.common.api.session import Session

# Packing and storing take a while if the context directory is large.
TIMEOUT_S = 300.0
KILLED_BY_SIGNAL = 128


@dataclass(frozen=True)
class TaskLaunch:
    """A request that launches a task. ``plural``: of its kind, as in addresses (``commands``); ``more``:
    fields of that kind. ``key``: the same launch, sent again, is the same task."""

    plural: str
    config: dict[str, Any]
    files: list[dict[str, Any]] = field(default_factory=list)
    template: str | None = None
    workspace_id: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    key: str = field(default_factory=lambda: str(uuid.uuid4()))

    def send(self, session: Session) -> dict[str, Any]:
        """The service's answer. Raises BadRequestException if the service refuses it."""
        body = {
            "config": self.config,
            "files": self.files or None,
            "templateName": self.template,
            "workspaceId": self.workspace_id,
            "idempotencyKey": self.key,
            **self.more,
        }
        given = {name: value for name, value in body.items() if value is not None}
        return dict(session.post(f"/api/v1/{self.plural}", json=given, timeout=TIMEOUT_S))


def files_of(
    context: str | Path | None, includes: Iterable[str | Path] = ()
) -> list[dict[str, Any]]:
    """The files of a context directory, and others, as the API wants them. Raises ContextError."""
    listed = list(includes)
    if context is None and not listed:
        return []
    from determined.common import context as packing

    if context is not None and not Path(context).is_dir():
        raise packing.ContextError(
            f"{context} is not a directory; to send a single file, give it with -i (--include)"
        )
    return packing.to_json(packing.pack(context, listed))


def exit_code(task: Mapping[str, Any]) -> int:
    """The exit code of an ended task, as in a shell: the code of its process, 128 plus its signal, else 1."""
    if task.get("exitCode") is not None:
        return int(task["exitCode"])
    if task.get("exitSignal"):
        return KILLED_BY_SIGNAL + int(task["exitSignal"])
    return 0 if task.get("taskState") == "STATE_COMPLETED" else 1


def warnings_of(answer: Mapping[str, Any]) -> list[str]:
    """The warnings in the service's ``answer`` to a submission, in words.

    Its ``warnings`` are names (``LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED``), its ``remarks`` sentences; where
    there are sentences, one stands for each name.
    """
    remarks = list(answer.get("remarks") or ())
    if remarks:
        return remarks
    names = answer.get("warnings") or ()
    return [name.removeprefix("LAUNCH_WARNING_").replace("_", " ").lower() for name in names]
