"""Waiting until a deletion is done."""

from __future__ import annotations

import time

from determined.cli.errors import CliError, talk
from determined.common.api.session import Session

PATIENCE_SECONDS = 120.0


class Pauses:
    """Pauses between polls, short at first.

    :meth:`wait` returns False once :data:`PATIENCE_SECONDS` have passed.
    """

    def __init__(self) -> None:
        self._deadline = time.monotonic() + PATIENCE_SECONDS
        self._pause = 0.2

    def wait(self) -> bool:
        if time.monotonic() > self._deadline:
            return False
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, 2.0)
        return True


def wait_for_deletion(session: Session, deletion_id: int | None, done: str) -> None:
    """Prints ``done`` after the deletion; raises CliError with the reason if it failed."""
    pauses = Pauses()
    while deletion_id is not None:
        found = session.get(f"/api/v1/deletions/{deletion_id}")
        if found["state"] == "STATE_FAILED":
            raise CliError(found["reason"])
        if found["state"] == "STATE_DONE":
            break
        if not pauses.wait():
            talk(
                f"deletion {deletion_id} is not done yet; check that an agent is running to carry it"
                " out (det a list)"
            )
            return
    talk(done)
