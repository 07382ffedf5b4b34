"""Posting reports until the service has answered."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from determined import errors
from determined.common.backoff import Backoff
from determined.core._connection import Connection
from determined.core._report import Report

logger = logging.getLogger("determined.core")

# Statuses that say "this content", so that sending the halves finds the one report at fault.
_CONTENT_STATUSES = frozenset({400, 413, 422})
_TRANSIENT_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
RETRY_SECONDS = (0.05, 5.0)

Encoded = tuple[Report, bytes]


class Delivery:
    """A stream of numbered batches, one after the other.

    ``pause(seconds)`` is called between two tries and returns whether there is time for another.
    ``patience`` (s): after a fifth of it a service that answers with a fault (500) is not asked again. Not
    thread-safe.
    """

    def __init__(
        self,
        connection: Connection,
        trial_id: int,
        run_id: int,
        patience: float,
        pause: Callable[[float], bool],
    ) -> None:
        self._connection = connection
        self._path = f"/api/v1/trials/{trial_id}/metrics/batch"
        self._run_id = run_id
        self._patience = patience
        self._pause = pause
        self._stream = str(uuid.uuid4())
        self._seq = 0

    def reports(self, batch: list[Encoded]) -> Iterator[tuple[list[Encoded], BaseException | None]]:
        """Send the reports, in parts if the whole is refused. Yields each part with the reason why it will
        never be stored, or with None once it is stored.
        """
        self._seq += 1
        head = f'{{"stream":"{self._stream}","seq":{self._seq},"run_id":{self._run_id},"reports":['
        body = head.encode() + b",".join(part for _, part in batch) + b"]}"
        failure = self._post(self._path, content=body)
        status = getattr(failure, "status_code", None)
        if status in _CONTENT_STATUSES and len(batch) > 1:
            # The service stores nothing of a refused batch. Its halves are tried, so that only the bad report
            # is lost.
            middle = len(batch) // 2
            yield from self.reports(batch[:middle])
            yield from self.reports(batch[middle:])
            return
        yield batch, _explained(failure, _name(batch))

    def latest(self, path: str, body: dict[str, Any]) -> BaseException | None:
        """Post ``body``. Returns why it will never be stored, or None once it is."""
        return _explained(self._post(path, json=body), f"{body} for {path}")

    def _post(self, path: str, **content: Any) -> BaseException | None:
        """POST until the service answers. Returns None, or why the content will never be stored."""
        from determined.common.api.errors import APIException

        backoff, away, broken_since = Backoff(*RETRY_SECONDS), False, None
        while True:
            try:
                self._connection.post(path, max_retries=0, **content)
            except errors.AllocationEnded as error:
                return error
            except APIException as error:
                status = error.status_code
                if status is not None and status not in _TRANSIENT_STATUSES:
                    if status < 500:
                        return error
                    # A fault of the service: this content may never be taken.
                    now = time.monotonic()
                    broken_since = broken_since or now
                    if now - broken_since > self._patience / 5:
                        return error
                problem = error
            else:
                if away:
                    logger.info("the service accepts reports again")
                return None
            if not away:
                away = True
                logger.warning(
                    "reports wait, because the service does not accept them: %s", problem
                )
            if not self._pause(backoff.next_delay()):
                return TimeoutError(f"no answer for {self._patience:.0f} s: {problem}")


def _name(batch: list[Encoded]) -> str:
    first = batch[0][0]
    what = f"{len(batch)} reports" if len(batch) > 1 else "a report"
    return f"{what} ({first.group}, steps_completed={first.steps_completed})"


def _explained(failure: BaseException | None, what: str) -> BaseException | None:
    if failure is None or isinstance(failure, errors.AllocationEnded):
        return failure
    if isinstance(failure, TimeoutError):
        return errors.ReportsLost(f"{what} could not be stored: {failure}")
    return errors.ReportRefused(f"the service refused {what}: {failure}")
