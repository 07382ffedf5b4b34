"""Ctrl-C, pressed more than once."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import NoReturn

PATIENCE_S = 1.0
INTERRUPTED = 130  # as shells say it


def interrupt_once() -> None:
    """The first SIGINT raises KeyboardInterrupt; one that follows in the same breath does nothing, so
    that a nervous finger cannot end the command in the middle of its last words. One that comes later
    ends the process at once: what the first began may hang.

    Programs that this process starts are interrupted as usual.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return  # ignored (nohup, a shell's background job), or somebody else's business
    first: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            _raise()
        if time.monotonic() - first > PATIENCE_S:
            os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, handle)


def _raise() -> NoReturn:
    raise KeyboardInterrupt
