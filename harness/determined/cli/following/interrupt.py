"""Handling of Ctrl-C when it is pressed more than once."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import NoReturn

PATIENCE_S = 1.0
INTERRUPTED = 130  # the exit code that shells use


def interrupt_once() -> None:
    """The first SIGINT raises KeyboardInterrupt.

    Another one within a second is ignored, so that an accidental second Ctrl-C does not cut off the
    command's last messages. A later one ends the process at once, because the handling of the first
    may hang. Programs that this process starts are interrupted as usual. See :func:`interrupt_again`.
    """
    global _first
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return  # SIGINT is ignored (nohup, a background job) or has another handler already
    _first = None

    def handle(number: int, frame: FrameType | None) -> None:
        global _first
        if _first is None:
            _first = time.monotonic()
            _raise()
        if time.monotonic() - _first > PATIENCE_S:
            os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, handle)


def interrupt_again() -> None:
    """The next SIGINT raises KeyboardInterrupt, too: it means something of its own, as a person was told."""
    global _first
    _first = None


_first: float | None = None
"""When the first SIGINT came, by time.monotonic()."""


def _raise() -> NoReturn:
    raise KeyboardInterrupt
