"""The effects of a validation report beside its row: on the trial's best and latest, and on the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import metrics, trials
from determined_searchers.events import MetricMissing, TrialReported
from determined_service.base import topics
from determined_service.base.hub import notify
from determined_service.ingest.missing_metric import note_missing
from determined_service.ingest.past_target import note_past_target
from determined_service.ingest.reports import VALIDATION, Reported, ValidationReport
from determined_service.ingest.trial_facts import TrialFacts
from determined_service.ingest.values import finite
from determined_service.state.events import append_events


async def note_validations(
    conn: AsyncConnection,
    facts: Mapping[int, TrialFacts],
    reported: Sequence[Reported],
    *,
    rolled_back: set[int],
) -> None:
    """Updates best and latest of the trials, tells searchers that go by reports.

    ``rolled_back``: trials some of whose validations were archived just now, whose best may be gone. A
    searcher metric that is NaN, infinite or not a number is never a trial's best.
    """
    by_trial: dict[int, list[Reported]] = {trial_id: [] for trial_id in rolled_back}
    for one in reported:
        by_trial.setdefault(one.trial_id, []).append(one)
    missing = await note_missing(conn, facts, reported)
    for trial_id in sorted(by_trial):
        mine = by_trial[trial_id]
        target = await _best_and_latest(conn, facts[trial_id], mine, again=trial_id in rolled_back)
        await note_past_target(conn, facts[trial_id], target, mine)
    told = [(facts[one.trial_id], one.validation) for one in reported]
    await _tell_searches(conn, told, missing)
    changed = {facts[trial_id].experiment_id for trial_id in by_trial}
    await notify(conn, *(topics.experiment(experiment_id) for experiment_id in sorted(changed)))


async def _best_and_latest(
    conn: AsyncConnection, facts: TrialFacts, reported: Sequence[Reported], *, again: bool
) -> int | None:
    """The length of the operation that the trial has not completed."""
    row = (
        await conn.execute(
            sa.select(
                trials.c.best_validation_id,
                trials.c.latest_validation_id,
                trials.c.searcher_metric_value,
                trials.c.op_length,
                trials.c.op_complete,
            )
            .where(trials.c.id == facts.id)
            .with_for_update(key_share=True)
        )
    ).one()
    if again:
        best_id, value, latest_id = await _from_rows(conn, facts)
    else:
        best_id, value = row.best_validation_id, row.searcher_metric_value
        latest_id = row.latest_validation_id
        for one in reported:
            latest_id = one.row_id
            metric = finite(one.validation.metrics.get(facts.metric))
            if metric is not None and facts.better(metric, value):
                best_id, value = one.row_id, metric
    await conn.execute(
        sa.update(trials)
        .where(trials.c.id == facts.id)
        .values(
            best_validation_id=best_id,
            searcher_metric_value=value,
            latest_validation_id=latest_id,
        )
    )
    return None if row.op_complete else row.op_length


async def _from_rows(
    conn: AsyncConnection, facts: TrialFacts
) -> tuple[int | None, float | None, int | None]:
    rows = await conn.execute(
        sa.select(metrics.c.id, metrics.c.metrics[facts.metric].label("metric"))
        .where(
            metrics.c.trial_id == facts.id,
            metrics.c.group_name == VALIDATION,
            ~metrics.c.archived,
        )
        .order_by(metrics.c.id)
    )
    best_id: int | None = None
    value: float | None = None
    latest_id: int | None = None
    for row in rows:
        latest_id = row.id
        metric = finite(row.metric)
        if metric is not None and facts.better(metric, value):
            best_id, value = row.id, metric
    return best_id, value, latest_id


async def _tell_searches(
    conn: AsyncConnection,
    validations: Sequence[tuple[TrialFacts, ValidationReport]],
    missing: Mapping[int, Sequence[MetricMissing]],
) -> None:
    events: dict[int, list[dict[str, object]]] = {
        experiment_id: [event.to_json() for event in found]
        for experiment_id, found in missing.items()
    }
    for facts, validation in validations:
        if facts.time_metric is None or facts.metric not in validation.metrics:
            continue
        event = TrialReported(
            request_id=facts.request_id,
            time=finite(validation.metrics.get(facts.time_metric)),
            metric=finite(validation.metrics[facts.metric]),
            step=max(validation.steps, 0) or None,
        )
        events.setdefault(facts.experiment_id, []).append(event.to_json())
    for experiment_id in sorted(events):
        await append_events(conn, experiment_id, events[experiment_id])
