"""The decisions that a kind of task makes: :class:`AnyKind`, and :class:`SlotKind` for those that hold
slots.

The core (allocations, placement, launch, the end of a leg, kill, tokens, logs, reconciler) knows a task's id,
kind and owner, and asks the kind, a stateless object of :mod:`.table`, for the rest:

1. a user creates the task (:func:`determined_service.lifecycle.tasks.create`) and requests slots for it;
2. the scheduler places the allocation, its agent asks for work: :meth:`SlotKind.orders`;
3. the process runs: :meth:`SlotKind.started`; the API shows it as ready when :meth:`SlotKind.is_ready`;
4. the leg ends, by any report: :meth:`SlotKind.lock_leg` locks what that may change, :meth:`SlotKind.judge`
   decides, the core ends the allocation (its token is worth nothing from then on) and writes the leg's
   outcome, and what the kind returned goes on from there, all in one transaction;
5. a user may end the task before: :meth:`AnyKind.kill`.

Everything may be called again after a crash, and changes nothing that was changed already. A kind whose state
is in its task's row needs little beside a ``name`` and an :meth:`SlotKind.order`; trials, whose state is in a
separate table, override most.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import ClusterConfig
from determined.common.wire import gate, serving
from determined.common.wire.legs import (
    AgentUser,
    ExitKind,
    Granted,
    LegSpec,
    Port,
    TaskDefaults,
    leg_id_of,
)
from determined.common.wire.serving import Served
from determined.expconf.container_wishes import (
    CAPABILITIES,
    HOST_PATHS,
    POD_FIELDS,
    of_pod_spec,
)
from determined.expconf.heeding import KUBERNETES
from determined_registry.database.tables import tasks
from determined_service.base import topics
from determined_service.base.errors import NotFound
from determined_service.base.settings import Settings
from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle import unplaced
from determined_service.lifecycle.exits import ExitFacts, LegExit, Outcome, describe_exit
from determined_service.state import prefect_states, states
from determined_service.state.change import Change
from determined_service.state.states import TASK, transition

KILLED = "killed by the user"


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The facts of a task that the API shows. ``topic`` is announced when its state changes; ``trial_id``:
    the trial whose task it is."""

    name: str
    state: str
    reason: str | None
    end_time: datetime | None
    project_id: int | None
    topic: str
    trial_id: int | None = None


@dataclass(frozen=True, slots=True)
class LegEnd:
    """How a leg ended, in words. ``go_on`` is called when its allocation has ended."""

    outcome: Outcome
    reason: str
    go_on: Callable[[Change], Awaitable[None]]


_LOCK = sa.text("SELECT id, state, reason FROM tasks WHERE id = :id FOR NO KEY UPDATE")


class AnyKind(ABC):
    """A kind of task. The methods here serve those whose state is in their task's row."""

    name: ClassVar[str]
    """The value of ``tasks.kind``, and of ``DET_TASK_TYPE`` in its processes."""

    mirrored: ClassVar[bool] = True
    """True if the service tells Prefect the state of its run; False: its flow does."""

    async def facts(self, conn: AsyncConnection, task_ids: Sequence[str]) -> dict[str, TaskFacts]:
        """Of the tasks of this kind among ``task_ids``."""
        found = await conn.execute(sa.select(tasks).where(tasks.c.id.in_(task_ids)))
        return {
            row.id: TaskFacts(
                name=row.name or row.id,
                state=row.state,
                reason=row.reason,
                end_time=row.end_time,
                project_id=row.project_id,
                topic=topics.task(row.id),
            )
            for row in found
        }

    async def config(self, conn: AsyncConnection, task_id: str) -> Mapping[str, Any] | None:
        """The task's configuration; None: it has none."""
        found = await conn.execute(sa.select(tasks.c.config).where(tasks.c.id == task_id))
        return found.scalar_one_or_none()

    async def hold(self, change: Change, task_id: str) -> None:
        """Locks what every change of the task's state locks first. Raises NotFound."""
        if (await change.conn.execute(_LOCK, {"id": task_id})).first() is None:
            raise NotFound(f"task {task_id} does not exist")

    @abstractmethod
    async def kill(self, change: Change, task_id: str) -> None:
        """Ends the task; one that has ended stays as it is. Raises NotFound, Conflict."""


