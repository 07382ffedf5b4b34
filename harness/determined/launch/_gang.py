"""Processes that live and die together: if one fails, the others are ended.

The launcher copies their output, passes signals on to them and ends like the first process that failed. No
process outlives the launcher: the kernel (Linux) kills them when it dies.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from determined.launch._machines import Machines
from determined.launch._prefix import PrefixedCopy
from determined.launch._workers import Worker

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for the other workers when one has failed."""
TOLD_GRACE_S = 30.0
"""Seconds until SIGKILL when all had been told to end: a worker may still be saving when another has ended.
"""
DRAIN_S = 1.0
"""Seconds for which output is read after the last process has ended: another process may hold its pipes.
"""


class Gang:
    """``start`` makes the workers; :meth:`wait` returns when all have ended.

    Signals that come while they are started are passed on when all are there. ``machines``: the rest of
    the gang, elsewhere.
    """

    def __init__(
        self, start: Callable[[], Sequence[Worker]], machines: Machines | None = None
    ) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        workers = start()
        self._running = {worker.pid: worker for worker in workers}
        self._size = len(workers)
        self._code = 0
        self._deadline: float | None = None
        self._told_to_end = False
        self._selector = selectors.DefaultSelector()
        for worker in workers:
            for source, target in ((worker.stdout, 1), (worker.stderr, 2)):
                copy = PrefixedCopy(worker.rank, source, target)
                self._selector.register(source, selectors.EVENT_READ, copy)
        self._open = 2 * len(workers)
        self._machines = machines
        if machines is not None:
            for descriptor in machines.descriptors():
                self._selector.register(descriptor, selectors.EVENT_READ, machines)
        self._wake_on_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    def _wake_on_signals(self) -> None:
        read, write = os.pipe()
        for descriptor in (read, write):
            os.set_blocking(descriptor, False)
        self._selector.register(read, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in FORWARDED:
            signal.signal(number, self._forward)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._told_to_end = self._told_to_end or number in ENDING
        self._send(signal.Signals(number))

    def _send(self, number: signal.Signals) -> None:
        for pid in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self) -> int:
        """Wait for all to end. Returns the exit code of the first that failed (-n: signal n), else 0."""
        # Before there was a handler nobody was told of those that ended.
        self._reap()
        while self._running or (self._code == 0 and self._machines and self._machines.awaited):
            self._copy(None if self._deadline is None else self._deadline - time.monotonic())
            self._reap()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._kill()
        until = time.monotonic() + DRAIN_S
        while self._open and (left := until - time.monotonic()) > 0:
            self._copy(left)
        for key in self._selector.get_map().values():
            if isinstance(key.data, PrefixedCopy):
                key.data.finish()
        if self._machines is not None:
            self._machines.close()
        return self._code

    def _copy(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(None if timeout is None else max(timeout, 0)):
            if key.data is None:
                os.read(key.fd, 4096)
            elif isinstance(key.data, PrefixedCopy):
                if not key.data.copy():
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                    self._open -= 1
            else:
                why = key.data.hear(key.fd)
                if not key.data.listens_to(key.fd):
                    self._selector.unregister(key.fd)
                if why is not None:
                    self._fail(1, why)

    def _reap(self) -> None:
        before = bool(self._running)
        for pid, worker in list(self._running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._running[pid]
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                why = f"rank {worker.rank} was killed by signal {-code} ({_name(-code)})"
                self._fail(code, why)
            elif code > 0:
                self._fail(code, f"rank {worker.rank} ended with exit code {code}")
        if before and not self._running and self._code == 0 and self._machines is not None:
            self._machines.tell(None)

    def _fail(self, code: int, why: str) -> None:
        """The first failure counts and ends the others. If a signal to all workers is ending them already,
        they are left alone.
        """
        if self._deadline is not None:
            return
        self._code = code
        self._deadline = time.monotonic() + (TOLD_GRACE_S if self._told_to_end else GRACE_S)
        if self._size > 1 or self._machines is not None:
            what = "waiting for" if self._told_to_end else "ending"
            print(f"determined.launch: {why}, {what} the others", file=sys.stderr, flush=True)
        if self._machines is not None:
            self._machines.tell(why)
        if not self._told_to_end:
            self._send(signal.SIGTERM)

    def _kill(self) -> None:
        """Signal the workers and the processes that they started, as far as these are still in their
        process groups.
        """
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        # Until they are reaped there is nothing more to do.
        self._deadline = time.monotonic() + GRACE_S


def end_like(code: int) -> NoReturn:
    """End this process the way the gang ended, as :meth:`Gang.wait` returned it: the supervisor has rules
    for signals, for example for running out of memory.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        # The worker's core file is the useful one.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        code = 128 - code  # it was ignored
    sys.exit(code)


def _name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return "unknown"
