"""Validations without the searcher's metric: the messages to the user and the search.

The metric's name in the configuration is a promise that only the script can keep. A script that reports it
under another name trains to its end like any other; without a message the mistake would stay unnoticed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_searchers import MetricMissing
from determined_searchers.settings import nearest
from determined_service.ingest import logs
from determined_service.ingest.reports import Reported, ValidationReport
from determined_service.ingest.trial_facts import TrialFacts
from determined_service.ingest.values import type_name

NAMES = 12
"""The most names of metrics in a message, and below the most characters of each:"""
NAME_CHARS = 100

COMPARED = 200
"""So many names of metrics are compared with the searcher's."""

_FACTS = sa.text(
    """
    SELECT t.id, t.task_id, t.latest_validation_id IS NULL AS fresh,
           EXISTS (SELECT FROM metric_summaries s WHERE s.trial_id = t.id AND s.metric = given.metric
                   AND s.group_name = 'validation'
                   AND (s.type = 'number' OR s.finite_count > 0)) AS has_reported,
           EXISTS (SELECT FROM metric_summaries s WHERE s.trial_id = t.id AND s.metric = given.metric
                   AND s.group_name = 'training') AS trains_with
    FROM unnest(cast(:ids AS int[]), cast(:metrics AS text[])) AS given(id, metric)
    JOIN trials t ON t.id = given.id
    ORDER BY t.task_id
    """
)
# The first report is found soon if the metric is ever reported.
_REPORTED = sa.text(
    """
    SELECT e.config -> 'searcher' ->> 'metric' AS metric, EXISTS (
        SELECT FROM trials t JOIN metric_summaries s ON s.trial_id = t.id
        WHERE t.experiment_id = e.id AND s.group_name = 'validation'
          AND (s.type = 'number' OR s.finite_count > 0)
          AND s.metric = e.config -> 'searcher' ->> 'metric') AS reported
    FROM experiments e WHERE e.id = :id AND NOT e.unmanaged
    """
)
_INSTEAD = sa.text(
    """
    SELECT DISTINCT s.metric
    FROM (SELECT id FROM trials WHERE experiment_id = :id ORDER BY id LIMIT 20) t
    JOIN metric_summaries s ON s.trial_id = t.id
    WHERE s.group_name = 'validation' ORDER BY s.metric LIMIT :most
    """
)


# A trial that goes on may still validate.
_ONLY_TRAINING = sa.text(
    """
    SELECT s.metric
    FROM (SELECT id FROM trials WHERE experiment_id = :id AND state = 'COMPLETED' ORDER BY id LIMIT 20) t
    JOIN metric_summaries s ON s.trial_id = t.id
    WHERE s.group_name = 'training'
    GROUP BY s.metric ORDER BY s.metric <> :metric, s.metric LIMIT :most
    """
)
_OF_TRIAL = sa.text(
    """
    SELECT e.config -> 'searcher' ->> 'metric' AS metric,
           array(SELECT s.metric FROM metric_summaries s
                 WHERE s.trial_id = t.id AND s.group_name = 'training'
                 ORDER BY s.metric <> e.config -> 'searcher' ->> 'metric', s.metric LIMIT :most) AS names
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    WHERE t.id = :id AND t.latest_validation_id IS NULL AND NOT e.unmanaged
    """
)


def lacks(metrics: Mapping[str, Any], name: str) -> bool:
    """True if a validation's ``metrics`` have no number (NaN and infinities are) of this name."""
    return name not in metrics or type_name(metrics[name]) != "number"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_CHARS else name[:NAME_CHARS] + "…"


def _nearest(metric: str, names: Iterable[str]) -> str:
    """As ``nearest``, which takes long for many names."""
    return nearest(metric[:NAME_CHARS], map(_cut, itertools.islice(names, COMPARED)))


def _named(names: Sequence[str]) -> str:
    shown = list(map(_cut, names[:NAMES]))
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return (", ".join(shown) or "none") + more


