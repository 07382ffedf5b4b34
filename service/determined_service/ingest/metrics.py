"""Writes groups of metric batches: :meth:`MetricsWriter.write`, for a group commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined_registry.database.tables import allocations
from determined_service.access.principal import RunRef, ended
from determined_service.base.errors import ApiError, Conflict, NotFound
from determined_service.ingest.copy_text import copy_rows
from determined_service.ingest.metric_room import ROW_BYTES, MetricRoom
from determined_service.ingest.reports import ReportBatch, Reported
from determined_service.ingest.rollback import archive, recompute, validations_of
from determined_service.ingest.streams import advance_streams, is_repeated, lock_streams
from determined_service.ingest.summaries import Summaries, store_summaries
from determined_service.ingest.trial_facts import TrialFacts, TrialFactsCache
from determined_service.ingest.validations import note_validations

COLUMNS = "trial_id, run_id, group_name, steps_completed, end_time, metrics, batch_metrics"


class MetricsWriter:
    """Several processes may write the same trials: the facts that each remembers cannot change.

    ``quotas``: those that are in force.
    """

    def __init__(self, quotas: Callable[[], Quotas]) -> None:
        self._trials = TrialFactsCache()
        self._room = MetricRoom(quotas)

    async def write(
        self, conn: AsyncConnection, batches: Sequence[ReportBatch]
    ) -> Sequence[int | ApiError]:
        """Stores ``batches``; answers with the number of reports stored (0: a repetition) or the
        refusal of each: NotFound (no such trial), Conflict (its allocation has ended, or the script of an
        unmanaged trial has started again), OverQuota.

        Locks are taken in the service's order: streams (only ingest has them), trials, search.
        """
        last = await lock_streams(conn, [batch.position for batch in batches])
        facts = await self._trials.get(conn, {batch.trial_id for batch in batches})
        runs = await _lock_trials(conn, facts, batches)
        dead = await _ended(conn, batches)
        full = await self._room.refusals(conn, {one.owner_id for one in facts.values()})
        after = dict(last)
        answers: list[int | ApiError] = []
        new: list[ReportBatch] = []
        for batch in batches:
            if batch.trial_id not in facts:
                answers.append(NotFound(f"trial {batch.trial_id} does not exist"))
            elif batch.allocation_id is not None and batch.allocation_id in dead:
                answers.append(ended(batch.allocation_id))
            elif (stale := _superseded(batch, runs)) is not None:
                answers.append(stale)
            elif is_repeated(batch.position, after):
                answers.append(0)
            elif (refusal := full.get(facts[batch.trial_id].owner_id)) is not None:
                answers.append(refusal)
            else:
                answers.append(len(batch.lines))
                new.append(batch)
        if not new:
            return answers
        archived = await archive(conn, new)
        by_trial, reported = await _copy(conn, new)
        sizes: Counter[tuple[int, int]] = Counter()
        for batch in new:
            size = sum(map(len, batch.lines)) + ROW_BYTES * len(batch.lines)
            sizes[batch.trial_id, facts[batch.trial_id].owner_id] += size
        await store_summaries(conn, by_trial, sizes)
        await recompute(conn, archived)
        await note_validations(conn, facts, reported, rolled_back=validations_of(archived))
        await advance_streams(conn, {key: seq for key, seq in after.items() if seq != last[key]})
        self._room.add(sizes)
        return answers


# Ending an allocation, or beginning another run of an unmanaged trial, takes the trial's lock. Under it a
# live allocation stays alive until this transaction ends, and none of its reports comes after the next leg's.
_LOCK_TRIALS = sa.text(
    "SELECT id, run_count FROM trials WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE"
)


async def _lock_trials(
    conn: AsyncConnection, facts: Mapping[int, TrialFacts], batches: Sequence[ReportBatch]
) -> dict[int, int]:
    """Locks the trials whose senders may have come to an end; of the unmanaged ones the number of runs."""
    outside = {trial_id for trial_id, one in facts.items() if one.unmanaged}
    owners = {batch.trial_id for batch in batches if batch.allocation_id is not None}
    if not owners | outside:
        return {}
    rows = await conn.execute(_LOCK_TRIALS, {"ids": list(owners | outside)})
    return {row.id: row.run_count for row in rows if row.id in outside}


def _superseded(batch: ReportBatch, runs: Mapping[int, int]) -> Conflict | None:
    """The refusal of a batch of an earlier run than the unmanaged trial's last."""
    if not batch.run_id:  # its sender does not know
        return None
    return RunRef(batch.trial_id, batch.run_id).superseded(runs.get(batch.trial_id, 0))


async def _ended(conn: AsyncConnection, batches: Sequence[ReportBatch]) -> set[str]:
    """The batches' allocations that have ended; their trials are locked."""
    senders = {batch.allocation_id for batch in batches if batch.allocation_id is not None}
    if not senders:
        return set()
    rows = await conn.execute(
        sa.select(allocations.c.id).where(
            allocations.c.id.in_(senders), allocations.c.state == "TERMINATED"
        )
    )
    return set(rows.scalars())


async def _new_ids(conn: AsyncConnection, count: int) -> Iterator[int]:
    if not count:
        return iter(())
    rows = await conn.execute(
        sa.text(
            "SELECT nextval(pg_get_serial_sequence('metrics', 'id')) FROM generate_series(1, :n)"
        ),
        {"n": count},
    )
    return iter(sorted(rows.scalars()))


async def _copy(
    conn: AsyncConnection, batches: list[ReportBatch]
) -> tuple[dict[int, Summaries], list[Reported]]:
    """Validations get their row ids beforehand, because trials refer to the best and the latest."""
    ids = await _new_ids(conn, sum(len(batch.validations) for batch in batches))
    plain: list[bytes] = []
    numbered: list[bytes] = []
    by_trial: dict[int, Summaries] = {}
    reported: list[Reported] = []
    for batch in batches:
        prefix = b"%d\t%d\t" % (batch.trial_id, batch.run_id)
        row_ids = {validation.line: next(ids) for validation in batch.validations}
        for validation in batch.validations:
            sender = batch.allocation_id
            reported.append(Reported(batch.trial_id, row_ids[validation.line], validation, sender))
        for index, line in enumerate(batch.lines):
            row_id = row_ids.get(index)
            if row_id is None:
                plain.append(prefix + line)
            else:
                numbered.append(b"%d\t%s%s" % (row_id, prefix, line))
        by_trial.setdefault(batch.trial_id, Summaries()).merge(batch.summaries)
    if plain:
        await copy_rows(conn, f"metrics ({COLUMNS})", plain)
    if numbered:
        await copy_rows(conn, f"metrics (id, {COLUMNS})", numbered)
    return by_trial, reported
