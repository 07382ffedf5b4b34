"""A week of a busy cluster under each scheduler, in virtual time.

    python -m benchmarks week

`trace` draws what users submit, `cluster` runs it in virtual time with the service's own schedulers deciding,
`measures` sums up, `picture` draws. The table and the picture: docs/inside/scheduling-week.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.week.cluster import replay
from benchmarks.week.measures import Measures, quantile
from benchmarks.week.picture import figure
from benchmarks.week.trace import AGENTS, LOAD, PRIORITIES, SLOTS, draw
from determined_service.scheduling.fair_share import FairShare
from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.priority import Priority
from determined_service.scheduling.round_robin import RoundRobin
from determined_service.scheduling.scheduler import Scheduler

SEED = 2026
OUT = Path("build/week")
SCHEDULERS: dict[str, Scheduler] = {
    "first in, first out": FirstInFirstOut(),
    "priority": Priority(),
    "priority, preemption": Priority(preemption=True),
    "fair share": FairShare(),
    "round robin": RoundRobin(),
}


def main() -> None:
    """Prints the table and writes the picture to ``build/week``."""
    trace = draw(SEED)
    trials = sum(len(one.trials) for one in trace)
    print(
        f"{AGENTS} agents of {SLOTS} slots, {len(trace)} experiments with {trials} trials, "
        f"{LOAD:.0%} of the slots' time wanted, seed {SEED}"
    )
    found = {}
    for name, scheduler in SCHEDULERS.items():
        found[name] = replay(scheduler, trace)
        print(
            f"  {name}: {found[name].decisions} decisions, {found[name].cpu:.0f} s of CPU",
            flush=True,
        )
    Console(file=sys.stdout, width=160).print(_table(found))
    OUT.mkdir(parents=True, exist_ok=True)
    _draw(found)


def _table(found: dict[str, Measures]) -> Table:
    table = Table()
    for title in ("scheduler", "utilisation", "lost to preemption", "preemptions"):
        table.add_column(title)
    for priority in sorted(PRIORITIES):
        table.add_column(f"wait, priority {priority}: median / 95 %")
    for title in ("Jain's index", "stretch", "last one ends"):
        table.add_column(title)
    for name, one in found.items():
        waits = [
            f"{_words(quantile(one.waits[priority], 0.5))} / {_words(quantile(one.waits[priority], 0.95))}"
            for priority in sorted(PRIORITIES)
        ]
        table.add_row(
            name,
            f"{one.utilisation:.1%}",
            f"{one.lost:.1%}",
            str(one.preemptions),
            *waits,
            f"{one.fairness:.2f}",
            f"{one.stretch():.1f}",
            f"day {one.over / 86_400:.1f}",
        )
    return table


def _words(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _draw(found: dict[str, Measures]) -> None:
    from benchmarks.search.offline.picture import write_page, write_svg

    page = OUT / "week.html"
    write_page(figure(found), page)
    try:
        write_svg(page, OUT / "week.svg")
    except Exception as error:  # no browser: the page is there all the same
        print(f"no week.svg: {error}")
