"""The states that Prefect's page shows of a task: the outbox's kinds, and payloads of ``set_state``.

There are few state names, so that filters in the UI stay useful; details go into the message. Only what
waits for slots has the reason in its name, because Prefect's lists show no messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from determined.common.wire import prefect
from determined_service.state import nodes, states
from determined_service.state.change import Change

SET_STATE = "set_state"
SHOW_REASON = "show_reason"
CREATE_TASK_RUN = "create_task_run"
NAME_RUN = "name_run"
SHOW_PAGE = "show_page"

_ENDS = {
    states.COMPLETED: ("COMPLETED", prefect.COMPLETED),
    states.CANCELED: ("CANCELLED", prefect.CANCELLED),
    states.ERROR: ("FAILED", prefect.FAILED),
}


TASK_ENTITY = "task:"
EXPERIMENT_ENTITY = "experiment:"
RETRAINING_ENTITY = "retraining:"
"""A row of the outbox is about the run of one of these: the prefix and an id."""


def task_entity(task_id: str) -> str:
    return f"{TASK_ENTITY}{task_id}"


def experiment_entity(experiment_id: int) -> str:
    return f"{EXPERIMENT_ENTITY}{experiment_id}"


def retraining_entity(run_id: int) -> str:
    return f"{RETRAINING_ENTITY}{run_id}"


def experiment_of(entity: str) -> int:
    """The id of the experiment, or of the retraining's run, that ``entity`` names."""
    return int(entity.partition(":")[2])


def task_of(entity: str) -> str:
    """The id of the task that ``entity`` names."""
    return entity.removeprefix(TASK_ENTITY)


def create_task_run(
    change: Change, task_id: str, flow: str, name: str, pool: str, place: Sequence[str]
) -> None:
    """Has the run made of a task that waits for slots of the resource pool ``pool``; ``place``: its tags."""
    entity = task_entity(task_id)
    change.tell_prefect(entity, CREATE_TASK_RUN, flow=flow, name=name, pool=pool, **_placed(place))


def name_run(change: Change, experiment_id: int, name: str, place: Sequence[str]) -> None:
    """Has the experiment's run named; ``place``: its tags, in place of those that it has."""
    change.tell_prefect(experiment_entity(experiment_id), NAME_RUN, name=name, **_placed(place))


def _placed(place: Sequence[str]) -> dict[str, list[str]]:
    return {"place": list(place)} if place else {}


def assigned(change: Change, task_id: str, places: Sequence[nodes.AgentSlots]) -> None:
    """``places``: of a gang, one for each node."""
    _set(change, task_entity(task_id), "PENDING", prefect.PENDING, nodes.in_words(places))


def cannot_start(change: Change, task_id: str, reason: str) -> None:
    """An agent has accepted the task's leg and cannot start it yet; ``reason``: in words."""
    _set(change, task_entity(task_id), "PENDING", prefect.PENDING, reason)


def running(change: Change, task_id: str, run_id: int, agents: Sequence[str]) -> None:
    """``agents``: of a gang, one for each node; empty: not known."""
    where = f" on {nodes.agents_in_words(agents, len(agents))}" if agents else ""
    _set(change, task_entity(task_id), "RUNNING", prefect.RUNNING, f"leg {run_id}{where}")


def awaiting_slots(change: Change, task_id: str, message: str, reason: str = "") -> None:
    """``reason``: in short, for the name of the state."""
    _set(change, task_entity(task_id), "SCHEDULED", prefect.awaiting_slots(reason), message)


def show_reason(change: Change, task_id: str, message: str, reason: str) -> None:
    """Has a run that awaits slots say why; one in another state by then keeps it."""
    name = prefect.awaiting_slots(reason)
    change.tell_prefect(
        task_entity(task_id), SHOW_REASON, type="SCHEDULED", name=name, message=message
    )


def paused(change: Change, task_id: str, message: str) -> None:
    _set(change, task_entity(task_id), "PAUSED", prefect.PAUSED, message)


def ended(
    change: Change, entity: str, state: str, message: str | None, *, again: bool = False
) -> None:
    """``state``: COMPLETED, CANCELED or ERROR of the task ``entity``; ``again``: Prefect was told before."""
    type_, name = _ENDS[state]
    _set(change, entity, type_, name, message or "")
    show_page(change, entity, again=again)


def show_page(change: Change, entity: str, *, again: bool = False) -> None:
    """Has the page of the run written; ``again``: there may be one."""
    change.tell_prefect(entity, SHOW_PAGE, again=again)


_LIVE_LEG = sa.text(
    "SELECT id, state, run_id, agent_id, slot_ids FROM allocations "
    "WHERE task_id = :id AND state <> 'TERMINATED'"
)


async def tell_present(
    change: Change, task_id: str, reason: str | None, queued: str = "it waits for slots"
) -> None:
    """Tells Prefect the state of the (locked, not ended) task again, for a run whose state is wrong there.

    ``reason`` says why the task wants no slots, ``queued`` why it has none yet.
    """
    leg = (await change.conn.execute(_LIVE_LEG, {"id": task_id})).first()
    if leg is None:
        paused(change, task_id, reason or "it waits")
    elif leg.state == states.REQUESTED:
        awaiting_slots(change, task_id, queued)
    elif leg.state == states.ASSIGNED:
        assigned(change, task_id, await _places(change, leg))
    else:
        agents = [agent_id for agent_id, _ in await _places(change, leg) if agent_id]
        running(change, task_id, leg.run_id, agents)


async def _places(change: Change, leg: sa.Row[Any]) -> list[nodes.AgentSlots]:
    gang = (await nodes.of_allocations(change.conn, [leg.id])).get(leg.id)
    return [(one.agent_id, one.slot_ids) for one in gang or [leg]]


def _set(change: Change, entity: str, type_: str, name: str, message: str) -> None:
    change.tell_prefect(entity, SET_STATE, type=type_, name=name, message=message)
