"""Requests and reports of the flow that deletes from checkpoint storage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from determined.common.wire.message import Message, checked

REQUESTED = "REQUESTED"
DONE = "DONE"
FAILED = "FAILED"
"""States of a deletion: only a requested deletion has work left."""


@checked
@dataclass(frozen=True, slots=True)
class StorageDeletions(Message):
    """The things to delete from one storage.

    ``unfinished_of``: prefixes of the names of owners; their checkpoints that were never finished or
    reported are deleted. ``discard``: paths.
    """

    storage: dict[str, Any]
    checkpoints: list[str] = field(default_factory=list)
    unfinished_of: str | None = None
    discard: list[str] = field(default_factory=list)


@checked
@dataclass(frozen=True, slots=True)
class DeletionWork(Message):
    """The work of a run. ``globs``: delete only these files of each checkpoint; None: all files; empty: none,
    only say what is there. ``task_id``: the task whose log takes the run's messages."""

    kind: str
    state: str
    experiment_id: int | None = None
    experiment_has_ended: bool = False
    globs: list[str] | None = None
    places: list[StorageDeletions] = field(default_factory=list)
    task_id: str | None = None


@checked
@dataclass(frozen=True, slots=True)
class Deleted(Message):
    """The files that are left of each checkpoint (path to bytes); none means that the checkpoint is gone."""

    left: dict[UUID, dict[str, int]]


@checked
@dataclass(frozen=True, slots=True)
class DeletionEnd(Message):
    """The end of a run. ``error``: what could not be deleted, and why."""

    error: str | None = None


@checked
@dataclass(frozen=True, slots=True)
class CheckpointNames(Message):
    """Checkpoints found in a storage; in the answer, those of them that the service knows."""

    uuids: list[UUID]
