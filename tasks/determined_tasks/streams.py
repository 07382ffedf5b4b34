"""Reads the output of the training process and passes it to the log."""

from __future__ import annotations

import os
import selectors
import time
from pathlib import Path

from determined_tasks import process
from determined_tasks.leg_reporter import LegReporter
from determined_tasks.log_lines import LineSplitter, parse
from determined_tasks.why_ended import WhyEnded

# Small, so that lines of the two pipes written close together stay close together in the log.
READ_BYTES = 1 << 13
# How long a line that ends in "\r" waits for its "\n".
PROGRESS_SECONDS = 0.5


class Streams:
    """Reads a process's output into the reporter."""

    def __init__(
        self, user: process.UserProcess, reporter: LegReporter, workdir: Path | None = None
    ) -> None:
        self.why = WhyEnded(workdir)
        self._reporter = reporter
        self._selector = selectors.DefaultSelector()
        self._splitters = {user.stdout: LineSplitter(), user.stderr: LineSplitter()}
        self._names = {user.stdout: "stdout", user.stderr: "stderr"}
        self.open = set(self._splitters)
        for descriptor in self.open:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._pidfd: int | None = None
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(user.pid)
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def read(self, timeout: float) -> None:
        """Waits for output or the process's end, at most ``timeout`` seconds, and passes lines on."""
        if self._reporter.is_full:
            time.sleep(0.05)  # the process waits in its next write
            return
        if self._pidfd is None:
            timeout = min(timeout, 0.05)
        if any(splitter.is_progress for splitter in self._splitters.values()):
            timeout = min(timeout, PROGRESS_SECONDS)
        events = self._selector.select(timeout)
        for key, _ in events:
            descriptor = key.fd
            if descriptor == self._pidfd:
                self._selector.unregister(descriptor)
                os.close(descriptor)
                self._pidfd = None
            else:
                self._read_one(descriptor)
        if not events:
            for descriptor, splitter in self._splitters.items():
                self._pass_on(descriptor, splitter.flush_progress())

    def _read_one(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._pass_on(descriptor, self._splitters[descriptor].feed(data))
        else:
            self._selector.unregister(descriptor)
            self.open.discard(descriptor)

    def _pass_on(self, descriptor: int, lines: list[bytes]) -> None:
        now, stream = time.time(), self._names[descriptor]
        for line in lines:
            parsed = parse(line)
            self.why.feed(parsed, stream)
            self._reporter.put(parsed, stream, now)

    def close(self) -> None:
        """Passes the last, unfinished lines on."""
        for descriptor, splitter in self._splitters.items():
            self._pass_on(descriptor, splitter.close())
            os.close(descriptor)
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._selector.close()
