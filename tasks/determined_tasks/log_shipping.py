"""Sends log lines to the service: in order, each once, through outages.

A batch is numbered within its stream and sent until the service has it; the service stores a number
once. While the service is away lines wait in memory, beyond :data:`MEMORY_BYTES` in a file; when
that cannot be written either, :attr:`LegLogShipper.is_full` asks the reader to let the process wait.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any

import orjson

from determined.common.api import Session, errors
from determined.common.backoff import Backoff
from determined.common.file_queue import FileQueue
from determined.common.wire import paths
from determined.common.wire.legs import LogLine, LogOwner

logger = logging.getLogger(__name__)

BATCH_SECONDS = 0.25
BATCH_BYTES = 1 << 20
MEMORY_BYTES = 16 << 20
RETRY_SECONDS = (0.1, 5.0)


def deliver(service: Session, body: dict[str, Any]) -> bool:
    """Sends a batch of log lines until the service has it; False when it takes no logs of the allocation."""
    backoff = Backoff(*RETRY_SECONDS)
    while True:
        try:
            service.post(paths.LOGS, json=body)
            return True
        except (errors.NotFoundException, errors.ConflictException) as error:
            logger.warning("the service does not take the allocation's logs: %s", error)
            return False
        except errors.BadRequestException as error:
            # Sending the same again cannot help, and what comes after it must not wait for ever.
            count = len(body["lines"])
            logger.error("the service refused a batch of %d log lines: %s", count, error)
            return True
        except errors.APIException as error:
            logger.info("cannot send logs yet, trying again: %s", error)
        time.sleep(backoff.next_delay())


class _Queue:
    """Encoded lines, first in first out: in memory, and in a file once memory is full.

    Not thread-safe: :class:`LegLogShipper` holds its lock. Order: all of memory is older than the file.
    """

    def __init__(self, spool: Path) -> None:
        self._path = spool
        self._memory: deque[bytes] = deque()
        self.bytes = 0
        """Bytes that wait in memory."""
        self._spooled = FileQueue(lambda: spool.open("w+b", buffering=0))

    def __len__(self) -> int:
        return len(self._memory) + len(self._spooled)

    @property
    def is_full(self) -> bool:
        return self.bytes > 2 * MEMORY_BYTES

    def put(self, line: bytes) -> None:
        if (self._spooled or self.bytes > MEMORY_BYTES) and not self.is_full:
            try:
                self._spooled.put(line)
                return
            except OSError as error:
                # Records in memory are older than the file: the file's records are read first, to keep the
                # order.
                for spooled in self._spooled.take(len(self._spooled), sys.maxsize):
                    self._remember(spooled)
                logger.warning("cannot store unsent logs in %s: %s", self._path, error)
        self._remember(line)

    def _remember(self, line: bytes) -> None:
        self._memory.append(line)
        self.bytes += len(line)

    def take(self, limit: int) -> list[bytes]:
        """The oldest lines, about ``limit`` bytes; at least one when there is any."""
        taken: list[bytes] = []
        size = 0
        while self._memory and size < limit:
            line = self._memory.popleft()
            self.bytes -= len(line)
            size += len(line)
            taken.append(line)
        if not self._memory and size < limit:
            taken += self._spooled.take(len(self._spooled), limit - size)
        return taken

    def close(self) -> None:
        if self._spooled.close():
            self._path.unlink(missing_ok=True)


class LegLogShipper:
    """One stream of log lines of one allocation.

    Order of calls: :meth:`put` from one thread any number of times, :meth:`run` in another thread,
    :meth:`finish` once; ``run`` returns when everything before ``finish`` is stored.
    """

    def __init__(
        self, service: Session, owner: LogOwner, spool: Path, *, source: str = "task"
    ) -> None:
        self._service = service
        self._common = {**owner, "stream": str(uuid.uuid4())}
        self._source = source
        self._queue = _Queue(spool)
        self._condition = threading.Condition()
        self._closing = False
        self._seq = 0

    @property
    def is_full(self) -> bool:
        return self._queue.is_full

    def put(
        self,
        log: str,
        *,
        time_s: float,
        stdtype: str,
        level: str | None = None,
        rank: int | None = None,
        source: str | None = None,
    ) -> None:
        """One line, with its end; ``time_s`` in seconds since the epoch."""
        made: LogLine = {
            "t": time_s,
            "stdtype": stdtype,
            "level": level,
            "rank": rank,
            "source": source or self._source,
            "log": log,
        }
        line = orjson.dumps(made)
        with self._condition:
            was_empty = not len(self._queue)
            self._queue.put(line)
            if was_empty or self._queue.bytes >= BATCH_BYTES:
                self._condition.notify()

    def finish(self) -> None:
        """No further line: :meth:`run` sends the rest at once and returns."""
        with self._condition:
            self._closing = True
            self._condition.notify()

    def run(self) -> None:
        """Sends until :meth:`finish`. Returns early when the allocation is unknown to the service."""
        try:
            while lines := self._next_batch():
                if not self._send(lines):
                    return
        finally:
            self._queue.close()

    def _next_batch(self) -> list[bytes]:
        """Waits for a batch by time or size; empty at the end."""
        with self._condition:
            self._condition.wait_for(lambda: len(self._queue) or self._closing)
            if not self._closing:
                self._condition.wait_for(
                    lambda: self._closing or self._queue.bytes >= BATCH_BYTES, BATCH_SECONDS
                )
            return self._queue.take(BATCH_BYTES)

    def _send(self, lines: list[bytes]) -> bool:
        self._seq += 1
        body = {
            **self._common,
            "seq": self._seq,
            "lines": [orjson.Fragment(line) for line in lines],
        }
        return deliver(self._service, body)
