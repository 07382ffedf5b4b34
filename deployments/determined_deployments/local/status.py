"""What each component does now and what it takes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Literal

import psutil

from determined_deployments.local import daemon, plan
from determined_deployments.local import state as states
from determined_deployments.local.layout import Layout

State = Literal["running", "starting", "stopped", "crashed"]


@dataclass(frozen=True)
class ComponentStatus:
    """One row of `status`. ``starting``: the process lives but does not answer (yet); ``crashed``:
    it ended without `cluster-down`."""

    component: str
    state: State
    pid: int | None = None
    url: str | None = None
    rss: int | None = None
    """Bytes resident in its main process."""
    memory: int | None = None
    """Bytes of it and its children together, shared pages counted once (PSS); None where the system
    does not tell."""
    uptime_s: float | None = None


def cluster_status(data_dir: str | os.PathLike[str] | None = None) -> list[ComponentStatus]:
    """One entry per component; empty when no cluster was ever started there."""
    layout = Layout.of(data_dir)
    state = states.load(layout)
    if state is None:
        return []
    if state.external_db_url is None and not layout.postgres.exists():
        # Recorded but never got as far as a database: nothing to ask.
        return [ComponentStatus(name, "stopped") for name in plan.ALL]
    rows = []
    for component in plan.build(layout, state):
        record = daemon.read_pid_file(layout.pid_file(component.name))
        process = daemon.alive(record) if record else None
        if process is None:
            ended: State = "crashed" if record else "stopped"
            rows.append(ComponentStatus(component.name, ended, url=component.url))
            continue
        try:
            rows.append(
                ComponentStatus(
                    component.name,
                    "running" if component.is_ready() else "starting",
                    process.pid,
                    component.url,
                    process.memory_info().rss,
                    _memory(process, whole_tree=component.name != plan.agent.NAME),
                    time.time() - process.create_time(),
                )
            )
        except psutil.NoSuchProcess:
            rows.append(ComponentStatus(component.name, "crashed", url=component.url))
    return rows


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
