"""The offline benchmark's plan, its resumption and its tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks.search.offline import __main__ as command
from benchmarks.search.offline.cells import BUDGETS, GRID, Cell, CellRunner
from benchmarks.search.offline.ours import make_search
from benchmarks.search.offline.plan import OURS, PEERS, SOUND_TASKS, Entry, cells
from benchmarks.search.offline.report import markdown, summary, write_csv
from benchmarks.search.offline.results import Results


def run(cell: Cell) -> dict:
    return CellRunner(
        lambda cell, outcomes: make_search(cell.tool, outcomes.task, cell.seed, cell.workers)
    ).run(cell)


def test_the_quick_plan_is_small_and_paired() -> None:
    quick = cells([*OURS, *PEERS], quick=True)
    assert {cell.workers for cell in quick} == {8}
    assert max(cell.horizon for cell in quick) == 6
    assert {cell.seed for cell in quick} == {0, 1, 2, 3, 4}
    assert not any(cell.resume_cost for cell in quick)


def test_every_contender_meets_every_sound_task_with_the_same_seeds() -> None:
    for entry in [*OURS, *PEERS]:
        for workers, (seeds, _) in entry.settings.items():
            planned = cells([Entry(entry.tool, {workers: (seeds, 2.0)})], quick=False)
            assert {(cell.task, cell.seed) for cell in planned} == {
                (task, seed) for task in SOUND_TASKS for seed in range(seeds)
            }


def test_a_row_reads_regret_at_the_budgets_and_on_the_grid() -> None:
    row = run(Cell("random", "T1 curves4", 0, 2, 6.0))
    assert row["regret"][2] is None
    assert row["regret"][0] >= row["regret"][1] > 0
    assert [value is None for value in row["curve"]] == [when > 6.0 for when in GRID]
    assert json.loads(json.dumps(row)) == row


def test_finished_work_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "OURS", [Entry("random", {8: (2, 1.0)})])
    monkeypatch.setattr(command, "write_report", lambda results, out: None)
    arguments = ["--out", str(tmp_path), "--side", "ours", "--task", "T1"]
    command.run(arguments)
    rows = (tmp_path / "rows.jsonl").read_text()
    assert len(rows.splitlines()) == 2
    command.run(arguments)
    assert (tmp_path / "rows.jsonl").read_text() == rows


def test_without_an_interpreter_the_peers_are_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PEER_PYTHON", raising=False)
    results = Results(command.run_peers([Cell("Ray ASHA", "T1 curves4", 0, 8, 6.0)]))
    assert results.missing == {"Ray ASHA": "PEER_PYTHON is not set"}
    results = Results([*command.run_peers([Cell("Ray ASHA", "T1 curves4", 0, 8, 6.0)]), _row(0.1)])
    assert "Not installed: Ray ASHA" in markdown(results, summary(results))


def _row(regret: float, tool: str = "random", seed: int = 0) -> dict:
    return {
        "tool": tool,
        "task": "T1 curves4",
        "seed": seed,
        "workers": 8,
        "horizon": 6.0,
        "resume_cost": 0.0,
        "regret": [regret, regret, None],
        "curve": [regret if when <= 6 else None for when in GRID],
        "utilisation": 1.0,
        "first_full": 1.5,
        "trials": 10,
        "epochs": 100,
        "tool_us_per_trial": 20.0,
        "seconds": 0.1,
    }


def test_tables_show_the_loser(tmp_path: Path) -> None:
    ours, theirs = "promotion standard", "random"
    results = Results(
        [_row(0.5 + seed / 100, ours, seed) for seed in range(9)]
        + [_row(0.2 + seed / 100, theirs, seed) for seed in range(9)]
    )
    lines = summary(results)
    write_csv(lines, tmp_path / "results.csv")
    read = {line["contender"]: line for line in csv.DictReader((tmp_path / "results.csv").open())}
    assert read[ours]["regret_6_median"] == "0.54000"
    assert read[ours]["mean_rank"] == "2.00"
    assert float(read[theirs]["holm_p_against_reference"]) < 0.05
    assert read[theirs]["regret_20_median"] == ""
    text = markdown(results, lines)
    assert "0.240 [0.220, 0.260]" in text
    assert "| (b 0.75) | 0 of 1 |" in text
    assert "promotion standard 0.5400, random 0.2400" in text
    assert len(BUDGETS) == 3
