"""Runs what is missing of the plan, then prints and writes the report.

    python -m benchmarks.search.offline [--quick] [--out DIR] [--report-only]
        [--side ours|peers] [--only CONTENDER] [--task TASK]

Rows go to DIR/rows.jsonl as they come, and a cell that is there already is not run again. The peers
run in PEER_PYTHON, an interpreter with ray[tune], optuna and syne-tune; without it they are left
out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.search.offline.cells import Cell, CellRunner
from benchmarks.search.offline.picture import write_page, write_svg
from benchmarks.search.offline.plan import OURS, PEERS, cells
from benchmarks.search.offline.report import figure, markdown, summary, write_csv
from benchmarks.search.offline.results import Results, Row

ROOT = Path(__file__).parents[3]


def run_ours(wanted: list[Cell]) -> Iterator[Row]:
    from benchmarks.search.offline.ours import make_search

    runner = CellRunner(
        lambda cell, outcomes: make_search(cell.tool, outcomes.task, cell.seed, cell.workers)
    )
    for cell in wanted:
        yield runner.run(cell)


def run_peers(wanted: list[Cell]) -> Iterator[Row]:
    python = os.environ.get("PEER_PYTHON")
    if python is None:
        for tool in {cell.tool for cell in wanted}:
            yield {"tool": tool, "missing": "PEER_PYTHON is not set"}
        return
    with tempfile.TemporaryFile("w+") as lines:
        lines.writelines(json.dumps(asdict(cell)) + "\n" for cell in wanted)
        lines.seek(0)
        command = [python, "-m", "benchmarks.search.offline.peers"]
        with subprocess.Popen(
            command, stdin=lines, stdout=subprocess.PIPE, cwd=ROOT, text=True
        ) as peers:
            assert peers.stdout is not None
            for line in peers.stdout:
                yield json.loads(line)
        if peers.returncode:
            raise SystemExit(f"{python} ended with {peers.returncode}")


def run(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.offline")
    parser.add_argument("--quick", action="store_true", help="5 seeds, 8 workers, budgets 2 and 6")
    parser.add_argument("--out", type=Path, help="folder of the results (default: a temporary one)")
    parser.add_argument("--only", default="", help="only contenders whose name this pattern finds")
    parser.add_argument("--task", default="", help="only tasks whose name this pattern finds")
    parser.add_argument("--side", choices=["ours", "peers"], help="only these contenders")
    parser.add_argument("--report-only", action="store_true", help="of what is in --out")
    options = parser.parse_args(arguments)
    out = options.out or Path(tempfile.mkdtemp(prefix="search-quality-"))
    out.mkdir(parents=True, exist_ok=True)
    rows = out / "rows.jsonl"
    if not options.report_only:
        done = Results.read(rows)
        with rows.open("a") as file:
            for side, entries, run_side in (("ours", OURS, run_ours), ("peers", PEERS, run_peers)):
                if options.side not in (None, side):
                    continue
                chosen = [entry for entry in entries if re.search(options.only, entry.tool)]
                wanted = [
                    cell
                    for cell in cells(chosen, options.quick)
                    if re.search(options.task, cell.task) and not done.holds(cell)
                ]
                for row in run_side(wanted):
                    file.write(json.dumps(row) + "\n")
                    file.flush()
    write_report(Results.read(rows), out)


def write_report(results: Results, out: Path) -> None:
    lines = summary(results)
    write_csv(lines, out / "results.csv")
    text = markdown(results, lines)
    (out / "tables.md").write_text(text)
    print(text)
    page = out / "regret.html"
    write_page(figure(results), page)
    try:
        write_svg(page, out / "regret.svg")
    except Exception as error:  # no browser: the page is enough
        print(f"no regret.svg: {error}")
    print(f"results.csv, tables.md, regret.html and rows.jsonl are in {out}")


if __name__ == "__main__":
    run()
