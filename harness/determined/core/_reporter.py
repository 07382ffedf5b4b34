"""Sends reports to the service: a queue in memory, one thread, batches in order.

A report costs the training loop a copy of its metrics and an append. While the service is away, reports
wait in memory, and then in a file, so that training goes on. The thread starts with the first report. A
batch is sent when it is full, or half a second after its first report. It is sent at once if it holds a
validation that the searcher needs, or if a checkpoint, the searcher or the exit waits for it. Each batch
carries the stream's id and a number, so the service stores a batch that is sent twice only once.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from determined.common import unsent
from determined.core._connection import Connection
from determined.core._delivery import Delivery, Encoded
from determined.core._exit import end_script
from determined.core._metrics import Freezer
from determined.core._report import Report
from determined.core._spool import LIMIT_BYTES, Spool, SpoolFull

logger = logging.getLogger("determined.core")

# A service that is away for ten minutes costs no report.
PATIENCE_S = 900.0


class Reporter:
    """Sends a trial's reports.

    ``max_reports`` and ``max_bytes`` limit the size of a batch, ``interval`` (s) its age. ``capacity`` is
    the number of values that may wait in memory, ``spool_bytes`` the bytes that may wait in a file before
    reporting blocks. ``patience`` (s) is how long :meth:`flush` and :meth:`close` wait for a service that
    is away. ``urgent`` is the group whose reports are sent at once.

    When the service refuses a report, the next call of any method raises the refusal. Thread-safe. After a
    fork the child has a new stream, and :meth:`report` returns there when the report is stored: such a
    process may end at once (``multiprocessing`` ends it by ``os._exit``, a pool by SIGTERM).
    """

    def __init__(
        self,
        connection: Connection,
        trial_id: int,
        run_id: int,
        *,
        max_reports: int = 1000,
        max_bytes: int = 512 * 1024,
        interval: float = 0.5,
        capacity: int = 1_000_000,
        spool_bytes: int = LIMIT_BYTES,
        patience: float = PATIENCE_S,
        urgent: str | None = "validation",
    ) -> None:
        self._connection = connection
        self._trial_id = trial_id
        self._run_id = run_id
        self._max_reports = max_reports
        self._max_bytes = max_bytes
        self._interval = interval
        self._capacity = capacity
        self._spool_bytes = spool_bytes
        self._patience = patience
        self._urgent_group = urgent
        self._freezer = Freezer()
        self._forked = False
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._delivery = Delivery(
            self._connection, self._trial_id, self._run_id, self._patience, self._pause
        )
        # Oldest first: reports on their way, in the file, taken over by the thread, pending.
        self._spool = Spool(self._spool_bytes)
        self._outgoing: deque[Report] = deque()
        self._pending: list[Report] = []
        self._latest: dict[str, dict[str, Any]] = {}
        # Values that wait in memory, pending or on their way.
        self._size = 0
        # Reports and latest values accepted, and settled (stored or refused).
        self._accepted = 0
        self._settled = 0
        # Counts reports only: those that would be lost if the process ended without its exit handlers.
        self._unsent = 0
        self._note = unsent.UnsentNote()
        self._urgent = False
        self._closing = False
        self._deadline: float | None = None
        self._failures: list[BaseException] = []
        # Why the thread died, if it did: nothing is sent any more.
        self._broken: BaseException | None = None
        self._idle = False
        # False: the code that made the context closes it at the end of the script.
        self.closed_at_exit = True
        self.last_steps = 0

    def report(
        self,
        group: str,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Accept a report and return its frozen metrics; blocks only when ``capacity`` is reached, and in a
        forked process.

        Raises errors.ReportRefused for an earlier report, errors.AllocationEnded.
        """
        self._check()
        frozen = self._accept(group, steps_completed, metrics, batch_metrics)
        if self._forked:
            self.flush()
        return frozen

    def _accept(
        self,
        group: str,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        frozen, size = self._freezer.freeze(metrics)
        batches = None
        if batch_metrics is not None:
            pairs = [self._freezer.freeze(batch) for batch in batch_metrics]
            batches = [batch for batch, _ in pairs]
            size += sum(leaves for _, leaves in pairs)
        report = Report(group, steps_completed, frozen, batches, time.time(), size)
        with self._changed:
            if self._size >= self._capacity and not self._spill():
                self._wait_for_room()
            self._start()
            self._pending.append(report)
            self._size += size
            self._accepted += 1
            self._unsent += 1
            self._note.put()
            if len(self._pending) >= self._max_reports or group == self._urgent_group:
                self._urgent = True
            if self._urgent or self._idle:
                self._changed.notify_all()
        self.last_steps = steps_completed
        return frozen

    def sampled(self, group: str, metrics: Mapping[str, Any]) -> None:
        """Accept a report about the machine, at the last steps. It is dropped if sending has failed
        already.

        It never raises the failures of other reports: the training loop shall see those.
        """
        if not self._failures and self._broken is None and not self._closing:
            self._accept(group, self.last_steps, metrics)

    def post_latest(self, path: str, body: dict[str, Any]) -> None:
        """POST ``body`` soon; a newer body for the same path replaces one not sent yet."""
        self._check()
        with self._changed:
            self._start()
            if path not in self._latest:
                self._accepted += 1
            self._latest[path] = body
            if self._idle:
                self._changed.notify_all()

    def drop_latest(self, path: str) -> None:
        """Drop the body for ``path`` that is not sent yet, because it is out of date."""
        with self._changed:
            if self._latest.pop(path, None) is not None:
                self._settled += 1

    def flush(self) -> None:
        """Return when everything accepted so far is stored.

        Raises errors.ReportRefused, errors.AllocationEnded, and MasterNotFoundException when the
        service stays away for ``patience`` seconds (the reports stay in the queue).
        """
        self._check()
        with self._changed:
            target = self._accepted
            if self._settled < target:
                self._urgent = True
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._settled >= target or bool(self._failures), self._patience
                )
            waiting = target - self._settled
        self._check()
        if waiting > 0:
            from determined.common.api.errors import MasterNotFoundException

            raise MasterNotFoundException(
                f"the service has not accepted reports for {self._patience:.0f} s; {waiting} wait"
            )

    def close(self) -> None:
        """Send the waiting reports and end the thread; may be called twice.

        Raises errors.ReportRefused, errors.ReportsLost, errors.AllocationEnded.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._deadline = time.monotonic() + self._patience
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        atexit.unregister(self._at_exit)
        self._check()

    # Callers' side, helpers.

    def _check(self) -> None:
        if self._pid != os.getpid():
            self._forked = True
            self._start_over()
        self._connection.check()
        if self._broken is not None:
            raise RuntimeError("sending reports failed") from self._broken
        if self._failures:
            with self._changed:
                failures, self._failures = self._failures, []
            first = failures[0]
            if len(failures) > 1:
                first.add_note(f"{len(failures) - 1} more reports failed")
            raise first

    def _start(self) -> None:
        if self._closing:
            raise RuntimeError(
                "the core context is closed and takes no more reports: report before it closes"
            )
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="determined-reports", daemon=True)
        self._thread.start()
        # For scripts that never close their context.
        if self.closed_at_exit:
            atexit.register(self._at_exit)

    def _spill(self) -> bool:
        """Move the waiting reports from memory into the file; False when the file is full."""
        self._outgoing.extend(self._pending)
        self._pending = []
        while self._outgoing:
            report = self._outgoing[0]
            try:
                self._spool.put(report.head(), report.encode())
            except SpoolFull as error:
                logger.warning(
                    "reports cannot be kept in a file while the service is away: %s", error
                )
                return False
            self._outgoing.popleft()
            self._size -= report.size
        return self._size < self._capacity

    def _wait_for_room(self) -> None:
        logger.warning(
            "%d metric values wait until the service accepts them; the training waits too",
            self._size,
        )
        self._changed.wait_for(lambda: self._size < self._capacity or bool(self._failures))

    def _at_exit(self) -> None:
        try:
            self.close()
        except BaseException as error:
            end_script(error)

    # The thread's side.

    def _run(self) -> None:
        try:
            while self._send_some():
                pass
        except BaseException as error:
            with self._changed:
                self._broken = error
                self._failures.append(error)
                self._changed.notify_all()

    def _send_some(self) -> bool:
        """Wait for reports and send them; False when closed and nothing is left."""
        with self._changed:
            self._idle = True
            self._changed.wait_for(self._has_work)
            self._idle = False
            self._changed.wait_for(lambda: self._urgent or self._closing, self._interval)
            self._urgent = False
            self._outgoing.extend(self._pending)
            self._pending = []
            latest, self._latest = self._latest, {}
            if not (self._outgoing or self._spool or latest):
                return not self._closing
        while batch := self._next_batch():
            for sent, failure in self._delivery.reports(batch):
                size = sum(report.size for report, _ in sent)
                self._settle(len(sent), size, failure, reports=len(sent))
        for path, body in latest.items():
            self._settle(1, 0, self._delivery.latest(path, body))
        return True

    def _has_work(self) -> bool:
        waiting = self._pending or self._outgoing or self._spool or self._latest
        return bool(waiting) or self._closing

    def _next_batch(self) -> list[Encoded]:
        """The oldest reports, with their encoded form."""
        with self._changed:
            if self._spool:
                pairs = self._spool.take(self._max_reports, self._max_bytes)
                return [(Report.of_head(head), part) for head, part in pairs]
            batch: list[Encoded] = []
            size = 0
            while self._outgoing and len(batch) < self._max_reports:
                part = self._outgoing[0].encode()
                size += len(part)
                if batch and size > self._max_bytes:
                    break
                batch.append((self._outgoing.popleft(), part))
            return batch

    def _settle(
        self, count: int, size: int, failure: BaseException | None, *, reports: int = 0
    ) -> None:
        with self._changed:
            self._unsent -= reports
            # Before anybody who waits in flush() goes on, and perhaps ends the process.
            if not self._unsent:
                self._note.drop()
            self._settled += count
            self._size -= size
            if failure is not None:
                self._failures.append(failure)
            self._changed.notify_all()

    def _pause(self, seconds: float) -> bool:
        """Wait between two tries; False if no time is left for another."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)
        if self._closing:
            time.sleep(seconds)
        return self._deadline is None or time.monotonic() < self._deadline
