"""The agent: it runs the trials that the service places on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from determined_deployments.local import daemon, postgres_user, probe, recovery, task_user
from determined_deployments.local.component import Component
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import ClusterState

NAME = "agent"


def settings(layout: Layout, state: ClusterState) -> dict[str, object]:
    """The content of ``agent.json``."""
    return {
        "agent_id": state.agent_id,
        "resource_pool": state.pool,
        "slots": [slot.model_dump() for slot in state.slots],
        "slot_type": state.slot_type,
        "master_url": state.master_url,
        "agent_token": state.agent_token,
        "prefect_api_url": state.prefect_api_url,
        "prefect_auth": state.prefect_auth,
        "work_dir": str(layout.agent_work),
        "checkpoint_dir": str(layout.checkpoints),
        "security": {"default_task": state.default_task and state.default_task.model_dump()},
    }


CLOCK_STEP = 1.0
"""Seconds by which a process' start time may be wrong (kernel ticks, rounding)."""


def component(layout: Layout, state: ClusterState, after: tuple[str, ...]) -> Component:
    """The agent of this machine. It waits by itself for the service. It starts last, because the imports of
    its fork servers take more CPU than anything else, and the components it waits for need the CPU first.
    """
    config = layout.root / "agent.json"
    return Component(
        name=NAME,
        argv=(sys.executable, "-P", "-m", "determined_deployments.agent"),
        env={"DET_AGENT_CONFIG": str(config)},
        files={config: json.dumps(settings(layout, state), indent=2) + "\n"},
        is_ready=lambda: _is_ready(layout, state),
        url=state.master_url,
        after=after,
        prepare=lambda note: _prepare(layout, state, note),
    )


def _prepare(layout: Layout, state: ClusterState, note: Callable[[str], None]) -> None:
    layout.agent_work.mkdir(mode=0o700, exist_ok=True)
    account = task_user.account(state.default_task) if state.default_task else None
    if account is not None:
        python = Path(sys.executable)
        for target in (python, python.resolve(), Path(os.__file__), layout.agent_work / "any"):
            postgres_user.open_the_way(account, target, note)


def _is_ready(layout: Layout, state: ClusterState) -> bool:
    process = daemon.running(layout, NAME) or recovery.search(layout, state.marker, NAME)
    return process is not None and is_registered(state, process.create_time())


def is_registered(state: ClusterState, since: float) -> bool:
    """Whether the service has heard from this agent since ``since`` (seconds since the epoch), and has it
    in the pool of ``state``. The time matters, because the service also lists agents that are gone; the
    pool, because the process before this one may have been heard of within ``CLOCK_STEP``.
    """
    answer = probe.get(f"{state.master_url}/api/v1/agents", token=state.agent_token)
    agents = answer.get("agents", []) if isinstance(answer, dict) else []
    return any(
        agent["id"] == state.agent_id
        # The process before it may have ended within CLOCK_STEP.
        and agent.get("state") == "STATE_ALIVE"
        and agent.get("resourcePools") == [state.pool]
        and _last_heard_of(agent) >= since - CLOCK_STEP
        for agent in agents
    )


def _last_heard_of(agent: Mapping[str, Any]) -> float:
    times = (agent.get("registeredTime"), agent.get("lastHeartbeat"))
    return max((datetime.fromisoformat(time).timestamp() for time in times if time), default=0.0)
