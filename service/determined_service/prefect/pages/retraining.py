"""The page of a retraining's run: what became of this time, and of each time before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.prefect.pages import markdown

MOST_RUNS = 50
"""How many times the history has."""
MOST_SCORES = 20

_RUN = sa.text(
    """
    SELECT r.*, t.model_id, t.plan, t.paused, t.next_at, m.name AS model, u.username,
           (SELECT version FROM model_aliases a
            WHERE a.model_id = m.id AND a.alias = t.plan ->> 'alias') AS standing
    FROM retraining_runs r JOIN retrainings t ON t.id = r.retraining_id
    JOIN models m ON m.id = t.model_id JOIN users u ON u.id = t.owner_id WHERE r.id = :id
    """
)
_HISTORY = sa.text(
    """
    SELECT id, state, cause, reason, failed_step, version, champion_version, training_experiment,
           started_at, ended_at
    FROM retraining_runs WHERE retraining_id = :id ORDER BY id DESC LIMIT :most
    """
)
_WORDS = {
    "CHECKING": "looks at the data",
    "TRAINING": "trains the challenger",
    "EVALUATING": "scores challenger and champion",
    "PROMOTING": "registers the version",
    "WAITING_FOR_APPROVAL": "waits for a person",
}


@dataclass(frozen=True, slots=True)
class RetrainingPage:
    """``text`` is Markdown. ``model_id``: pages of one model have one name in Prefect."""

    model_id: int
    model: str
    text: str


async def retraining_page(conn: AsyncConnection, run_id: int) -> RetrainingPage | None:
    """The page's present content; None: the run is gone."""
    run = (await conn.execute(_RUN, {"id": run_id})).first()
    if run is None:
        return None
    given = {"id": run.retraining_id, "most": MOST_RUNS}
    history = (await conn.execute(_HISTORY, given)).all()
    name = markdown.text(run.model)
    parts = [
        f"## {name}: retraining run {run_id}",
        _how_it_is(run),
        markdown.facts(_facts(run)),
        *_scores(run.decision),
        f"### Each time that {name} was trained again\n\n{_history(history)}",
    ]
    return RetrainingPage(run.model_id, run.model, "\n\n".join(parts))


def _how_it_is(run: sa.Row[Any]) -> str:
    words = f"**{markdown.text(run.state)}**"
    if run.state in _WORDS:
        words += f": {_WORDS[run.state]}"
    if run.failed_step:
        words += f" at {markdown.text(run.failed_step)}"
    if run.reason:
        words += f": {markdown.text(run.reason, 1000)}"
    if run.state == "WAITING_FOR_APPROVAL":
        words += f"\n\nOn a terminal: {_command('approve', run.model)}, with `--reject` to keep the champion."
    return words


def _facts(run: sa.Row[Any]) -> list[tuple[str, str]]:
    alias = markdown.text(run.plan.get("alias", "champion"))
    standing = "no version" if run.standing is None else f"version {run.standing}"
    found = [
        (f"{alias} now", standing),
        ("begun by", markdown.text(run.cause)),
        ("owner", markdown.text(run.username)),
    ]
    if run.data_version is not None:
        found.append(("data", markdown.text(run.data_version)))
    steps = [
        ("data checked by", run.check_experiment),
        ("trained by", run.training_experiment),
        ("scored by", run.evaluation_experiment),
    ]
    found += [(name, f"experiment {number}") for name, number in steps if number is not None]
    if run.challenger is not None:
        found.append(("challenger", f"`{run.challenger}`"))
    if run.version is not None:
        found.append(("it is", f"version {run.version}"))
    if run.champion_version is not None:
        found.append(("compared with", f"version {run.champion_version}"))
    if run.paused:
        found.append(("schedule", "paused"))
    elif run.next_at is not None:
        found.append(("next time", markdown.text(_moment(run.next_at))))
    found.append(("on a terminal", _command("history", run.model)))
    return found


def _command(what: str, model: str) -> str:
    return f"{markdown.text('det retrain')} {what} {markdown.text(model)}"


def _scores(decision: Mapping[str, Any] | None) -> list[str]:
    scores = (decision or {}).get("scores")
    if not isinstance(scores, Mapping):
        return []
    rows = [
        [name, one.get("champion"), one.get("challenger"), one.get("gain_low"), one.get("examples")]
        for name, one in list(scores.items())[:MOST_SCORES]
    ]
    cells = [[name, *("" if cell is None else cell for cell in rest)] for name, *rest in rows]
    header = ["score", "champion", "challenger", "gain is more than", "examples"]
    return [markdown.table(header, cells)]


def _history(rows: Sequence[sa.Row[Any]]) -> str:
    header = ["run", "state", "why", "version", "begun (UTC)", "by", "experiment"]
    return markdown.table(
        header,
        [
            (
                row.id,
                row.state + (f" at {row.failed_step}" if row.failed_step else ""),
                row.reason or "",
                "" if row.version is None else row.version,
                _moment(row.started_at),
                row.cause,
                "" if row.training_experiment is None else row.training_experiment,
            )
            for row in rows
        ],
    )


def _moment(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
