"""The page of an experiment's run: how far it is, its trials as a table, a summary with links."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.printable import one_line
from determined.common.wire import mlflow
from determined.common.wire import pages as front
from determined_registry.database.tables import experiments, trials
from determined_service.base import pages
from determined_service.base.settings import Settings
from determined_service.plots import links
from determined_service.plots.hparams import flatten
from determined_service.prefect.pages import markdown
from determined_service.state import states
from determined_service.views.checkpoints import best_checkpoints
from determined_service.views.experiments import DURATION, SHOWN_STATE
from determined_service.views.trials import SHOWN_STATE as SHOWN_TRIAL_STATE
from determined_service.views.trials import STEPS

BEST, OPEN, FIRST = 50, 25, 25
"""The numbers of trials in the table: the best, the open ones, the first ones."""
COLUMNS = 20
"""The number of hyperparameters in the table and the summary."""
MOST_VERSIONS = 10
MOST_BOARDS = 5
CELL = 100

_EXPERIMENT = sa.text(
    """
    SELECT e.id, e.name, e.description, e.config, e.progress, e.state, e.reason, e.resource_pool,
           e.start_time, e.end_time, e.labels, u.username
    FROM experiments e JOIN users u ON u.id = e.owner_id WHERE e.id = :id
    """
)
_SHOWN = sa.select(SHOWN_STATE, DURATION).where(experiments.c.id == sa.bindparam("id"))
_COUNTS = sa.text(
    "SELECT state, count(*) AS n FROM trials WHERE experiment_id = :id GROUP BY state"
)
# By the indexes, so that a search of a hundred thousand trials costs as much as a small one.
_CHOSEN = """
    SELECT id FROM ((
        SELECT id FROM trials WHERE experiment_id = :id AND searcher_metric_value IS NOT NULL
        ORDER BY {loss}, id LIMIT :best
    ) UNION (
        SELECT id FROM trials WHERE experiment_id = :id
        AND state NOT IN ('COMPLETED', 'CANCELED', 'ERROR') ORDER BY id LIMIT :open
    ) UNION (
        SELECT id FROM trials WHERE experiment_id = :id ORDER BY id LIMIT :first
    )) AS chosen
"""
_CHOSEN_LEAST = sa.text(_CHOSEN.format(loss="searcher_metric_value"))
_CHOSEN_GREATEST = sa.text(_CHOSEN.format(loss="(- searcher_metric_value)"))
_TRIALS = sa.select(
    trials.c.id,
    trials.c.hparams,
    trials.c.searcher_metric_value,
    STEPS.label("steps"),
    trials.c.restarts,
    trials.c.reason,
    trials.c.state,
    SHOWN_TRIAL_STATE.label("shown_state"),
).where(trials.c.id == sa.func.any(sa.bindparam("ids", type_=sa.ARRAY(sa.Integer))))
_VERSIONS = sa.text(
    """
    SELECT m.name, v.version, v.checkpoint_uuid,
           array(SELECT alias FROM model_aliases a
                 WHERE a.model_id = m.id AND a.version = v.version ORDER BY alias) AS aliases
    FROM model_versions v JOIN models m ON m.id = v.model_id
    JOIN checkpoints c ON c.uuid = v.checkpoint_uuid
    WHERE c.experiment_id = :id ORDER BY v.id DESC LIMIT :most
    """
)


OF_BOARDS = """
    SELECT k.id, k.name, k.owner_id, k.start_time, e.id AS experiment_id
    FROM tasks k, LATERAL (
        SELECT cast(jsonb_array_elements_text(k.data -> 'experiment_ids') AS int) AS id
        UNION
        SELECT t.experiment_id FROM trials t WHERE t.id IN (
            SELECT cast(jsonb_array_elements_text(k.data -> 'trial_ids') AS int))
    ) e
    WHERE k.kind = 'TENSORBOARD' AND k.state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')
