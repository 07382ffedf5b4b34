"""The end of a trial: :func:`end_trial`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from determined_searchers import ExitReason, TrialClosed, TrialExitedEarly
from determined_service.base import topics
from determined_service.state import prefect_states
from determined_service.state.change import Change
from determined_service.state.states import TRIAL, transition


@dataclass(frozen=True, slots=True)
class TrialIds:
    """The names of a trial: its id, in its experiment, for its searcher, as a task."""

    id: int
    experiment_id: int
    request_id: str
    task_id: str

    @classmethod
    def of(cls, row: sa.Row[Any]) -> TrialIds:
        """Of a row of ``trials``."""
        return cls(row.id, row.experiment_id, row.request_id, row.task_id)


async def end_trial(
    change: Change, trial: TrialIds, state: str, reason: str, event: ExitReason | None = None
) -> None:
    """Ends the locked trial, which holds no slots, and tells the searcher."""
    await transition(change, TRIAL, trial.id, state, reason=reason)
    if event is not None:
        change.tell_search(trial.experiment_id, TrialExitedEarly(trial.request_id, event))
    change.tell_search(trial.experiment_id, TrialClosed(trial.request_id))
    change.notify(topics.experiment(trial.experiment_id))
    prefect_states.ended(change, prefect_states.task_entity(trial.task_id), state, reason)
