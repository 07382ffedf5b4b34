"""Work that goes on while the training does."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

from determined.core._exit import end_script

logger = logging.getLogger("determined.core")


class Background:
    """One piece of work at a time, in a thread that a normal end of the process waits for.

    If an error was never raised by :meth:`wait`, the process ends with exit code 1.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_awaited_at_exit = False
        # Exit handlers are called latest first: that of the reports, which come later, must have its turn.
        atexit.register(self._exit_if_failed)

    def start(self, what: str, work: Callable[[], object]) -> None:
        """Begin ``work`` and return. Call :meth:`wait` for the previous work first."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                error.add_note(
                    f"It happened in the background, while {what}, which an earlier call had begun. "
                    "Unless the service lists that checkpoint, nothing of it is stored; those before it are "
                    "as they were. Mend the cause, then store again, or go on from the checkpoint before it."
                )
                # Raised by wait(); a script that never gets there shall be told too.
                logger.error("%s: %s", what, error)
                self._error = error

        self._thread = threading.Thread(target=run, name=what)
        if not self._is_awaited_at_exit:
            self._is_awaited_at_exit = True
            # Before the interpreter joins threads, concurrent.futures closes all pools, which the work
            # needs. It does so by the same call, made earlier; these handlers too are called latest first.
            threading._register_atexit(self._join)  # type: ignore[attr-defined]
        self._thread.start()

    def is_busy(self) -> bool:
        """True if the work goes on. It does not raise the work's error."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Return when the work has ended. Raises the error that the work has raised, once."""
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _exit_if_failed(self) -> None:
        if self._error is not None:
            end_script()
