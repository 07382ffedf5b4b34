"""The state and memory use of each component."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Literal

import psutil

from determined_deployments.local import daemon, plan, recovery
from determined_deployments.local import state as states
from determined_deployments.local.component import Component
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import ClusterState

State = Literal["running", "starting", "stopped", "dead"]


@dataclass(frozen=True)
class ComponentStatus:
    """One row of `status`. ``starting``: the process lives but does not answer (yet); ``dead``: it
    ended without `cluster-down`, and the end of ``log`` may say why."""

    component: str
    state: State
    pid: int | None = None
    url: str | None = None
    rss: int | None = None
    """Resident bytes of its main process."""
    memory: int | None = None
    """Bytes of the component and its children together, shared pages counted once (PSS); None if the system
    does not tell.
    """
    uptime_s: float | None = None
    log: str | None = None
    """Path of its log."""


def cluster_status(data_dir: str | os.PathLike[str] | None = None) -> list[ComponentStatus]:
    """One entry per component; empty when no cluster was ever started there."""
    layout = Layout.of(data_dir)
    state = states.load(layout)
    if state is None:
        return []
    if state.external_db_url is None and not layout.postgres.exists():
        # Recorded but never got as far as a database: nothing to ask.
        return [ComponentStatus(name, "stopped") for name in plan.names(state)]
    components = plan.build(layout, state)
    processes = {each.name: _process(layout, state, each.name) for each in components}
    any_lives = any(processes.values())
    return [_row(layout, each, processes[each.name], any_lives) for each in components]


def _process(layout: Layout, state: ClusterState, name: str) -> psutil.Process | None:
    return daemon.running(layout, name) or recovery.search(layout, state.marker, name)


def _row(
    layout: Layout, component: Component, process: psutil.Process | None, any_lives: bool
) -> ComponentStatus:
    name, log = component.name, layout.log(component.name)
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            return ComponentStatus(
                name,
                "running" if component.is_ready() else "starting",
                process.pid,
                component.url,
                process.memory_info().rss,
                _memory(process, whole_tree=not plan.agent.is_agent(name)),
                time.time() - process.create_time(),
                str(log),
            )
    # `cluster-down` takes the pid files away. A file may be lost, too: among live ones, one that has
    # run before and does not now is dead.
    is_dead = layout.pid_file(name).exists() or (any_lives and log.exists())
    state: State = "dead" if is_dead else "stopped"
    return ComponentStatus(name, state, url=component.url, log=str(log))


def _memory(process: psutil.Process, whole_tree: bool) -> int | None:
    """PSS in bytes of the process and its children. Below the agent's children (its fork servers)
    are training processes, which are not the cluster's own."""
    total = 0
    for member in [process, *process.children(recursive=whole_tree)]:
        try:
            total += member.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
        except (psutil.AccessDenied, AttributeError):
            return None
    return total
