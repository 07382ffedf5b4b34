"""Deletions, which agents carry out where the files are."""

from __future__ import annotations

import time
from collections.abc import Iterator

from determined.common.api import errors
from determined.common.api.session import Session

DELETION_TIMEOUT_S = 120.0
_PAUSES_S = (0.2, 2.0)


def pauses(timeout_s: float) -> Iterator[None]:
    """Yields at once, and again after pauses that grow from 0.2 s to 2 s, until ``timeout_s`` has passed."""
    deadline = time.monotonic() + timeout_s
    pause, longest = _PAUSES_S
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(pause)
        pause = min(pause * 1.5, longest)


def wait_for_deletion(
    session: Session, deletion_id: int | None, timeout_s: float = DELETION_TIMEOUT_S
) -> bool:
    """Waits until a deletion is done; False if it takes longer than ``timeout_s``. None is done already.

    Raises DeleteFailedException with the reason.
    """
    if deletion_id is None:
        return True
    for _ in pauses(timeout_s):
        found = session.get(f"/api/v1/deletions/{deletion_id}")
        if found["state"] == "STATE_FAILED":
            raise errors.DeleteFailedException(found["reason"])
        if found["state"] == "STATE_DONE":
            return True
    return False
