"""``python -m tests.fuzz.loop_watch``: the service, which prints what keeps ``/health`` waiting, and where.

Measured in processor time, so that a busy machine does not count as a fault of the service: a callback of the
event loop that computes for LONG_S, a collection of garbage that does, and a call in any thread that holds
the interpreter so long. A thread that runs Python gives way after a millisecond and is not meant.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from pathlib import Path

from determined_service.__main__ import main

LONG_S = 0.03
LOOK_S = 0.004
MARK = "LOOP WATCH"
_FRAMES = 14


def _stack_of(ident: int) -> str:
    lines = traceback.format_stack(sys._current_frames().get(ident))[-_FRAMES:]
    return "".join(f"    {line.splitlines()[0].strip()}\n" for line in lines)


def _processor_time(thread: threading.Thread) -> float | None:
    """Seconds, as the kernel counts them; None: the thread has ended."""
    try:
        counted = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
    except OSError:
        return None
    return int(counted.split()[0]) / 1e9


class LoopWatch:
    """:meth:`install` before the loop runs."""

    def __init__(self) -> None:
        self._loop_thread: int | None = None
        self._began: float | None = None
        """The loop's thread's processor time when the callback that runs now began."""
        self._seen = ""

    def install(self) -> None:
        run = asyncio.Handle._run

        def watched(handle: asyncio.Handle) -> None:
            if self._loop_thread is None:
                self._loop_thread = threading.get_ident()
            if threading.get_ident() != self._loop_thread:
                run(handle)
                return
            self._seen = ""
            began = self._began = time.thread_time()
            run(handle)
            self._began = None
            used = time.thread_time() - began
            if used > LONG_S:
                self._say(f"{used * 1000:.0f} ms in the loop: {repr(handle)[:300]}\n{self._seen}")

        asyncio.Handle._run = watched  # type: ignore[method-assign,assignment]
        collecting: list[float] = []

        def garbage(phase: str, info: dict[str, int]) -> None:
            if phase == "start":
                collecting.append(time.thread_time())
            elif (used := time.thread_time() - collecting.pop()) > LONG_S / 3:
                self._say(f"{used * 1000:.0f} ms of garbage collection, {info}")

        gc.callbacks.append(garbage)
        threading.Thread(target=self._look, daemon=True, name="watch").start()

    def _look(self) -> None:
        used: dict[int, float] = {}
        while True:
            asleep = time.monotonic()
            time.sleep(LOOK_S)
            late = time.monotonic() - asleep > LONG_S
            for thread in threading.enumerate():
                ident, now = thread.ident, _processor_time(thread)
                if ident is None or now is None:
                    continue
                if late and now - used.get(ident, now) > LONG_S:
                    held = (now - used[ident]) * 1000
                    self._say(f"{held:.0f} ms held by {thread.name}, now at\n{_stack_of(ident)}")
                used[ident] = now
            began, ident = self._began, self._loop_thread
            if began is not None and ident is not None and not self._seen:
                clock = time.pthread_getcpuclockid(ident)
                if time.clock_gettime(clock) - began > LONG_S / 2:
                    self._seen = _stack_of(ident)

    def _say(self, text: str) -> None:
        print(f"{MARK}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    LoopWatch().install()
    main()