_LOCK_LEG = sa.text(
    """
    SELECT a.id, a.task_id, a.run_id, a.state, a.agent_id, a.nodes, a.kill_requested_at,
           a.preempt_requested_at, a.leaving, a.start_id, k.state AS task_state, k.reason AS task_reason
    FROM tasks k JOIN allocations a ON a.task_id = k.id
    WHERE a.id = :id
    FOR NO KEY UPDATE OF k, a
    """
)
MACHINE = """(
    SELECT s.machine FROM slots s
    WHERE s.agent_id = coalesce(r.agent_id, a.agent_id)
      AND s.slot_id = (coalesce(r.slot_ids, a.slot_ids) ->> 0)::int)"""
"""SQL: the machine of the slots of an allocation ``a``, or of its node ``r``."""
CLOSED = """ARRAY(
    SELECT m.machine FROM disabled_machines m
    WHERE m.agent_id = coalesce(r.agent_id, a.agent_id) ORDER BY 1)"""
"""SQL: the disabled machines of the agent of an allocation ``a``, or of its node ``r``. The agent's cluster
is told of them, because it may choose another machine than that of the slots."""
WORKER_TYPE = "(SELECT p.worker_type FROM pools p WHERE p.name = a.resource_pool)"
"""SQL: the type of the agents of an allocation ``a``."""
_ORDERS = sa.text(
    f"""
    SELECT a.id, a.task_id, a.run_id, a.resource_pool, a.token, a.agent_id, a.nodes,
           coalesce(r.node, 0) AS node, coalesce(r.slot_ids, a.slot_ids) AS slot_ids,
           {MACHINE} AS machine, {CLOSED} AS closed, k.flow_run_id, k.name, k.config,
           k.model_def_hash, k.data, u.username,
           u.admin AS is_administrator, coalesce(w.agent_user_group, u.agent_user_group) AS account,
           g.slot_type,
           {WORKER_TYPE} AS worker_type
    FROM allocations a
    JOIN tasks k ON k.id = a.task_id
    JOIN users u ON u.id = k.owner_id
    LEFT JOIN workspaces w ON w.id = k.workspace_id
    LEFT JOIN allocation_resources r
        ON r.allocation_id = a.id AND r.agent_id = :agent_id AND a.nodes > 1
    LEFT JOIN agents g ON g.id = coalesce(r.agent_id, a.agent_id)
    -- Without a token it has ended a moment ago.
    WHERE a.id = ANY(:ids) AND a.token IS NOT NULL
    """
)


def agent_user(account: Mapping[str, Any] | None) -> AgentUser | None:
    """The account on agents that a task's owner is linked with (``agentUserGroup``)."""
    if not account:
        return None
    return AgentUser(
        uid=account.get("agentUid"),
        gid=account.get("agentGid"),
        user=account.get("agentUser"),
        group=account.get("agentGroup"),
    )


def task_defaults(cluster: ClusterConfig, pool: str) -> TaskDefaults:
    """The settings of the cluster configuration in force for tasks that start in a pool."""
    given = cluster.container_defaults_of(pool)
    return TaskDefaults(given.network_mode, given.work_dir, given.startup_hook)


