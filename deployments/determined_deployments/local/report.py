"""Output for the person at the terminal while the cluster starts or stops (on stderr)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.status import Status


class ClusterReporter(Protocol):
    """Receives what happens; each call is one line at most."""

    def note(self, text: str) -> None:
        """Report something unusual that was handled."""

    def done(self, component: str, what: str, seconds: float | None = None) -> None:
        """Report that a component reached a state (``"ready"``, ``"stopped"``) after ``seconds``."""

    def waiting(self, components: list[str]) -> None:
        """Report the components that the command waits for now; empty: none."""


class Silent:
    """Prints nothing."""

    def note(self, text: str) -> None:
        pass

    def done(self, component: str, what: str, seconds: float | None = None) -> None:
        pass

    def waiting(self, components: list[str]) -> None:
        pass


class TerminalReporter:
    """Prints lines on a rich console; on a terminal a spinner names components that are starting."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status: Status | None = None

    def note(self, text: str) -> None:
        self.console.print(f"[yellow]note[/]      {escape(text)}", highlight=False, soft_wrap=True)

    def done(self, component: str, what: str, seconds: float | None = None) -> None:
        time = f" {seconds:6.1f} s" if seconds is not None else ""
        line = f"[green]{component:<9}[/] {escape(what):<16}{time}"
        self.console.print(line, highlight=False)

    def waiting(self, components: list[str]) -> None:
        if not self.console.is_terminal:
            return
        text = f"waiting for {', '.join(components)}"
        if self._status is None and components:
            self._status = self.console.status(text)
            self._status.start()
        elif self._status and components:
            self._status.update(text)
        elif self._status:
            self._status.stop()
            self._status = None


@contextmanager
def quiet_end(reporter: ClusterReporter) -> Iterator[None]:
    """Remove the spinner, however the block ends."""
    try:
        yield
    finally:
        reporter.waiting([])
