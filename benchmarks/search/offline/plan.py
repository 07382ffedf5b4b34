"""Who runs what. Fixed before the first full run, and not by results but by what tools cost.

50 seeds everywhere would take hours of CPU for the tools whose decisions are slow: these stop at
an earlier budget, or run fewer seeds. Tables say which.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.search.offline.cells import Cell
from benchmarks.search.offline.tasks import TASKS

SOUND_TASKS = [name for name in TASKS if not name.startswith("T6")]
FAULTY = "T6 faulty"


@dataclass(frozen=True)
class Entry:
    """A contender: for each number of workers its (seeds, horizon in full trainings).

    ``faulty``: it is told of crashed trials, and runs T6 (at 8 workers).
    """

    tool: str
    settings: dict[int, tuple[int, float]]
    resume_cost: float = 0.0
    faulty: bool = False


_CHEAP = {1: (50, 20.0), 8: (50, 6.0), 64: (10, 2.0)}
_MIDDLING = {1: (50, 20.0), 8: (50, 6.0), 64: (10, 2.0)}

OURS = [
    Entry("random", _CHEAP, faulty=True),
    *(
        Entry(f"{rule} {mode}", _CHEAP, faulty=True)
        for rule in ("promotion", "stop_once")
        for mode in ("aggressive", "standard", "conservative")
    ),
    Entry("promotion aggressive", {8: (50, 6.0)}, resume_cost=0.5),
    Entry("promotion standard", {8: (50, 6.0)}, resume_cost=0.5),
    Entry("tpe", {1: (20, 20.0), 8: (20, 6.0)}, faulty=True),
]
PEERS = [
    Entry("Ray random", {8: (50, 6.0)}),
    Entry("Ray ASHA", _MIDDLING, faulty=True),
    Entry("Ray ASHA 3 brackets", _MIDDLING),
    Entry("Syne ASHA", _MIDDLING, faulty=True),
    Entry("Optuna random+Hyperband", _MIDDLING, faulty=True),
    Entry("Optuna TPE+Hyperband", {1: (20, 20.0), 8: (20, 6.0)}, faulty=True),
    Entry("Optuna TPE+SH", {1: (20, 20.0), 8: (20, 6.0)}),
    Entry("Syne BOHB", {1: (10, 6.0)}),
]


def cells(entries: list[Entry], quick: bool) -> list[Cell]:
    """The cells of ``entries``: the large ones last, else seed by seed, so that a run cut short is
    still balanced.

    ``quick``: 5 seeds, 8 workers, budgets up to 6.
    """
    found = []
    for seed in range(50):
        for task in (*SOUND_TASKS, FAULTY):
            for entry in entries:
                for workers, (seeds, horizon) in entry.settings.items():
                    wanted = seed < (min(seeds, 5) if quick else seeds)
                    if task == FAULTY and not (entry.faulty and workers == 8):
                        wanted = False
                    if quick and (workers != 8 or entry.resume_cost):
                        wanted = False
                    if wanted:
                        limit = min(horizon, 6.0) if quick else horizon
                        cell = Cell(entry.tool, task, seed, workers, limit, entry.resume_cost)
                        found.append(cell)
    return sorted(found, key=lambda cell: cell.workers == 64)
