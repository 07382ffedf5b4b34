"""What the Prefect UI shows of a trial: the outbox's kinds, and payloads of ``set_state``.

Few names, so that filters in the UI stay useful; what differs goes into the message.
"""

from __future__ import annotations

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


def paused(change: Change, trial_id: int, message: str) -> None:
    _set(change, trial_entity(trial_id), "PAUSED", "Paused", message)


def ended(change: Change, entity: str, state: str, message: str | None) -> None:
    """``state``: COMPLETED, CANCELED or ERROR of the trial or experiment ``entity``."""
    type_, name = _ENDS[state]
    _set(change, entity, type_, name, message or "")


def _set(change: Change, entity: str, type_: str, name: str, message: str) -> None:
    change.tell_prefect(entity, SET_STATE, type=type_, name=name, message=message)
