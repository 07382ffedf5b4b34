"""The page of a trial's run: how it ended, its metrics, checkpoints and legs, the end of its log."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.printable import one_line, without_colours
from determined.common.wire import mlflow
from determined.common.wire import pages as front
from determined_service.base import pages
from determined_service.base.settings import Settings
from determined_service.plots.hparams import flatten
from determined_service.prefect.pages import markdown

LINES = 200
LINE_CHARACTERS = 400
MOST_METRICS, MOST_CHECKPOINTS, MOST_LEGS, MOST_HPARAMS = 50, 20, 10, 50

# One statement: a trial of a second or less has such a page, too.
_TRIAL = sa.text(
    """
    SELECT t.id, t.experiment_id, t.state, t.reason, t.restarts, t.run_count, t.hparams, e.name,
        (SELECT greatest(max(last_steps), 0) FROM metric_summaries WHERE trial_id = t.id) AS steps,
        (SELECT coalesce(jsonb_agg(to_jsonb(m)), '[]') FROM (
            SELECT group_name, metric, count, min, max, last FROM metric_summaries
            WHERE trial_id = t.id ORDER BY group_name, metric LIMIT :metrics) AS m) AS metrics,
        (SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') FROM (
            SELECT uuid, state, steps_completed, size FROM checkpoints
            WHERE trial_id = t.id ORDER BY steps_completed DESC, uuid LIMIT :checkpoints
            ) AS c) AS checkpoints,
        (SELECT coalesce(jsonb_agg(to_jsonb(l) ORDER BY l.run_id), '[]') FROM (
            SELECT g.run_id, g.state, g.reason, concat_ws('/', a.agent_id, a.machine) AS place,
                   extract(epoch FROM coalesce(g.end_time, now()) - g.start_time) AS seconds
            FROM legs g JOIN tasks k ON k.id = g.task_id LEFT JOIN allocations a ON a.id = g.allocation_id
            WHERE k.id = t.task_id OR k.former_of = t.id
            ORDER BY g.run_id DESC LIMIT :legs) AS l) AS legs
    FROM trials t JOIN experiments e ON e.id = t.experiment_id WHERE t.task_id = :task_id
    """
)
_LOG = sa.text(
    """
    SELECT substr(log, 1, :bytes) AS line, rank_id FROM task_logs
    WHERE task_id = :task_id ORDER BY id DESC LIMIT :lines
    """
)


@dataclass(frozen=True, slots=True)
class TrialPage:
    """``text`` is Markdown."""

    trial_id: int
    legs: int
    text: str


async def trial_page(conn: AsyncConnection, settings: Settings, task_id: str) -> TrialPage | None:
    """The present contents of the page; None: no trial has the task (any more), or the trial has never
    run."""
    given = {
        "task_id": task_id,
        "metrics": MOST_METRICS,
        "checkpoints": MOST_CHECKPOINTS,
        "legs": MOST_LEGS,
    }
    trial = (await conn.execute(_TRIAL, given)).first()
    if trial is None or not trial.run_count:
        return None
    limits = {"task_id": task_id, "bytes": LINE_CHARACTERS, "lines": LINES}
    log = (await conn.execute(_LOG, limits)).all()
    text = "\n\n".join(
        [
            f"## Trial {trial.id} of experiment {trial.experiment_id}: {markdown.text(trial.name)}",
            _how_it_is(trial),
            f"[Trial {trial.id}'s page]({pages.of_service(settings)}{front.trial(trial.id)})",
            *_in_mlflow(settings, trial),
            *_section(
                "Metrics",
                ["group", "metric", "last", "least", "greatest", "reports"],
                _metrics(trial),
            ),
            *_section("Checkpoints", ["uuid", "after steps", "state", "size"], _checkpoints(trial)),
            *_section("Hyperparameters", ["name", "value"], _hparams(trial)),
            *_section("Legs", ["leg", "agent", "took", "how it ended"], _legs(trial)),
            *_log_of(trial, log),
        ]
    )
    return TrialPage(trial.id, trial.run_count, text)


def _how_it_is(trial: sa.Row[Any]) -> str:
    words = f"**{markdown.text(trial.state)}** after {trial.steps} step{'' if trial.steps == 1 else 's'}"
    if trial.restarts:
        words += f", {trial.restarts} restart{'s' if trial.restarts > 1 else ''}"
    return words + (f": {markdown.text(trial.reason, 1000)}" if trial.reason else "")


def _in_mlflow(settings: Settings, trial: sa.Row[Any]) -> list[str]:
    if not pages.has_mlflow():
        return []
    page = mlflow.trial(trial.experiment_id, trial.id)
    return [f"[Trial {trial.id} in MLflow]({pages.of_service(settings)}{page})"]


def _section(title: str, header: Sequence[str], rows: list[Sequence[Any]]) -> list[str]:
    return [f"### {title}\n\n{markdown.table(header, rows)}"] if rows else []


def _metrics(trial: sa.Row[Any]) -> list[Sequence[Any]]:
    return [
        [
            one["group_name"],
            one["metric"],
            *("" if one[value] is None else one[value] for value in ("last", "min", "max")),
            one["count"],
        ]
        for one in trial.metrics
    ]


def _checkpoints(trial: sa.Row[Any]) -> list[Sequence[Any]]:
    return [
        [one["uuid"], one["steps_completed"], one["state"], f"{one['size'] / 2**20:.1f} MiB"]
        for one in trial.checkpoints
    ]


def _hparams(trial: sa.Row[Any]) -> list[Sequence[Any]]:
    return [list(pair) for pair in sorted(flatten(trial.hparams).items())[:MOST_HPARAMS]]


def _legs(trial: sa.Row[Any]) -> list[Sequence[Any]]:
    if trial.run_count < 2:
        return []
    return [
        [
            one["run_id"],
            one["place"],
            "" if one["seconds"] is None else str(datetime.timedelta(seconds=int(one["seconds"]))),
            ": ".join(part for part in (one["state"], one["reason"]) if part),
        ]
        for one in trial.legs
    ]


def _log_of(trial: sa.Row[Any], rows: Sequence[sa.Row[Any]]) -> list[str]:
    if not rows:
        return []
    lines = [_line(row) for row in reversed(rows)]
    which = "The log" if len(rows) < LINES else f"The last {LINES} lines of the log"
    return [
        f"### {which}\n\nThe whole of it: `det trial logs {trial.id}`\n\n{markdown.fenced(lines)}"
    ]


def _line(row: sa.Row[Any]) -> str:
    rank = "" if row.rank_id is None else f"[rank={row.rank_id}] "
    return rank + one_line(without_colours(row.line.decode("utf-8", "replace").rstrip("\r\n")))
