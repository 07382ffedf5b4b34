"""The agent: it runs the trials that the service places on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from determined_deployments.agent.launchers.fork_server.plans import WITHOUT_TORCH
from determined_deployments.local import daemon, probe, recovery, task_user
from determined_deployments.local.component import Component
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import ClusterState, LocalSlot

NAME = "agent"
MOST = 8
"""Of agents of other pools: each takes some 300 MB."""


def _short(pool: str) -> str:
    """A pool's name as a part of file names and of agents' names."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", pool)[:60]
    return plain if plain == pool else f"{plain}-{hashlib.sha256(pool.encode()).hexdigest()[:8]}"


def name_of(pool: str) -> str:
    """The component that is the agent of another pool than the first."""
    return f"{NAME}-{_short(pool)}"


def other_names(state: ClusterState) -> tuple[str, ...]:
    """The components that are agents of other pools."""
    return tuple(name_of(pool) for pool in state.other_pools)


def is_agent(name: str) -> bool:
    """True if the component of that name is an agent."""
    return name == NAME or name.startswith(f"{NAME}-")


def agent_id(state: ClusterState, pool: str) -> str:
    """The name of a pool's agent in the service and in Prefect."""
    return state.agent_id if pool == state.pool else f"{state.agent_id}.{_short(pool)}"


def agent_ids(state: ClusterState) -> list[str]:
    """The names of all agents that the cluster has by itself, also while the first one changes its pool."""
    return [state.agent_id, *(f"{state.agent_id}.{_short(pool)}" for pool in state.other_pools)]


def work_dir(layout: Layout, state: ClusterState, pool: str) -> Path:
    """The directory of a pool's agent."""
    if pool == state.pool:
        return layout.agent_work
    return layout.root / "agents" / agent_id(state, pool)


def _slots(state: ClusterState, pool: str) -> tuple[str, list[LocalSlot]]:
    """A GPU has one agent: that of the first pool. CPU slots are a number, which each pool has."""
    if pool == state.pool or state.slot_type == "cpu":
        return state.slot_type, state.slots
    return "cpu", [LocalSlot(id=number, device="cpu") for number in range(os.cpu_count() or 1)]


def settings(layout: Layout, state: ClusterState, pool: str | None = None) -> dict[str, object]:
    """The settings file of the agent of ``pool`` (None: the first one)."""
    pool = pool or state.pool
    slot_type, slots = _slots(state, pool)
    return {
        "agent_id": agent_id(state, pool),
        "resource_pool": pool,
        "slots": [slot.model_dump() for slot in slots],
        "slot_type": slot_type,
        "master_url": state.master_url,
        "agent_token": state.agent_token,
        "prefect_api_url": state.prefect_api_url,
        "prefect_auth": state.prefect_auth,
        "work_dir": str(work_dir(layout, state, pool)),
        "checkpoint_dir": str(layout.checkpoints),
        "security": {"default_task": state.default_task and state.default_task.model_dump()},
    }


CLOCK_STEP = 1.0
"""Seconds by which a process' start time may be wrong (kernel ticks, rounding)."""


def component(layout: Layout, state: ClusterState, after: tuple[str, ...]) -> Component:
    """The agent of this machine. It waits by itself for the service. It starts last, because the imports of
    its fork servers take more CPU than anything else, and the components it waits for need the CPU first.
    """
    return _component(layout, state, NAME, state.pool, {}, after)


def of_other_pools(
    layout: Layout, state: ClusterState, after: tuple[str, ...]
) -> Iterator[Component]:
    """The agents of the other pools. They are refused by a service that does not know their pools yet, so the
    service is to be among ``after``. To take less memory, they import no torch beforehand.
    """
    for pool in state.other_pools:
        yield _component(layout, state, name_of(pool), pool, {WITHOUT_TORCH: "1"}, after)


def _component(
    layout: Layout,
    state: ClusterState,
    name: str,
    pool: str,
    env: Mapping[str, str],
    after: tuple[str, ...],
) -> Component:
    config = layout.root / f"{name}.json"
    return Component(
        name=name,
        argv=(sys.executable, "-P", "-m", "determined_deployments.agent"),
        env={"DET_AGENT_CONFIG": str(config), **env},
        files={config: json.dumps(settings(layout, state, pool), indent=2) + "\n"},
        is_ready=lambda: _is_ready(layout, state, name, pool),
        url=state.master_url,
        after=after,
        hands_over=True,
        prepare=lambda note: _prepare(work_dir(layout, state, pool), state, note),
    )


def _prepare(folder: Path, state: ClusterState, note: Callable[[str], None]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True, parents=True)
    task_user.open_the_ways(state.default_task, folder, note)


def _is_ready(layout: Layout, state: ClusterState, name: str, pool: str) -> bool:
    process = daemon.running(layout, name) or recovery.search(layout, state.marker, name)
    return process is not None and is_registered(state, process.create_time(), pool)


def is_registered(state: ClusterState, since: float, pool: str | None = None) -> bool:
    """Whether the service has heard from the agent of ``pool`` (None: the first one) since ``since`` (seconds
    since the epoch), and has it in that pool. The time matters, because the service also lists agents that
    are gone; the pool, because the process before this one may have been heard of within ``CLOCK_STEP``.
    """
    answer = probe.get(f"{state.master_url}/api/v1/agents", token=state.agent_token)
    agents = answer.get("agents", []) if isinstance(answer, dict) else []
    pool = pool or state.pool
    return any(
        agent["id"] == agent_id(state, pool)
        # The process before it may have ended within CLOCK_STEP.
        and agent.get("state") == "STATE_ALIVE"
        and agent.get("resourcePools") == [pool]
        and _last_heard_of(agent) >= since - CLOCK_STEP
        for agent in agents
    )


def _last_heard_of(agent: Mapping[str, Any]) -> float:
    times = (agent.get("registeredTime"), agent.get("lastHeartbeat"))
    return max((datetime.fromisoformat(time).timestamp() for time in times if time), default=0.0)
