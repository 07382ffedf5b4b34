"""Decides which checkpoints of an experiment its policy keeps: :func:`keep`, a pure function, and its
facts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """The numbers of checkpoints to keep: the best of the experiment, the best and the latest of each
    trial."""

    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1

    @classmethod
    def of(cls, storage: Mapping[str, Any]) -> KeepPolicy:
        """The policy in a ``checkpoint_storage`` section."""
        return cls(
            **{name: storage[name] for name in cls.__slots__ if storage.get(name) is not None}
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint that may be kept. ``loss``: the searcher's metric of the validation at the same step,
    negated where larger is better; None when there was none, or it is not finite."""

    uuid: UUID
    trial_id: int
    steps_completed: int
    report_time: datetime
    loss: float | None = None
    validation_id: int | None = None
    unnamed: bool = False
    """True if its trial reported validations, but none with the searcher's metric."""

    @property
    def ranked(self) -> bool:
        """True if it can be among the best."""
        return self.loss is not None and math.isfinite(self.loss) and self.validation_id is not None


def keep(candidates: Iterable[Candidate], policy: KeepPolicy) -> set[UUID]:
    """The union of the best of the experiment, the best of each trial and the latest of each trial.

    A checkpoint without a metric counts only among the latest. Of equally good checkpoints the first
    validated counts as better; of equally late ones the last reported counts as later.

    A policy that keeps the best is meant to keep the results of training. So of a trial that it finds no best
    of, the latest stays; and all stay if the trial validated without the searcher's metric, because then a
    word in the configuration is wrong, and the user knows which is best.
    """
    by_trial: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_trial[candidate.trial_id].append(candidate)
    every = [candidate for trial in by_trial.values() for candidate in trial]
    kept = set(_best(every, policy.save_experiment_best))
    for trial in by_trial.values():
        kept |= set(_best(trial, policy.save_trial_best))
        kept |= set(_latest(trial, policy.save_trial_latest))
    for trial in _without_best(by_trial, policy):
        kept |= {one.uuid for one in trial} if trial[0].unnamed else set(_latest(trial, 1))
    return kept


def _without_best(
    by_trial: Mapping[int, list[Candidate]], policy: KeepPolicy
) -> Iterator[list[Candidate]]:
    """By trial, the checkpoints of trials whose best the policy needs but cannot know."""
    unknown = [trial for trial in by_trial.values() if not any(one.ranked for one in trial)]
    if policy.save_trial_best or (policy.save_experiment_best and len(unknown) == len(by_trial)):
        yield from unknown


def _best(candidates: list[Candidate], count: int) -> list[UUID]:
    ranked = [(c.loss, c.validation_id, c.report_time, c.uuid) for c in candidates if c.ranked]
    return [uuid for *_, uuid in sorted(ranked)[:count]]


def _latest(candidates: list[Candidate], count: int) -> list[UUID]:
    ranked = sorted((c.steps_completed, c.report_time, c.uuid) for c in candidates)
    return [uuid for *_, uuid in ranked[::-1][:count]]


_CHECKPOINTS = sa.text(
    """
    SELECT c.uuid, c.trial_id, c.steps_completed, c.report_time, v.id AS validation_id,
           v.value * CASE WHEN e.config -> 'searcher' ->> 'smaller_is_better' = 'false'
                          THEN -1 ELSE 1 END AS loss,
           EXISTS (SELECT FROM metric_summaries s
                   WHERE s.trial_id = c.trial_id AND s.group_name = 'validation') AS validated,
           e.unmanaged OR EXISTS (
               SELECT FROM metric_summaries s
               WHERE s.trial_id = c.trial_id AND s.group_name = 'validation'
                 AND (s.type = 'number' OR s.finite_count > 0)
                 AND s.metric = e.config -> 'searcher' ->> 'metric') AS named,
           e.config -> 'searcher' ->> 'metric' AS metric
    FROM checkpoints c
    JOIN experiments e ON e.id = c.experiment_id
    LEFT JOIN deletions d ON d.id = c.deletion_id
    LEFT JOIN tasks k ON k.id = d.task_id
    LEFT JOIN LATERAL (
        SELECT m.id, CASE WHEN jsonb_typeof(m.metrics -> name) = 'number'
                          THEN (m.metrics ->> name)::float8 END AS value
        FROM metrics m, (SELECT e.config -> 'searcher' ->> 'metric') AS searcher (name)
        WHERE m.trial_id = c.trial_id AND m.group_name = 'validation'
          AND m.steps_completed = c.steps_completed AND NOT m.archived
          -- A validation may be reported in pieces.
          AND m.metrics -> name IS NOT NULL
        ORDER BY m.id DESC LIMIT 1
    ) v ON true
    WHERE c.experiment_id = :id AND c.trial_id IS NOT NULL
      AND c.state IN ('COMPLETED', 'PARTIALLY_DELETED')
      AND (c.deletion_id IS NULL OR k.state = 'ERROR')
      -- Only the script knows where its own storage manager has put them.
      AND coalesce(c.storage ->> 'type', '') <> 'own'
    """
)
# The checkpoint a trial started from is part of its record; a live trial needs those it may start from.
_IN_USE = sa.text(
    """
    SELECT warm_start_checkpoint AS uuid FROM trials WHERE warm_start_checkpoint = ANY(:uuids)
    UNION
    SELECT latest_checkpoint FROM trials
    WHERE latest_checkpoint = ANY(:uuids) AND state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')
    UNION
    SELECT cast(config -> 'searcher' ->> 'source_checkpoint_uuid' AS uuid) FROM experiments
    WHERE config -> 'searcher' ->> 'source_checkpoint_uuid' = ANY(cast(:uuids AS text[]))
    UNION
    SELECT checkpoint_uuid FROM model_versions WHERE checkpoint_uuid = ANY(:uuids)
    """
)


