"""The flow that deletes from checkpoint storage: files first, rows after.

It runs where the storage is reachable. The service decides what to delete, and the flow reports each
checkpoint whose files are gone. If the flow is killed, the service runs it again and the new run deletes the
rest. Deleting a missing file is not an error, so two runs at once do no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any
from uuid import UUID

import prefect
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from determined import errors, storage
from determined.common.api import Session
from determined.common.wire import paths
from determined.common.wire.deletions import (
    REQUESTED,
    CheckpointNames,
    Deleted,
    DeletionEnd,
    DeletionWork,
    StorageDeletions,
)
from determined.common.wire.legs import LogLine
from determined.common.wire.message import Message
from determined.common.wire.prefect import DELETION_FLOW

from .service import open_session

TELL_SECONDS = 1.0
TELL_AFTER = 100
SHOWN_ERRORS = 3


@prefect.flow(
    name=DELETION_FLOW,
    description="Deletes files from checkpoint storage, as the service orders.",
    persist_result=False,
)
def delete_from_storage(deletion_id: int) -> State[Any]:
    """Carries out one deletion.

    Args:
        deletion_id: the service's number of the deletion.
    """
    with open_session() as session:
        return Deletion(session, deletion_id).run()


class Deletion:
    """One pass over the checkpoints and files of a deletion."""

    def __init__(self, session: Session, deletion_id: int) -> None:
        self._session = session
        self._id = deletion_id
        self._log = get_run_logger()
        self._task_id: str | None = None
        self._lines: list[LogLine] = []
        self._globs: list[str] | None = None
        self._left: dict[UUID, dict[str, int]] = {}
        self._told_at = time.monotonic()
        self._count = 0
        self._errors: list[str] = []

    def run(self) -> State[Any]:
        """Deletes everything that can be deleted, and reports what could not be."""
        work = self._work()
        if work.state != REQUESTED:
            return Completed(message="nothing is left to do")
        self._globs = work.globs
        self._task_id = work.task_id
        for place in work.places:
            try:
                manager = storage.build(place.storage)
            except errors.StorageError as error:
                self._fail(str(error), error)
                continue
            self._delete(manager, place.checkpoints)
            self._clear(manager, place)
        message = self._message()
        self._say(logging.INFO, message)
        self._tell()
        self._post(paths.DELETION_END, DeletionEnd(self._error()))
        return Failed(message=message) if self._errors else Completed(message=message)

    def _work(self) -> DeletionWork:
        path = paths.DELETION.format(deletion_id=self._id)
        return DeletionWork.from_json(self._session.get(path))

    def _post(self, where: str, message: Message) -> None:
        self._session.post(where.format(deletion_id=self._id), json=message.to_json())

    def _delete(self, manager: storage.StorageManager, uuids: Collection[str]) -> None:
        for uuid in uuids:
            try:
                if self._globs == []:
                    self._left[UUID(uuid)] = manager.present(uuid)
                else:
                    self._left[UUID(uuid)] = manager.delete(uuid, self._globs)
            except errors.StorageError as error:
                verb = "looked at" if self._globs == [] else "deleted"
                self._fail(f"checkpoint {uuid} is not {verb}: {error}", error)
                continue
            self._count += 1
            overdue = time.monotonic() - self._told_at >= TELL_SECONDS
            if overdue or len(self._left) >= TELL_AFTER:
                self._tell()

    def _clear(self, manager: storage.StorageManager, place: StorageDeletions) -> None:
        """Deletes files that belong to no checkpoint known to the service."""
        try:
            if place.unfinished_of:
                for name in manager.sweep(place.unfinished_of, self._known, self._has_ended):
                    self._say(logging.INFO, f"removed {name}, left by a process that was killed")
            for key in place.discard:
                manager.discard(key)
        except errors.StorageError as error:
            self._fail(str(error), error)

    def _has_ended(self) -> bool:
        """True if the experiment has ended; a user may have continued it meanwhile."""
        return self._work().experiment_has_ended

    def _known(self, uuids: Collection[str]) -> Collection[str]:
        found = CheckpointNames([UUID(uuid) for uuid in uuids])
        answer = self._session.post(paths.KNOWN_CHECKPOINTS, json=found.to_json())
        return [str(uuid) for uuid in CheckpointNames.from_json(answer).uuids]

    def _fail(self, words: str, error: errors.StorageError) -> None:
        self._say(logging.ERROR, words)
        self._errors.append(str(error))

    def _say(self, level: int, words: str) -> None:
        """Logs ``words`` with the run in Prefect, and (at the next :meth:`_tell`) with the task."""
        self._log.log(level, "%s", words)
        line: LogLine = {
            "t": time.time(),
            "stdtype": "stdout",
            "level": logging.getLevelName(level),
            "rank": None,
            "source": DELETION_FLOW,
            "log": f"{words}\n",
        }
        self._lines.append(line)

    def _tell(self) -> None:
        if self._task_id is not None and self._lines:
            body = {"task_id": self._task_id, "lines": self._lines}
            self._session.post(paths.LOGS, json=body)
            self._lines = []
        if self._left:
            self._post(paths.DELETED, Deleted(self._left))
            self._left = {}
        self._told_at = time.monotonic()

    def _error(self) -> str | None:
        if not self._errors:
            return None
        shown = "; ".join(self._errors[:SHOWN_ERRORS])
        more = len(self._errors) - SHOWN_ERRORS
        return shown + (f"; and {more} more" if more > 0 else "")

    def _message(self) -> str:
        what = "checkpoint" if self._count == 1 else "checkpoints"
        done = f"{self._count} {what} deleted"
        if self._globs is not None:
            done = f"files deleted from {self._count} {what}"
        if self._globs == []:
            done = f"{self._count} {what} looked at, nothing deleted"
        return f"{done}; {self._error()}" if self._errors else done