def in_words(metric: str, validation: ValidationReport, *, trains_with: bool) -> str:
    """The message for a validation that lacks the searcher's ``metric``."""
    steps, metrics = validation.steps, validation.metrics
    name = repr(_cut(metric))
    if metric in metrics:
        return (
            f"searcher.metric is {name}, but the validation after {steps} steps has no number of this "
            f"name: it is of type {type_name(metrics[metric])}"
        )
    words = (
        f"searcher.metric is {name}, but the validation after {steps} steps has no such metric; it has "
        f"{_named(list(metrics))}{_nearest(metric, metrics)}"
    )
    if trains_with:
        words += f"; training reports have {name}, but the searcher goes by validations"
    return words


async def note_missing(
    conn: AsyncConnection,
    facts: Mapping[int, TrialFacts],
    reported: Sequence[Reported],
) -> dict[int, list[MetricMissing]]:
    """Warns in the log of each trial whose first validation lacks the metric; what to tell the searches that
    go by reports, by experiment.

    ``reported``: validations that are rows and summaries now, but not yet among the trials' best and latest.
    Whether the search is told must not depend on how reports come in batches: what comes after the first one
    counts for no search.
    """
    lacking = [
        one
        for one in reported
        if not (of := facts[one.trial_id]).unmanaged
        and of.metric
        and lacks(one.validation.metrics, of.metric)
    ]
    if not lacking:
        return {}
    ids = sorted({one.trial_id for one in lacking})
    given = {"ids": ids, "metrics": [facts[one].metric for one in ids]}
    events: dict[int, list[MetricMissing]] = {}
    for row in list(await conn.execute(_FACTS, given)):
        fact = facts[row.id]
        mine = [one for one in lacking if one.trial_id == row.id]
        first = min((one for one in reported if one.trial_id == row.id), key=lambda one: one.row_id)
        by_reports = fact.time_metric is not None
        if row.has_reported and not (by_reports and row.fresh and first in mine):
            continue
        if row.fresh:
            words = in_words(fact.metric, mine[0].validation, trains_with=row.trains_with)
            text = (
                f"{words}. Until one has it, this trial has no best validation and no best checkpoint, and "
                "no search can compare it: report the metric, or name another in the configuration"
            )
            await logs.add_line(conn, row.task_id, mine[0].allocation_id, text, "WARNING")
        if by_reports:
            words = in_words(fact.metric, mine[0].validation, trains_with=row.trains_with)
            event = MetricMissing(fact.request_id, f"trial {row.id}: {words}")
            events.setdefault(fact.experiment_id, []).append(event)
    return events


async def never_reported(conn: AsyncConnection, experiment_id: int) -> str | None:
    """In words, that no trial of the experiment ever reported its searcher's metric, although they
    validated, or trained to their end without; else None."""
    row = (await conn.execute(_REPORTED, {"id": experiment_id})).first()
    if row is None or not row.metric or row.reported:
        return None
    given = {"id": experiment_id, "most": COMPARED}
    names = list((await conn.execute(_INSTEAD, given)).scalars())
    if not names:
        given["metric"] = row.metric
        trained = list((await conn.execute(_ONLY_TRAINING, given)).scalars())
        return (
            f"no trial ever reported a validation{_trained(row.metric, trained)}"
            if trained
            else None
        )
    metric = repr(_cut(row.metric))
    if row.metric in names:
        return f"no trial ever reported a number as {metric} (searcher.metric)"
    return (
        f"no trial ever reported {metric} (searcher.metric); they reported {_named(names)}"
        f"{_nearest(row.metric, names)}"
    )


async def note_no_validation(conn: AsyncConnection, trial_id: int, leg: str, task_id: str) -> None:
    """Warns in the log of a trial that has trained to its end and reported no validation."""
    row = (await conn.execute(_OF_TRIAL, {"id": trial_id, "most": COMPARED})).first()
    if row is not None and row.metric and row.names:
        text = f"this trial has reported no validation{_trained(row.metric, row.names)}"
        await logs.add_line(conn, task_id, leg, text, "WARNING")


def _trained(metric: str, names: Sequence[str]) -> str:
    """The metrics in training reports, the searcher's ``metric`` first if it is one of the ``names``."""
    name = repr(_cut(metric))
    if names[0] == metric:
        found = f"training reports have {name} (searcher.metric)"
    else:
        found = f"training reports have {_named(names)}, searcher.metric is {name}"
    return f": {found}, and the searcher goes by validations (core_context.train.report_validation_metrics)"
