"""What a user changes of a job while it waits or runs: priority, weight, max_slots, place in line, pool.

Each changes the experiment's configuration or row and its live allocations, and wakes the scheduling loop,
which stops what should not run any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.expconf.heeding import HEEDS_PRIORITY, Surroundings
from determined.expconf.unheeded import unheeded
from determined_service.base import topics
from determined_service.base.errors import BadRequest, Conflict
from determined_service.base.policies import limit_priority, require_change
from determined_service.base.policy import Held
from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle import config_policies, trial_queue
from determined_service.lifecycle.experiments import live_trials, lock_experiment
from determined_service.lifecycle.places import workspace_of
from determined_service.scheduling.capacity import check_slots
from determined_service.scheduling.line_places import place_beside
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.state import prefect_states, states
from determined_service.state.change import Change

# Any constant will do, so long as nothing else in the database locks the same one.
_QUEUE_KEY = 0x6465746A6F6273
_LOCK_QUEUE = sa.text("SELECT pg_advisory_xact_lock(:key)")
_SET = sa.text(
    """
    UPDATE experiments
    SET config = jsonb_set(config, '{resources}', (config -> 'resources') || cast(:values AS jsonb))
    WHERE id = :id
    """
)
_SET_PRIORITY = sa.text(
    """
    UPDATE allocations SET priority = :priority WHERE id IN (
        SELECT id FROM allocations WHERE experiment_id = :id AND state <> 'TERMINATED'
        ORDER BY id FOR NO KEY UPDATE)
    """
)
_RESOURCES = sa.text(
    """
    SELECT (config #>> '{resources,slots_per_trial}')::int AS slots_per_trial,
           (config #>> '{resources,priority}')::int AS priority,
           config #> '{resources,placement}' AS placement,
           (config #>> '{resources,is_single_node}')::bool AS is_single_node
    FROM experiments WHERE id = :id
    """
)
_NOW = sa.text("SELECT extract(epoch FROM now())::float8")
_IN_LINE = sa.text(
    """
    SELECT id, coalesce(queue_position, extract(epoch FROM start_time)::float8) AS place
    FROM experiments
    WHERE resource_pool = :pool AND NOT unmanaged AND id <> :moved
      AND state NOT IN ('COMPLETED', 'CANCELED', 'ERROR', 'DELETING', 'DELETE_FAILED')
    ORDER BY place, id
    """
)
_PLACE = sa.text(
    """
    UPDATE experiments e SET queue_position = given.place
    FROM unnest(cast(:ids AS int[]), cast(:places AS float8[])) AS given(id, place)
    WHERE e.id = given.id
    """
)
_MOVE_POOL = sa.text(
    """
    UPDATE experiments
    SET resource_pool = :pool, fallback = :fallback,
        config = jsonb_set(config, '{resources,resource_pool}', to_jsonb(:pool ::text))
    WHERE id = :id
    """
).bindparams(sa.bindparam("fallback", type_=JSONB(none_as_null=True)))


async def lock_queue(change: Change) -> None:
    """Nobody else moves jobs until this change ends: it may lock the rows of many."""
    await change.conn.execute(_LOCK_QUEUE, {"key": _QUEUE_KEY})


async def _lock_job(change: Change, experiment_id: int) -> sa.Row[Any]:
    row = await lock_experiment(change, experiment_id)
    if row.unmanaged:
        raise Conflict(
            f"experiment {experiment_id} is unmanaged: its processes run outside of the cluster, and "
            "it is in no queue"
        )
    if row.state in states.ENDED:
        raise Conflict(
            f"experiment {experiment_id} is {row.state}: only one that has not ended is in a queue"
        )
    return row


def _announce(change: Change, experiment_id: int) -> None:
    change.notify(topics.SCHEDULER, topics.experiment(experiment_id))


async def set_resources(
    change: Change, experiment_id: int, values: Mapping[str, Any], schedulers: PoolSchedulers
) -> list[str]:
    """Sets what is given of ``priority`` (None: the pool's), ``weight`` and ``max_slots`` (None: no limit).

    It holds at once. Returns remarks on what the pool does not heed.

    Raises NotFound, Conflict when the experiment has ended, BadRequest for a ``max_slots`` that is less than
    one of its trials wants, and for what the config policies do not allow.
    """
    row = await _lock_job(change, experiment_id)
    found = (await change.conn.execute(_RESOURCES, {"id": experiment_id})).one()
    wanted, limit = found.slots_per_trial or 0, values.get("max_slots")
    if limit is not None and limit < wanted:
        raise BadRequest(
            f"max_slots: must be at least {wanted}, the slots_per_trial of experiment {experiment_id}, not "
            f"{limit}; to stop its trials, pause it"
        )
    held = await config_policies.of_experiment(change.conn, experiment_id)
    await _require_allowed(change.conn, held, values, row.resource_pool, schedulers)
    given = {"id": experiment_id, "values": orjson.dumps(dict(values)).decode()}
    await change.conn.execute(_SET, given)
    if "priority" in values:
        given = {"id": experiment_id, "priority": values["priority"]}
        await change.conn.execute(_SET_PRIORITY, given)
    _announce(change, experiment_id)
    scheduler = schedulers.config(row.resource_pool).type
    # A weight of 1 is said, too: somebody has just set it.
    return unheeded(
        {"resources": values}, Surroundings(row.resource_pool, scheduler), all_that_is_there=True
    )


async def _require_allowed(
    conn: AsyncConnection,
    held: Held,
    values: Mapping[str, Any],
    pool: str,
    schedulers: PoolSchedulers,
) -> None:
    """Raises BadRequest for values of ``resources`` that the config policies do not allow in the pool."""
    require_change(held, values)
    if "priority" not in values or all(policy.priority_limit is None for policy in held):
        return
    order = await config_policies.order_of(conn, pool, schedulers.cluster)
    given = values["priority"]
    limit_priority(held, order.default if given is None else given, order, "priority")


_SET_OF_TASK = sa.text(
    """
    UPDATE tasks SET config = jsonb_set(config, '{resources,priority}', cast(:priority AS jsonb))
    WHERE id = :id AND state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')
    RETURNING config #>> '{resources,resource_pool}' AS pool
    """
)
_SET_OF_TASKS_LEG = sa.text(
    """
    UPDATE allocations SET priority = :priority WHERE id IN (
        SELECT id FROM allocations WHERE task_id = :id AND state <> 'TERMINATED'
        ORDER BY id FOR NO KEY UPDATE)
    """
)


async def set_task_priority(
    change: Change, task_id: str, priority: int | None, schedulers: PoolSchedulers
) -> list[str]:
    """Sets the priority of a task that is no trial (None: the pool's); it holds at once. Remarks.

    Raises Conflict when the task has ended, BadRequest for a priority that the config policies do not allow.
    """
    given = {"id": task_id, "priority": orjson.dumps(priority).decode()}
    row = (await change.conn.execute(_SET_OF_TASK, given)).first()
    if row is None:
        raise Conflict(f"task {task_id} has ended: only what waits or runs has a priority")
    held = await config_policies.of_task(change.conn, task_id)
    await _require_allowed(change.conn, held, {"priority": priority}, row.pool, schedulers)
    await change.conn.execute(_SET_OF_TASKS_LEG, {"id": task_id, "priority": priority})
    change.notify(topics.SCHEDULER, topics.task(task_id))
    if priority is None:
        return []
    where = Surroundings(row.pool, schedulers.config(row.pool).type, is_task=True)
    return unheeded({"resources": {"priority": priority}}, where)


async def move_beside(
    change: Change,
    experiment_id: int,
    anchor_id: int,
    *,
    ahead: bool,
    schedulers: PoolSchedulers,
) -> list[str]:
    """Places the job right ahead of or behind another one of its pool; the queue is locked. Remarks.

    In a pool that serves by priority it also gets the other one's priority, without which it would stand
    elsewhere. Raises NotFound, Conflict, BadRequest.
    """
    if experiment_id == anchor_id:
        raise BadRequest(f"experiment {experiment_id} cannot be moved ahead of or behind itself")
    row = await _lock_job(change, experiment_id)
    anchor = await _lock_job(change, anchor_id)
    pool = row.resource_pool
    if anchor.resource_pool != pool:
        raise BadRequest(
            f"experiment {experiment_id} waits in resource pool {pool!r}, experiment {anchor_id} in "
            f"{anchor.resource_pool!r}: move it to that pool first"
        )
    now = (await change.conn.execute(_NOW)).scalar_one()
    found = await change.conn.execute(_IN_LINE, {"pool": pool, "moved": experiment_id})
    line = [(one.id, one.place) for one in found]
    places = place_beside(line, anchor_id, ahead=ahead, moved=experiment_id, now=now)
    ids = sorted(places)
    await change.conn.execute(_PLACE, {"ids": ids, "places": [places[one] for one in ids]})
    _announce(change, experiment_id)
    if schedulers.config(pool).type not in HEEDS_PRIORITY:
        return []
    default = schedulers.default_priority(pool)
    mine, other = [
        (await change.conn.execute(_RESOURCES, {"id": one})).one().priority
        for one in (experiment_id, anchor_id)
    ]
    if (mine or default) == (other or default):
        return []
    remarks = await set_resources(change, experiment_id, {"priority": other}, schedulers)
    return [
        f"experiment {experiment_id} now has priority {other or default}, that of experiment {anchor_id}: "
        f"resource pool {pool!r} serves by priority",
        *remarks,
    ]


async def require_allowed_there(
    conn: AsyncConnection, experiment_id: int, pool: str, schedulers: PoolSchedulers
) -> None:
    """Raises BadRequest if config policies keep the experiment out of the pool, or its priority means too
    much there."""
    held = await config_policies.of_experiment(conn, experiment_id)
    if held:
        found = (await conn.execute(_RESOURCES, {"id": experiment_id})).one()
        require_change(held, {"resource_pool": pool})
        await _require_allowed(conn, held, {"priority": found.priority}, pool, schedulers)


async def move_to_pool(
    change: Change,
    experiment_id: int,
    pool: str,
    schedulers: PoolSchedulers,
    *,
    reason: str = "",
    fallback: Mapping[str, str] | None = None,
) -> list[str]:
    """The experiment's trials run in ``pool`` from now on: what waits queues there, what runs saves a
    checkpoint, ends and goes on there. Warnings.

    ``reason``: in words; default: that it was moved. ``fallback``: of the row, when nobody asked for it.

    Raises NotFound, Conflict; BadRequest when there is no such pool, when no agent of it is wide enough, or
    when the config policies do not allow it.
    """
    row = await _lock_job(change, experiment_id)
    if row.resource_pool == pool:
        return []
    await require_allowed_there(change.conn, experiment_id, pool, schedulers)
    found = (await change.conn.execute(_RESOURCES, {"id": experiment_id})).one()
    wanted = 1 if found.slots_per_trial is None else found.slots_per_trial
    asked = {
        "resources": {
            "resource_pool": pool,
            "slots_per_trial": wanted,
            "placement": found.placement,
            "is_single_node": found.is_single_node,
        }
    }
    _, warnings = await check_slots(
        change.conn, asked, schedulers.cluster, workspace_of(experiment_id)
    )
    given = {"id": experiment_id, "pool": pool, "fallback": fallback and dict(fallback)}
    await change.conn.execute(_MOVE_POOL, given)
    trials = {one.task_id: one.id for one in await live_trials(change, experiment_id)}
    again = []
    reason = reason or f"moved to resource pool {pool!r}"
    for live in await trial_queue.live_of_experiment(change, experiment_id):
        if live.state != states.REQUESTED:
            await allocating.stop_for(change, live.id, live.id)
        elif live.task_id in trials:
            await allocating.withdraw(change, live.id, reason)
            again.append(trials[live.task_id])
            prefect_states.awaiting_slots(change, live.task_id, reason)
    await trial_queue.request(change, again, keep_place=True)
    _announce(change, experiment_id)
    if not warnings:
        return []
    return [
        f"resource pool {pool!r} has no agent that is wide enough now: the experiment waits until one comes"
    ]
