"""The flow that deletes from checkpoint storage: files first, rows after.

It runs where the storage is reachable. What to delete was decided by the service, which is told of each
checkpoint once its files are gone. Killed anywhere, the flow is run again by the service and finds
the rest; deleting what is gone is no error, so two runs at once do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import prefect
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from determined import errors, storage
from determined.common.api import Session

from .service import open_session

TELL_SECONDS = 1.0
TELL_AFTER = 100
SHOWN_ERRORS = 3


@prefect.flow(
    name="checkpoint-gc",
    description="Deletes from checkpoint storage what the service names.",
    persist_result=False,
)
def delete_from_storage(deletion_id: int) -> State[Any]:
    """Carries out one deletion.

    Args:
        deletion_id: as the service numbers them.
    """
    with open_session() as session:
        return Deletion(session, deletion_id).run()


class Deletion:
    """One pass over what a deletion names."""

    def __init__(self, session: Session, deletion_id: int) -> None:
        self._session = session
        self._path = f"/internal/v1/deletions/{deletion_id}"
        self._log = get_run_logger()
        self._globs: list[str] | None = None
        self._left: dict[str, dict[str, int]] = {}
        self._told_at = time.monotonic()
        self._count = 0
        self._errors: list[str] = []

    def run(self) -> State[Any]:
        """Deletes everything that can be deleted, and says what could not be."""
        work = self._session.get(self._path)
        if work["state"] != "REQUESTED":
            return Completed(message="nothing is left to do")
        self._globs = work["globs"]
        for place in work["places"]:
            try:
                manager = storage.build(place["storage"])
            except errors.StorageError as error:
                self._errors.append(str(error))
                continue
            self._delete(manager, place["checkpoints"])
            self._clear(manager, place)
        self._tell()
        message = self._message()
        self._session.post(f"{self._path}/end", json={"error": self._error()})
        return Failed(message=message) if self._errors else Completed(message=message)

    def _delete(self, manager: storage.StorageManager, uuids: Collection[str]) -> None:
        for uuid in uuids:
            try:
                self._left[uuid] = manager.delete(uuid, self._globs)
            except errors.StorageError as error:
                self._log.error("checkpoint %s is not deleted: %s", uuid, error)
                self._errors.append(str(error))
                continue
            self._count += 1
            overdue = time.monotonic() - self._told_at >= TELL_SECONDS
            if overdue or len(self._left) >= TELL_AFTER:
                self._tell()

    def _clear(self, manager: storage.StorageManager, place: dict[str, Any]) -> None:
        """What belongs to no checkpoint that the service knows of."""
        try:
            if place["unfinished_of"]:
                for name in manager.sweep(place["unfinished_of"], self._known, self._has_ended):
                    self._log.info("removed %s, left by a process that was killed", name)
            for key in place["discard"]:
                manager.discard(key)
        except errors.StorageError as error:
            self._log.error("%s", error)
            self._errors.append(str(error))

    def _has_ended(self) -> bool:
        """Not any more, if somebody has continued the experiment meanwhile."""
        ended: bool = self._session.get(self._path)["experiment_has_ended"]
        return ended

    def _known(self, uuids: Collection[str]) -> Collection[str]:
        answer = self._session.post("/internal/v1/checkpoints/known", json={"uuids": list(uuids)})
        known: list[str] = answer["uuids"]
        return known

    def _tell(self) -> None:
        if self._left:
            self._session.post(f"{self._path}/deleted", json={"left": self._left})
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
        return f"{done}; {self._error()}" if self._errors else done
