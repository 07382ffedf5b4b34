"""Ends a search whose every trial fails: :func:`give_up_if_hopeless`.

The count comes from rows and from the search's events alone, under the experiment's lock, which every end
of a trial holds. So it is exact, and a crash neither loses a failure nor counts one twice.
"""

from __future__ import annotations

import re
from collections import Counter

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.ingest.values import PROFILER_GROUPS
from determined_service.lifecycle import experiments as experimenting
from determined_service.state import states
from determined_service.state.change import Change

# An experiment stored before the field existed has no limit.
_LIMIT = sa.text("SELECT (config ->> 'max_failures')::int FROM experiments WHERE id = :id")
# The profiler reports even if the script fails.
_REPORTED = sa.text(
    """
    SELECT EXISTS (
        SELECT FROM trials t WHERE t.experiment_id = :id AND EXISTS (
            SELECT FROM metrics m WHERE m.trial_id = t.id AND m.group_name <> ALL(:profiler))
    ) OR EXISTS (
        SELECT FROM search_events v
        WHERE v.experiment_id = :id AND v.event ->> 'type' IN ('validation_completed', 'trial_reported'))
    """
)
# The log of events begins again when an experiment is continued, so trials that failed before do not count.
# The end of the trial of this change is not yet in the log, its state is. Who was killed says nothing.
_IN_A_ROW = sa.text(
    """
    WITH ended AS (
        SELECT t.id, t.state, t.reason, coalesce(max(v.id), 9223372036854775807) AS place
        FROM trials t LEFT JOIN search_events v
            ON v.experiment_id = t.experiment_id AND v.event ->> 'type' = 'trial_closed'
               AND v.event ->> 'request_id' = t.request_id
        WHERE t.experiment_id = :id AND t.state IN ('ERROR', 'COMPLETED')
        GROUP BY t.id
        HAVING t.id = :trial_id OR max(v.id) IS NOT NULL
    )
    SELECT id, reason FROM ended
    WHERE state = 'ERROR'
      AND place > coalesce((SELECT max(place) FROM ended WHERE state = 'COMPLETED'), -1)
    ORDER BY place
    """
)
# What differs between trials with the same mistake: numbers, ids, addresses.
_OF_ONE_TRIAL = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\d+")


async def give_up_if_hopeless(change: Change, experiment_id: int, trial_id: int) -> None:
    """Ends the (locked) experiment in error if ``max_failures`` trials in a row have failed, and no trial has
    reported anything.

    ``trial_id``: the trial that has just ended in ERROR, in this change.
    """
    experiment = await experimenting.lock_experiment(change, experiment_id)
    # An experiment with one trial and no search ends with it anyway.
    if experiment.state not in states.RUNNABLE or experiment.searcher["name"] == "single":
        return
    limit = (await change.conn.execute(_LIMIT, {"id": experiment_id})).scalar_one()
    if limit is None or await _has_reported(change.conn, experiment_id):
        return
    given = {"id": experiment_id, "trial_id": trial_id}
    failed = [(row.id, row.reason or "") for row in await change.conn.execute(_IN_A_ROW, given)]
    if len(failed) >= limit:
        await experimenting.stop(
            change, experiment_id, states.STOPPING_ERROR, in_words(failed, limit)
        )


async def _has_reported(conn: AsyncConnection, experiment_id: int) -> bool:
    given = {"id": experiment_id, "profiler": sorted(PROFILER_GROUPS)}
    return bool((await conn.execute(_REPORTED, given)).scalar_one())


def in_words(failed: list[tuple[int, str]], limit: int) -> str:
    """The reason why the search was given up, and the remedy. ``failed``: id and reason of each trial, in
    order."""
    counts = Counter(_alike(reason) for _, reason in failed)
    shared, count = counts.most_common(1)[0]
    trial_id, reason = next(item for item in reversed(failed) if _alike(item[1]) == shared)
    if count == 1:
        trial_id, reason = failed[-1]
        how = f"the last, trial {trial_id}"
    elif count == len(failed):
        how = f"all of them as trial {trial_id} did"
    else:
        how = f"{count} of them as trial {trial_id} did"
    trials = "1 trial" if len(failed) == 1 else f"{len(failed)} trials in a row"
    return (
        f"{trials} failed before any trial reported a metric, {how}: {reason}. Correct the cause and submit "
        f"again; the limit is max_failures ({limit}; null = none)"
    )


def _alike(reason: str) -> str:
    return _OF_ONE_TRIAL.sub("#", reason)
