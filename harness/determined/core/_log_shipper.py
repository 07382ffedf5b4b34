"""Sends the output of a script outside of the cluster to the service, as its trial's log."""

from __future__ import annotations

import datetime
import itertools
import logging
import os
import re
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable
from typing import Any, TextIO

from determined import errors
from determined.core._connection import Connection

logger = logging.getLogger("determined.core")

INTERVAL = 1.0
MOST_LINES = 1000
MOST_CHARS = 1_000_000
# So many lines wait for a service that is away; then the oldest are lost.
CAPACITY = 100_000
# Seconds that the end of the script waits for the rest to be taken.
PATIENCE = 10.0

# As det.LOG_FORMAT begins a line.
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL): \[\d+\] ")


class _Tee:
    """Wraps a stream of the script and keeps a copy of its lines for the shipper."""

    def __init__(self, stream: TextIO, name: str, shipper: LogShipper) -> None:
        self.stream = stream
        self._name = name
        self._shipper = shipper
        self._pid = os.getpid()
        self._line = ""

    def write(self, text: str) -> int:
        written = self.stream.write(text)
        # A forked child has no thread that would send.
        if os.getpid() == self._pid:
            *lines, self._line = (self._line + text).split("\n")
            for line in lines:
                self._shipper.add(self._name, line + "\n")
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def finish(self) -> None:
        """A last line without its end."""
        if self._line:
            self._shipper.add(self._name, self._line)
            self._line = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class LogShipper:
    """Takes over ``sys.stdout`` and ``sys.stderr`` from :meth:`start` to :meth:`close`.

    Output of Python code is sent every second. Output of other programs and of C code is not seen.
    """

    def __init__(self, connection: Connection, task_id: str, rank: int) -> None:
        self._connection = connection
        self._task_id = task_id
        self._rank = rank
        self._lines: deque[dict[str, Any]] = deque(maxlen=CAPACITY)
        self._stream = str(uuid.uuid4())
        self._seq = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._tees: list[_Tee] = []
        self._refused = False

    def start(self) -> None:
        """Raises nothing; may be called once."""
        out, err = _Tee(sys.stdout, "stdout", self), _Tee(sys.stderr, "stderr", self)
        self._tees = [out, err]
        sys.stdout, sys.stderr = out, err
        self._thread = threading.Thread(target=self._run, name="determined-logs", daemon=True)
        self._thread.start()

    def add(self, stdtype: str, line: str) -> None:
        """Keep a line until it is sent."""
        if self._refused:
            return
        level = _LEVEL.match(line)
        self._lines.append(
            {
                "taskId": self._task_id,
                "log": line,
                "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
                "level": f"LOG_LEVEL_{level[1]}" if level else "LOG_LEVEL_INFO",
                "stdtype": stdtype,
                "source": "task",
                "rankId": self._rank,
            }
        )

    def close(self) -> None:
        """Restore the streams and send the rest, unless the service refuses; may be called twice."""
        if self._thread is None:
            return
        for tee, name in zip(self._tees, ("stdout", "stderr"), strict=True):
            tee.finish()
            # Somebody else may have put something in its place meanwhile.
            if getattr(sys, name) is tee:
                setattr(sys, name, tee.stream)
        self._stop.set()
        self._thread.join()
        self._thread = None
        if self._lines:
            logger.warning(
                "the service did not accept %d lines of output; the log lacks them",
                len(self._lines),
            )

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._send()
        deadline = time.monotonic() + PATIENCE
        while self._lines and not self._send() and time.monotonic() < deadline:
            time.sleep(0.5)

    def _next_batch(self) -> list[dict[str, Any]]:
        """The oldest lines, as many as go into one request."""
        batch: list[dict[str, Any]] = []
        size = 0
        for line in itertools.islice(self._lines, MOST_LINES):
            size += len(line["log"])
            if batch and size > MOST_CHARS:
                break
            batch.append(line)
        return batch

    def _send(self) -> bool:
        """Send the waiting lines; False if the service did not accept them."""
        from determined.common.api.errors import APIException, BadRequestException

        while self._lines:
            batch = self._next_batch()
            body = {"stream": self._stream, "seq": self._seq, "logs": batch}
            try:
                self._connection.post("/api/v1/task/logs", json=body, max_retries=0)
            except errors.AllocationEnded:
                # The trial is another run's now, or a user has ended it.
                self._refused = True
                self._lines.clear()
                return True
            except BadRequestException as error:
                # Sending the same again cannot help, and what comes after it must not wait for ever.
                logger.warning(
                    "the service refused %d lines of output; the log lacks them: %s",
                    len(batch),
                    error,
                )
            except APIException:
                return False
            self._seq += 1
            for _ in batch:
                self._lines.popleft()
        return True
