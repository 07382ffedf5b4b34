"""What the Prefect UI shows of a trial: the outbox's kinds, and payloads of ``set_state``.

Few names, so that filters in the UI stay useful; what differs goes into the message.
"""

from __future__ import annotations

import sqlalchemy as sa

from determined_service.control import lifecycle as states
from determined_service.control.change import Change

SET_STATE = "set_state"
CREATE_RUN = "create_experiment_run"
LINK_PLOT = "link_plot"

_ENDS = {
    states.COMPLETED: ("COMPLETED", "Completed"),
    states.CANCELED: ("CANCELLED", "Cancelled"),
    states.ERROR: ("FAILED", "Failed"),
}


def trial_entity(trial_id: int) -> str:
    return f"trial:{trial_id}"


def experiment_entity(experiment_id: int) -> str:
    return f"experiment:{experiment_id}"


def assigned(change: Change, trial_id: int, agent_id: str, slot_ids: list[int]) -> None:
    slots = f", slots {', '.join(map(str, slot_ids))}" if slot_ids else ""
    _set(change, trial_entity(trial_id), "PENDING", "Pending", f"on agent {agent_id}{slots}")


def running(change: Change, trial_id: int, run_id: int, agent_id: str | None) -> None:
    where = f" on agent {agent_id}" if agent_id else ""
    _set(change, trial_entity(trial_id), "RUNNING", "Running", f"leg {run_id}{where}")


def awaiting_slots(change: Change, trial_id: int, message: str) -> None:
    _set(change, trial_entity(trial_id), "SCHEDULED", "AwaitingSlots", message)


def scheduled(change: Change, entity: str, message: str) -> None:
    """The run is to be executed (again) now."""
    _set(change, entity, "SCHEDULED", "Scheduled", message)


def paused(change: Change, trial_id: int, message: str) -> None:
    _set(change, trial_entity(trial_id), "PAUSED", "Paused", message)


def ended(change: Change, entity: str, state: str, message: str | None) -> None:
    """``state``: COMPLETED, CANCELED or ERROR of the trial or experiment ``entity``."""
    type_, name = _ENDS[state]
    _set(change, entity, type_, name, message or "")


_LIVE_LEG = sa.text(
    "SELECT state, run_id, agent_id, slot_ids FROM allocations "
    "WHERE trial_id = :id AND state <> 'TERMINATED'"
)


async def tell_present(change: Change, trial_id: int, reason: str | None) -> None:
    """Where the (locked) trial, which has not ended, is now: for a run whose state went astray."""
    leg = (await change.conn.execute(_LIVE_LEG, {"id": trial_id})).first()
    if leg is None:
        paused(change, trial_id, reason or "it waits")
    elif leg.state == states.REQUESTED:
        awaiting_slots(change, trial_id, "it waits for slots")
    elif leg.state == states.ASSIGNED:
        assigned(change, trial_id, leg.agent_id, leg.slot_ids)
    else:
        running(change, trial_id, leg.run_id, leg.agent_id)


def _set(change: Change, entity: str, type_: str, name: str, message: str) -> None:
    change.tell_prefect(entity, SET_STATE, type=type_, name=name, message=message)