def granted(
    cluster: ClusterConfig, storage: Mapping[str, Any] | None, pool: str, *, is_administrator: bool
) -> Granted:
    """The rights that the owner and the cluster configuration in force give to a task's containers.
    ``storage``: the cluster's own."""
    given = cluster.container_defaults_of(pool)
    of_pods = [
        wish
        for pod_spec in (given.cpu_pod_spec, given.gpu_pod_spec)
        for wish in of_pod_spec(pod_spec, "")
    ]

    def found(setting: str) -> list[str]:
        return [wish.found for wish in of_pods if wish.setting == setting]

    paths = [mount.host_path for mount in given.bind_mounts or ()]
    folder = (storage or {}).get("host_path")
    return Granted(
        is_administrator,
        [*(given.add_capabilities or ()), *found(CAPABILITIES)],
        [device.host_path for device in given.devices or ()],
        [*paths, *found(HOST_PATHS), *([folder] if folder else [])],
        found(POD_FIELDS),
    )


class SlotKind(AnyKind):
    """A kind of task whose processes hold slots, or wait for some."""

    order_rows: ClassVar[sa.TextClause] = _ORDERS
    """Selects what :meth:`order` needs of the allocations ``:ids`` on ``:agent_id``; for the core, what this
    one selects."""

    @abstractmethod
    def order(self, row: sa.Row[Any]) -> dict[str, Any]:
        """What to start: the fields of a LegSpec that the core does not fill in, ``entrypoint`` at least.

        ``row`` is one of ``order_rows``; here it has the task's ``name``, ``config``, ``data`` and
        ``model_def_hash``, and the ``slot_type`` of the agent. ``env`` goes on top of the core's.
        """

    async def orders(
        self,
        conn: AsyncConnection,
        allocation_ids: Sequence[str],
        settings: Settings,
        agent_id: str | None = None,
    ) -> list[LegSpec]:
        """The order of each allocation, in any order; of a gang those for the nodes on ``agent_id``."""
        given = {"ids": list(allocation_ids), "agent_id": agent_id}
        found = await conn.execute(self.order_rows, given)
        return [self._spec(row, self.order(row), settings) for row in found]

    def _spec(self, row: sa.Row[Any], order: dict[str, Any], settings: Settings) -> LegSpec:
        env = {"DET_USER": row.username, **order.pop("env", {})}
        secret = settings.agent_token.get_secret_value()
        order["ports"] = [
            replace(port, gate_key=gate.key(secret, row.id, port.name).hex())
            for port in order.get("ports", ())
        ]
        order["avoid"] = sorted({*order.get("avoid", ()), *row.closed})
        resources = (order.get("config") or {}).get("resources") or {}
        on_kubernetes = row.worker_type == KUBERNETES
        pool = settings.cluster.scheduler_of(row.resource_pool, kubernetes=on_kubernetes)
        return LegSpec(
            allocation_id=row.id,
            leg_id=leg_id_of(row.id, row.node, row.nodes),
            task_id=row.task_id,
            task_type=self.name,
            run_id=row.run_id,
            flow_run_id=row.flow_run_id,
            slot_ids=row.slot_ids,
            node=row.node,
            nodes=row.nodes,
            machine=row.machine,
            priority=resources.get("priority") or pool.default_priority,
            resource_pool=row.resource_pool,
            session_token=row.token,
            cluster_id=str(settings.cluster_id),
            cluster_name=settings.cluster_name,
            owner=row.username,
            env=env,
            agent_user=agent_user(row.account),
            defaults=task_defaults(settings.cluster, row.resource_pool),
            granted=granted(
                settings.cluster,
                settings.checkpoint_storage,
                row.resource_pool,
                is_administrator=row.is_administrator,
            ),
            supervisor_token=serving.sign(secret, Served(serving.ALLOCATION, row.id)),
            **order,
        )

    def is_ready(self, allocation: Any) -> bool:
        """True if its users can use the running process. ``allocation``: its row, or what has its columns."""
        return bool(allocation.state == states.RUNNING)

    async def started(self, change: Change, leg: sa.Row[Any]) -> None:
        """The process of ``leg`` (its allocation's row) runs."""
        change.notify(topics.task(leg.task_id))

    async def lock_leg(self, change: Change, allocation_id: str) -> sa.Row[Any] | None:
        """The allocation's row, locked after everything that its end may change; None: there is none."""
        return (await change.conn.execute(_LOCK_LEG, {"id": allocation_id})).first()

    async def judge(self, change: Change, leg: sa.Row[Any], exit: LegExit) -> LegEnd:
        """What the end of ``leg`` (the row of :meth:`lock_leg`) means. Here: it is the task's end."""
        words = describe_exit(
            ExitFacts(
                exit_code=exit.exit_code,
                exit_signal=exit.exit_signal,
                kind=exit.kind,
                reason=exit.reason,
                kill_requested=leg.kill_requested_at is not None,
            )
        )
        if (stopped := states.OUTCOME.get(leg.task_state)) is not None:
            outcome, state, words = Outcome(stopped), stopped, leg.task_reason or words
        elif exit.kind is ExitKind.UNPLACED and leg.kill_requested_at is None:
            return LegEnd(Outcome.UNPLACED, words, partial(_rest, leg=leg, reason=exit.reason))
        elif exit.kind is ExitKind.INFRASTRUCTURE:
            outcome, state = Outcome.LOST, states.ERROR
        elif exit.exit_code or exit.exit_signal or exit.kind is not ExitKind.EXITED:
            outcome, state = Outcome.ERROR, states.ERROR
        else:
            outcome, state = Outcome.COMPLETED, states.COMPLETED

        async def go_on(change: Change) -> None:
            await self._end(change, leg.task_id, state, words)

        return LegEnd(outcome, words, go_on)

    async def kill(self, change: Change, task_id: str) -> None:
        """A process is killed, and its end is the task's; a task without one ends now."""
        await self._stop(change, task_id, states.STOPPING_KILLED, KILLED)

    async def finish(self, change: Change, task_id: str, reason: str) -> None:
        """As :meth:`kill`, but the task ends COMPLETED: nobody needs it any more. Raises NotFound."""
        await self._stop(change, task_id, states.STOPPING_COMPLETED, reason)

    async def _stop(self, change: Change, task_id: str, stopping: str, reason: str) -> None:
        await self.hold(change, task_id)
        found = await change.conn.execute(sa.select(tasks.c.state).where(tasks.c.id == task_id))
        if (state := found.scalar_one()) in states.TERMINAL:
            return
        live = await allocating.live_of_task(change, task_id)
        if live is not None and live.state != states.REQUESTED:
            if TASK.allows(state, stopping):
                await transition(change, TASK, task_id, stopping, reason=reason)
            await allocating.kill(change, live.id)
            return
        if live is not None:
            await allocating.withdraw(change, live.id, reason)
        await self._end(change, task_id, states.OUTCOME[stopping], reason)

    async def _end(self, change: Change, task_id: str, state: str, reason: str) -> None:
        await transition(change, TASK, task_id, state, reason=reason)
        if self.mirrored:
            prefect_states.ended(change, prefect_states.task_entity(task_id), state, reason)


async def _rest(change: Change, leg: sa.Row[Any], reason: str | None) -> None:
    await allocating.request_again(change, leg.id)
    await unplaced.rest(change, leg.task_id, leg.id, reason)


def variables_of(environment: Mapping[str, Any], slot_type: str) -> list[str]:
    """``environment_variables`` for a kind of slot; the section is a list, or one per kind."""
    given = environment.get("environment_variables") or []
    if isinstance(given, dict):
        given = given.get(slot_type) or []
    return [str(item) for item in given]


def user_ports(environment: Mapping[str, Any], *, default: bool = True) -> list[Port]:
    """``proxy_ports``: numbers of the user's own, at which the task's process listens.

    ``default``: the task's own address may be one of them.
    """
    given = environment.get("proxy_ports") or []
    return [
        Port(
            name=str(item["proxy_port"]),
            port=item["proxy_port"],
            tcp=bool(item.get("proxy_tcp")),
            unauthenticated=bool(item.get("unauthenticated")),
            default=default and (bool(item.get("default_service_id")) or len(given) == 1),
        )
        for item in given
    ]