@dataclass(frozen=True, slots=True)
class GarbageChoice:
    """The checkpoints that a policy does not keep and nothing needs, in order; and, by trial, in words, why
    nobody knows which of its checkpoints is the best, where that decides over some."""

    doomed: list[UUID]
    unknown: dict[int, str]


async def outside_policy(
    conn: AsyncConnection, experiment_id: int, policy: KeepPolicy
) -> GarbageChoice:
    """Choose the experiment's checkpoints that ``policy`` drops.

    One that was found damaged takes no other's rank, and is left to its user: it may be of use yet,
    and nothing is deleted on the word of one machine that did not find it whole.
    """
    rows = list(await conn.execute(_CHECKPOINTS, {"id": experiment_id}))
    candidates = [
        Candidate(
            row.uuid,
            row.trial_id,
            row.steps_completed,
            row.report_time,
            row.loss,
            row.validation_id,
            row.validated and not row.named,
        )
        for row in rows
    ]
    kept = keep(candidates, policy)
    doomed = [row.uuid for row in rows if row.uuid not in kept]
    doomed = sorted(set(doomed) - await in_use(conn, doomed))
    return GarbageChoice(doomed, _unknown(rows, candidates, set(doomed), policy))


def _unknown(
    rows: Sequence[sa.Row[Any]],
    candidates: Sequence[Candidate],
    doomed: set[UUID],
    policy: KeepPolicy,
) -> dict[int, str]:
    by_trial: dict[int, list[Candidate]] = defaultdict(list)
    for one in candidates:
        by_trial[one.trial_id].append(one)
    facts = {row.trial_id: row for row in rows}
    found = {}
    for trial in _without_best(by_trial, policy):
        going = sum(one.uuid in doomed for one in trial)
        if going or (trial[0].unnamed and len(trial) > 1):
            trial_id = trial[0].trial_id
            found[trial_id] = _why_unknown(facts[trial_id], trial, going)
    return found


def _why_unknown(facts: sa.Row[Any], trial: Sequence[Candidate], going: int) -> str:
    metric, count = repr(facts.metric[:100]), len(trial)
    words = f"which of the {count} checkpoints of this trial is the best is not known: "
    if trial[0].unnamed:
        return (
            f"{words}no validation has {metric} (searcher.metric), so all of them stay; to have some "
            "deleted, set a policy that keeps no best (det experiment set gc-policy --save-experiment-best 0 "
            "--save-trial-best 0)"
        )
    if any(one.validation_id is not None for one in trial):
        why = f"{metric} (searcher.metric) was not finite in any of them"
    elif facts.validated:
        why = "no step of them was validated: store a checkpoint at the step of a validation"
    else:
        why = "the trial has reported no validation"
    return f"{words}{why}; {going} of them will be deleted, and the latest stays"


async def in_use(conn: AsyncConnection, uuids: Iterable[UUID]) -> set[UUID]:
    """The uuids of ``uuids`` that no policy deletes: trials have started from them or will, or they are
    versions of models."""
    given = [str(uuid) for uuid in uuids]
    if not given:
        return set()
    statement = _IN_USE.bindparams(sa.bindparam("uuids", type_=sa.ARRAY(sa.Uuid(as_uuid=False))))
    found = await conn.execute(statement, {"uuids": given})
    return {UUID(str(uuid)) for uuid in found.scalars()}
