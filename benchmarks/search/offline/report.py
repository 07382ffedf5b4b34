"""Tables and the picture of a run's results."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.offline.bars import Verdict, verdicts
from benchmarks.search.offline.cells import BUDGETS, GRID
from benchmarks.search.offline.plan import SOUND_TASKS
from benchmarks.search.offline.results import Results
from benchmarks.search.offline.statistics import (
    holm,
    log_regret_area,
    mean_ranks,
    spread,
    wilcoxon_p,
)

REFERENCE = "promotion standard"
"""What everyone is tested against: what `adaptive_asha` does unless told otherwise."""

PICTURE_WORKERS = 8
LEAST_SEEDS = 3  # for a curve in the picture
PICTURED = {
    "random": "#999999",
    "promotion aggressive": "#1f77b4",
    "promotion standard": "#17becf",
    "stop_once aggressive": "#2ca02c",
    "tpe": "#9467bd",
    "Ray ASHA": "#ff7f0e",
    "Syne ASHA": "#8c564b",
    "Optuna random+Hyperband": "#e377c2",
    "Optuna TPE+Hyperband": "#d62728",
}


def summary(results: Results) -> list[dict[str, Any]]:
    """One line per task, workers and contender, with what the run reports."""
    lines = []
    for task, workers in results.groups():
        contenders = results.contenders(task, workers)
        compared = 2.0 if workers == 64 else 6.0  # where all contenders still take part
        ranks = _ranks(results, task, workers, contenders, compared)
        p_values = _p_values(results, task, workers, contenders, compared)
        for name in contenders:
            rows = results.rows(task, workers, name)
            until = min(6.0, min(row["horizon"] for row in rows))
            line: dict[str, Any] = {
                "task": task,
                "workers": workers,
                "contender": name,
                "seeds": len(rows),
            }
            for budget in BUDGETS:
                regrets = list(results.regrets(task, workers, name, budget).values())
                quartiles = spread(regrets) if regrets else None
                for field in ("low", "median", "high"):
                    value = f"{getattr(quartiles, field):.5f}" if quartiles else ""
                    line[f"regret_{budget:.0f}_{field}"] = value
            areas = [log_regret_area(row["curve"], GRID, until) for row in rows]
            firsts = [row["first_full"] for row in rows if row["first_full"] is not None]
            line |= {
                "log_regret_area": f"{statistics.median(areas):.3f}",
                "area_until": f"{until:.0f}",
                "compared_at": f"{compared:.0f}",
                "mean_rank": f"{ranks[name]:.2f}" if name in ranks else "",
                "holm_p_against_reference": f"{p_values[name]:.4f}" if name in p_values else "",
                "utilisation": f"{statistics.mean(row['utilisation'] for row in rows):.3f}",
                "first_full": f"{statistics.median(firsts):.2f}" if firsts else "",
                "trials": f"{statistics.median(row['trials'] for row in rows):.0f}",
                "tool_us_per_trial": (
                    f"{statistics.median(row['tool_us_per_trial'] for row in rows):.0f}"
                ),
            }
            lines.append(line)
    return lines


def _ranks(
    results: Results, task: str, workers: int, contenders: list[str], budget: float
) -> dict[str, float]:
    paired = results.paired(task, workers, contenders, budget)
    return mean_ranks(paired) if paired else {}


def _p_values(
    results: Results, task: str, workers: int, contenders: list[str], budget: float
) -> dict[str, float]:
    raw = {}
    for name in contenders:
        pair = results.paired(task, workers, (name, REFERENCE), budget)
        if name != REFERENCE and len(pair) == 2:
            raw[name] = wilcoxon_p(pair[name], pair[REFERENCE])
    return holm(raw)


def write_csv(lines: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def markdown(results: Results, lines: list[dict[str, Any]]) -> str:
    """All tables: regrets by contender and task, who it cost what, and the bars."""
    parts = []
    for workers in sorted({workers for _, workers in results.groups()}):
        for budget in BUDGETS:
            if table := _regret_table(lines, workers, budget):
                parts += [f"### {workers} workers, after {budget:.0f} full trainings\n", table]
    parts += ["### T6, 8 workers\n", _faulty_table(lines), "### Beside the regret\n"]
    parts += [_cost_table(lines), "### Bars\n", bar_table(list(verdicts(results)))]
    if results.missing:
        parts.append("Not installed: " + ", ".join(sorted(results.missing)) + "\n")
    return "\n".join(parts)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _regret_table(lines: list[dict[str, Any]], workers: int, budget: float) -> str:
    """Empty where nobody went so far."""
    names = list(dict.fromkeys(line["contender"] for line in lines if line["workers"] == workers))
    rows = []
    for name in names:
        cells, seeds, ranks = [], set(), []
        for task in SOUND_TASKS:
            line = _find(lines, task, workers, name)
            median = line and line[f"regret_{budget:.0f}_median"]
            if line is None or not median:
                cells.append("-")
                continue
            low, high = (float(line[f"regret_{budget:.0f}_{q}"]) for q in ("low", "high"))
            cells.append(f"{float(median):.3f} [{low:.3f}, {high:.3f}]")
            seeds.add(line["seeds"])
            if line["mean_rank"] and float(line["compared_at"]) == budget:
                ranks.append(float(line["mean_rank"]))
        if seeds:
            rank = f"{statistics.mean(ranks):.1f}" if ranks else "-"
            rows.append([name, *cells, rank, "/".join(str(n) for n in sorted(seeds))])
    return _table(["", *SOUND_TASKS, "mean rank", "seeds"], rows) if rows else ""


def _faulty_table(lines: list[dict[str, Any]]) -> str:
    rows = [
        [
            line["contender"],
            *(line[f"regret_{budget:.0f}_median"] or "-" for budget in BUDGETS),
            line["trials"],
            str(line["seeds"]),
        ]
        for line in lines
        if line["task"].startswith("T6")
    ]
    header = ["", *(f"after {budget:.0f}" for budget in BUDGETS), "trials", "seeds"]
    return _table(header, rows)


def _cost_table(lines: list[dict[str, Any]]) -> str:
    rows = [
        [
            line["contender"],
            line["log_regret_area"],
            line["utilisation"],
            line["first_full"],
            line["trials"],
            line["tool_us_per_trial"],
        ]
        for line in lines
        if line["task"].startswith("T1") and line["workers"] == PICTURE_WORKERS
    ]
    header = ["T1, 8 workers", "area", "utilisation", "first full", "trials", "tool's CPU us/trial"]
    return _table(header, rows)


def bar_table(found: list[Verdict]) -> str:
    """Each bar, and how often it holds; those that do not, one by one."""
    rows = []
    for bar in dict.fromkeys(verdict.bar for verdict in found):
        of_bar = [verdict for verdict in found if verdict.bar == bar]
        held = sum(verdict.holds for verdict in of_bar)
        rows.append([f"({bar})", f"{held} of {len(of_bar)}", "", "", "", ""])
        rows += [
            ["", "fails", v.task, f"{v.workers} workers, {v.budget:.0f}", str(v.seeds), v.figure]
            for v in of_bar
            if not v.holds
        ]
    return _table(["bar", "holds", "task", "where", "seeds", "median regrets"], rows)


def _find(
    lines: list[dict[str, Any]], task: str, workers: int, contender: str
) -> dict[str, Any] | None:
    for line in lines:
        if (line["task"], line["workers"], line["contender"]) == (task, workers, contender):
            return line
    return None


def figure(results: Results) -> Any:
    """Median regret over time at 8 workers, a panel per task, as a plotly figure."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = make_subplots(rows=2, cols=3, subplot_titles=SOUND_TASKS, vertical_spacing=0.12)
    for place, task in enumerate(SOUND_TASKS):
        for name, colour in PICTURED.items():
            rows = results.rows(task, PICTURE_WORKERS, name)
            if len(rows) < LEAST_SEEDS:
                continue
            until = min(row["horizon"] for row in rows)
            times = [round(time, 3) for time in GRID if time <= until * (1 + 1e-9)]
            curves = np.array([row["curve"][: len(times)] for row in rows], dtype=float)
            line = go.Scatter(
                x=times,
                y=[float(f"{value:.3g}") for value in np.median(curves, axis=0)],
                name=name,
                mode="lines",
                line={"color": colour, "width": 1.5},
                legendgroup=name,
                showlegend=place == 0,
            )
            panels.add_trace(line, row=place // 3 + 1, col=place % 3 + 1)
    panels.update_xaxes(type="log", tickvals=[0.5, 1, 2, 6, 20])
    panels.update_yaxes(type="log", dtick="D2")
    for column in (1, 2, 3):
        panels.update_xaxes(title_text="time, full trainings", row=2, col=column)
    for line_number in (1, 2):
        panels.update_yaxes(title_text="median regret", row=line_number, col=1)
    panels.update_layout(
        template="plotly_white",
        width=1000,
        height=640,
        margin={"l": 60, "r": 20, "t": 40, "b": 90},
        legend={"orientation": "h", "y": -0.14},
        font={"size": 11},
    )
    return panels