"""
"""TensorBoards that have not ended, once for each of their experiments."""
_BOARDS = sa.text(
    f"SELECT b.id, b.name, u.username FROM ({OF_BOARDS}) b JOIN users u ON u.id = b.owner_id"
    " WHERE b.experiment_id = :id ORDER BY b.start_time, b.id LIMIT :most"
)


@dataclass(frozen=True, slots=True)
class ExperimentPage:
    """``progress`` in percent; ``trials``: a JSON list of rows; ``summary``: Markdown."""

    progress: float
    trials: str
    summary: str


async def experiment_page(
    conn: AsyncConnection, settings: Settings, experiment_id: int
) -> ExperimentPage | None:
    """The present contents of the page; None: the experiment is gone."""
    experiment = (await conn.execute(_EXPERIMENT, {"id": experiment_id})).first()
    if experiment is None:
        return None
    shown, duration = (await conn.execute(_SHOWN, {"id": experiment_id})).one()
    counts = {row.state: row.n for row in await conn.execute(_COUNTS, {"id": experiment_id})}
    searcher = experiment.config["searcher"]
    least = bool(searcher.get("smaller_is_better", True))
    chosen = await conn.execute(
        _CHOSEN_LEAST if least else _CHOSEN_GREATEST,
        {"id": experiment_id, "best": BEST, "open": OPEN, "first": FIRST},
    )
    rows = (await conn.execute(_TRIALS, {"ids": list(chosen.scalars())})).all()
    rows = sorted(rows, key=lambda row: _rank(row, least))
    best = rows[0] if rows and rows[0].searcher_metric_value is not None else None
    ended = experiment.state in states.ENDED
    plots = links.link(settings, experiment_id)
    progress = 1.0 if experiment.state == states.COMPLETED else experiment.progress
    return ExperimentPage(
        progress=round(100.0 * min(max(progress, 0.0), 1.0), 1),
        trials=_table(rows, searcher.get("metric") or "metric"),
        summary="\n\n".join(
            [
                f"## {markdown.text(experiment.name)} (experiment {experiment_id})",
                _how_it_is(experiment, shown, duration, ended),
                markdown.facts(
                    [
                        ("owner", markdown.text(experiment.username)),
                        ("search", _search(searcher, least)),
                        ("trials", _counted(counts, len(rows))),
                        *(await _of_the_best(conn, best, searcher)),
                        *(await _versions(conn, experiment_id)),
                        ("resource pool", markdown.text(experiment.resource_pool)),
                        *_labels(experiment.labels),
                        ("page", _page(settings, experiment_id)),
                        (
                            "plots",
                            f"[learning curves, hyperparameters, rungs]({plots})",
                        ),
                        *_in_mlflow(settings, experiment_id, searcher, least),
                        ("in TensorBoard", await _in_tensorboard(conn, settings, experiment_id)),
                        ("on a terminal", f"`det experiment describe {experiment_id}`"),
                    ]
                ),
                *_failures(rows),
            ]
        ),
    )


def _rank(row: sa.Row[Any], least: bool) -> tuple[bool, bool, float, int]:
    value = row.searcher_metric_value
    if value is None:
        return (True, False, 0.0, row.id)
    return (False, value != value, value if least else -value, row.id)


def _how_it_is(experiment: sa.Row[Any], shown: str, duration: Any, ended: bool) -> str:
    took = str(datetime.timedelta(seconds=int(duration)))
    words = f"**{markdown.text(shown)}** {'after' if ended else 'for'} {took}"
    if experiment.reason:
        words += f": {markdown.text(experiment.reason, 1000)}"
    if experiment.description:
        words += f"\n\n{markdown.text(experiment.description, 1000)}"
    return words


def _search(searcher: dict[str, Any], least: bool) -> str:
    way = "the smallest" if least else "the largest"
    return f"{markdown.text(searcher['name'])} for {way} {markdown.text(searcher.get('metric'))}"


def _counted(counts: dict[str, int], shown: int) -> str:
    total = sum(counts.values())
    parts = [
        f"{number} {markdown.text(state.lower().replace('_', ' '))}"
        for state, number in sorted(counts.items())
    ]
    words = f"{total:,}: {', '.join(parts)}" if parts else "none yet"
    return words if shown >= total else f"{words} (the table has {shown} of them)"


async def _of_the_best(
    conn: AsyncConnection, best: sa.Row[Any] | None, searcher: dict[str, Any]
) -> list[tuple[str, str]]:
    if best is None:
        return [("best trial", "none has reported a validation yet")]
    value = markdown.text(markdown.number(best.searcher_metric_value))
    found = [("best trial", f"{best.id}: {markdown.text(searcher.get('metric'))} {value}")]
    if pairs := list(flatten(best.hparams).items())[:COLUMNS]:
        words = ", ".join(
            f"{name}={markdown.cut(markdown.number(one), CELL)}" for name, one in pairs
        )
        found.append(("its hyperparameters", markdown.text(words, 1000)))
    checkpoint = (await best_checkpoints(conn, [best.id])).get(best.id)
    if checkpoint is not None:
        found.append(("its best checkpoint", f"`{checkpoint['uuid']}`"))
    return found


async def _versions(conn: AsyncConnection, experiment_id: int) -> list[tuple[str, str]]:
    rows = await conn.execute(_VERSIONS, {"id": experiment_id, "most": MOST_VERSIONS})
    words = [
        f"{markdown.text(row.name)} version {row.version}"
        + (f" \\({markdown.text(', '.join(row.aliases))}\\)" if row.aliases else "")
        for row in rows
    ]
    return [("model versions", "; ".join(words))] if words else []


def _page(settings: Settings, experiment_id: int) -> str:
    address = f"{pages.of_service(settings)}{front.experiment(experiment_id)}"
    return f"[trials, curves, logs, what you can do with it]({address})"


def _in_mlflow(
    settings: Settings, experiment_id: int, searcher: dict[str, Any], least: bool
) -> list[tuple[str, str]]:
    if not pages.has_mlflow():
        return []
    page = mlflow.experiment(experiment_id, searcher.get("metric"), least)
    return [("in MLflow", f"[its trials]({pages.of_service(settings)}{markdown.address(page)})")]


async def _in_tensorboard(conn: AsyncConnection, settings: Settings, experiment_id: int) -> str:
    rows = await conn.execute(_BOARDS, {"id": experiment_id, "most": MOST_BOARDS})
    found = [
        f"[{markdown.text(row.name)}]({pages.of_service(settings)}{markdown.address(_login(row.id))})"
        f" of {markdown.text(row.username)}"
        for row in rows
    ]
    return "; ".join([*found, f"`det tensorboard start {experiment_id}` opens one"])


def _login(task_id: str) -> str:
    """Of the page that asks for the password, and leads to the task."""
    return f"/task-login?task={quote(task_id)}&next={quote(f'/proxy/{task_id}/', safe='')}"


def _labels(labels: Sequence[str]) -> list[tuple[str, str]]:
    return [("labels", markdown.text(", ".join(labels)))] if labels else []


def _failures(rows: Sequence[sa.Row[Any]]) -> list[str]:
    failed = [row for row in rows if row.state == states.ERROR][:5]
    if not failed:
        return []
    said = markdown.table(
        ["trial", "why it failed"], [(row.id, row.reason or "no reason is known") for row in failed]
    )
    return [f"**Failed trials** (the log of each is on the page of its run)\n\n{said}"]


def _table(rows: Sequence[sa.Row[Any]], metric: str) -> str:
    hparams = {row.id: flatten(row.hparams) for row in rows}
    names = sorted({name for found in hparams.values() for name in found})[:COLUMNS]
    found = [
        {
            "trial": row.id,
            "state": row.shown_state,
            markdown.cut(one_line(metric), CELL): _cell(row.searcher_metric_value),
            "steps": row.steps,
            "restarts": row.restarts,
            **{
                markdown.cut(one_line(name), CELL): _cell(hparams[row.id].get(name))
                for name in names
            },
        }
        for row in rows
    ]
    return orjson.dumps(found).decode()


def _cell(value: Any) -> str:
    """Prefect reads cells as Markdown, but not the names of columns."""
    if value is None or isinstance(value, int | float):
        return "" if value is None else markdown.number(value)
    return markdown.text(markdown.number(value), CELL)
