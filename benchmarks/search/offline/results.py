"""The rows of a run, by task, workers and contender; seeds matched up for paired comparisons."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.search.offline.cells import BUDGETS, Cell

Row = dict[str, Any]


class Results:
    """Rows as the cells gave them; a repeated cell counts once, the last time it was run."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[tuple[str, int], dict[str, dict[int, Row]]] = defaultdict(dict)
        self.missing: dict[str, str] = {}
        for row in rows:
            if "missing" in row:
                self.missing[row["tool"]] = row["missing"]
                continue
            contenders = self._rows[row["task"], row["workers"]]
            contenders.setdefault(label(row), {})[row["seed"]] = row

    @classmethod
    def read(cls, path: Path) -> Results:
        if not path.exists():
            return cls([])
        return cls(json.loads(line) for line in path.read_text().splitlines())

    def groups(self) -> Iterator[tuple[str, int]]:
        """Each (task, workers) there is."""
        yield from self._rows

    def contenders(self, task: str, workers: int) -> list[str]:
        return list(self._rows.get((task, workers), {}))

    def rows(self, task: str, workers: int, contender: str) -> list[Row]:
        return list(self._rows.get((task, workers), {}).get(contender, {}).values())

    def regrets(self, task: str, workers: int, contender: str, budget: float) -> dict[int, float]:
        """Regret by seed, of the runs that went so far."""
        place = BUDGETS.index(budget)
        rows = self.rows(task, workers, contender)
        return {
            row["seed"]: row["regret"][place] for row in rows if row["regret"][place] is not None
        }

    def paired(
        self, task: str, workers: int, contenders: Iterable[str], budget: float
    ) -> dict[str, list[float]]:
        """Regrets on the seeds that all of ``contenders`` have, in the same order; contenders
        without any run that far are left out."""
        found = {name: self.regrets(task, workers, name, budget) for name in contenders}
        found = {name: regrets for name, regrets in found.items() if regrets}
        if not found:
            return {}
        common = sorted(set.intersection(*(set(regrets) for regrets in found.values())))
        return {name: [regrets[seed] for seed in common] for name, regrets in found.items()}

    def holds(self, cell: Cell) -> bool:
        """Whether the cell was run."""
        rows = self._rows.get((cell.task, cell.workers), {}).get(cell.label, {})
        row = rows.get(cell.seed)
        return row is not None and row["horizon"] >= cell.horizon


def label(row: Row) -> str:
    return Cell(**{field: row[field] for field in Cell.__dataclass_fields__}).label
