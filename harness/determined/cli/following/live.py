"""Two ways to show an experiment while it runs: a panel on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, Self

from determined.cli.errors import talk
from determined.cli.following.tracker import Tracker, Urgent
from determined.cli.output import format as f
from determined.cli.printing import cut, one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_KEPT_EVENTS = 6
_EVERY_S = 60.0
_WIDEST = 300


class View(Protocol):
    """Shows an experiment's progress. As a context manager it restores the terminal at the end."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, tracker: Tracker, events: Sequence[str]) -> None:
        """Shows the new ``events`` and the experiment's current state."""


def watched() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


def best_view() -> View:
    """The panel if stderr is a terminal, else plain lines."""
    if not watched():
        return Lines()
    from rich.console import Console

    return Panel(Console(stderr=True))


def _shown(text: object) -> str:
    """A text of the service in one line of the panel."""
    return one_line(cut(str(text), _WIDEST))


def _trials(tracker: Tracker) -> str:
    """``1 completed, 2 running``"""
    return ", ".join(f"{n} {name.lower()}" for name, n in sorted(tracker.counts().items()))


def _best(tracker: Tracker) -> str | None:
    if tracker.best is None:
        return None
    best = tracker.best
    hparams = f.pairs(best.get("hparams") or {})
    shown = f"{tracker.metric} {f.number(best['searcherMetricValue'])}, trial {best['id']}"
    return f"{shown}  ({hparams})" if hparams else shown


class Lines:
    """A line a minute on the trials so far, and failures at once; each with the time since the start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._said = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, tracker: Tracker, events: Sequence[str]) -> None:
        now = self._clock()
        for event in events:
            if isinstance(event, Urgent):
                self._say(now, event)
        if now - self._said >= _EVERY_S and not tracker.ended:
            self._said = now
            progress = f"{tracker.experiment.get('progress') or 0.0:.0%} done"
            best = _best(tracker)
            facts = [progress, _trials(tracker), f"best {best}" if best else ""]
            self._say(now, "; ".join(filter(None, facts)))

    def _say(self, now: float, text: str) -> None:
        talk(f"[{now - self._start:7.1f}s] {cut(text, _WIDEST)}")


def age(start_time: str | None, watched_s: float) -> float:
    """Seconds since ``start_time`` (ISO 8601), but at least ``watched_s``: the service's clock may be
    ahead of this machine's."""
    if not start_time:
        return watched_s
    since = datetime.now(UTC) - datetime.fromisoformat(start_time).astimezone(UTC)
    return max(watched_s, since.total_seconds())


def remaining(progress: float | None, passed: float) -> float | None:
    """Estimated seconds left at the speed so far; None if there is too little progress to tell."""
    if progress is None or progress < 0.02 or passed < 2:
        return None
    return passed * (1 - min(progress, 1.0)) / progress


class Panel:
    """Trials by state, best metric, progress, time left and the last events, redrawn in place."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._start = time.monotonic()
        self._events: deque[str] = deque(maxlen=_KEPT_EVENTS)
        self._tracker = Tracker()
        # Redrawn without new events too, for the elapsed time.
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, tracker: Tracker, events: Sequence[str]) -> None:
        self._events.extend(events)
        self._tracker = tracker
        self._live.refresh()

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tracker = self._tracker
        experiment = tracker.experiment
        passed = age(experiment.get("startTime"), time.monotonic() - self._start)
        progress = experiment.get("progress") or 0.0
        left = remaining(progress, passed)
        head = Text.assemble(
            (f"experiment {experiment.get('id', '')} ", "bold"),
            f"{_shown(experiment.get('name', ''))}  ",
            (tracker.state, "cyan"),
            f"  {f.duration(passed)}",
        )
        bar = Table.grid(padding=(0, 1))
        eta = f"about {f.duration(left)} left" if left is not None else ""
        bar.add_row(ProgressBar(total=1.0, completed=progress, width=40), f"{progress:4.0%}", eta)
        facts = Table.grid(padding=(0, 2))
        facts.add_row(Text("trials", "dim"), Text(_trials(tracker) or "none yet"))
        facts.add_row(Text("best", "dim"), Text(_shown(_best(tracker) or "-")))
        lines = [
            Text(f"  {_shown(event)}", "dim", no_wrap=True, overflow="ellipsis")
            for event in self._events
        ]
        keys = Text("Ctrl-C detaches; the experiment keeps running", "dim italic")
        return Group(head, bar, facts, *lines, keys)
