"""Work that goes on while the training does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("determined.core")


class Background:
    """One piece of work at a time, in a thread that a normal end of the process waits for."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, what: str, work: Callable[[], object]) -> None:
        """Begin ``work`` and return; what went before must have been waited for."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                # Raised by wait(); a script that never gets there shall be told too.
                logger.error("%s: %s", what, error)
                self._error = error

        self._thread = threading.Thread(target=run, name=what)
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is going on any more. Raises what the work has raised, once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
