"""Runs the peers' cells: JSON lines of cells in, JSON lines of rows out.

    PEER_PYTHON -m benchmarks.search.offline.peers < cells.jsonl > rows.jsonl

Cells of a tool that is not installed give {"tool": ..., "missing": reason} once.
"""

from __future__ import annotations

import json
import sys
import warnings

from benchmarks.search.offline.cells import Cell, CellRunner
from benchmarks.search.offline.simulator import Tool
from benchmarks.search.offline.tasks import MAX_EPOCHS, Outcomes

LEAST_EPOCHS = 2.5  # fewer epochs per trial than any halving here comes to


def make_tool(cell: Cell, outcomes: Outcomes) -> Tool:
    """The tool of ``cell``. Raises ImportError where it is not installed."""
    match cell.tool.split(maxsplit=1):
        case ["Ray", kind]:
            from benchmarks.search.offline.peers.ray_tune import RaySearch

            brackets = {"random": None, "ASHA": 1, "ASHA 3 brackets": 3}[kind]
            return RaySearch(brackets, cell.seed)
        case ["Syne", kind]:
            from benchmarks.search.offline.peers.syne import SyneSearch

            most = int(cell.workers * (cell.horizon * MAX_EPOCHS / LEAST_EPOCHS + 100))
            return SyneSearch(outcomes, cell.seed, {"ASHA": most, "BOHB": None}[kind])
        case ["Optuna", kind]:
            from benchmarks.search.offline.peers.optuna_study import OptunaSearch

            sampler, pruner = kind.split("+")
            return OptunaSearch(
                outcomes.task.space,
                cell.seed,
                tpe={"TPE": True, "random": False}[sampler],
                hyperband={"Hyperband": True, "SH": False}[pruner],
            )
    raise ValueError(f"no peer {cell.tool!r}")


def main() -> None:
    warnings.filterwarnings("ignore")
    runner = CellRunner(make_tool)
    missing: set[str] = set()
    for line in sys.stdin:
        cell = Cell(**json.loads(line))
        if cell.tool in missing:
            continue
        try:
            result = runner.run(cell)
        except ImportError as error:
            missing.add(cell.tool)
            result = {"tool": cell.tool, "missing": str(error)}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
