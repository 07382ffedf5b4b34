"""Stops the cluster, and on request deletes its data."""

from __future__ import annotations

import os
import shutil
import time

import psutil

from determined_deployments.local import agent, daemon, databases, lock, plan, recovery
from determined_deployments.local import state as states
from determined_deployments.local.component import TERMINATE
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout
from determined_deployments.local.report import ClusterReporter, Silent, quiet_end
from determined_deployments.local.state import ClusterState

TRAINING_GRACE = 10.0
"""Seconds."""


def cluster_down(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    delete_db: bool = False,
    training_grace: float = TRAINING_GRACE,
    reporter: ClusterReporter | None = None,
) -> bool:
    """Stops every process of the cluster: agent and training, service, Prefect, Postgres.

    Returns whether anything ran. With ``delete_db`` the databases, the record of the cluster and its
    scratch folders are removed too; checkpoints stay. ``training_grace``: seconds training processes
    get between SIGTERM and SIGKILL. Raises ClusterError.
    """
    reporter = reporter or Silent()
    layout = Layout.of(data_dir)
    if not layout.root.exists():
        return False
    with lock.held(layout.lock, reporter.note), quiet_end(reporter):
        try:
            state = states.load(layout)
        except ClusterError:
            if not delete_db:
                raise
            state = None
        stopped = _stop_all(layout, state, training_grace, reporter)
        if delete_db:
            _delete(layout, state, reporter)
    return stopped


def _stop_all(
    layout: Layout, state: ClusterState | None, grace: float, reporter: ClusterReporter
) -> bool:
    stopped = False
    if state:
        recovery.recover(layout, state.marker, reporter, agent.other_names(state))
    for name in reversed(plan.names(state)):
        reporter.waiting([name])
        process = daemon.running(layout, name)
        if process:
            stopped = True
            since = time.monotonic()
            obeyed = daemon.stop(process, plan.STOP_SIGNALS.get(name, TERMINATE))
            reporter.done(name, "stopped" if obeyed else "killed", time.monotonic() - since)
        layout.pid_file(name).unlink(missing_ok=True)
        if name == agent.NAME and state:
            # While the service still runs: supervisors report how their training ended.
            reporter.waiting(["training processes"])
            stopped = bool(_end_training(layout, state, grace, reporter)) or stopped
    left = daemon.sweep(state.marker, grace=5.0) if state else 0
    if left:
        reporter.note(f"ended {left} process(es) of this cluster that had no pid file")
    return stopped or left > 0


def _end_training(
    layout: Layout, state: ClusterState, grace: float, reporter: ClusterReporter
) -> int:
    """End all processes of the cluster that are not components. Returns how many there were."""
    live = [daemon.running(layout, name) for name in plan.names(state)]
    components = {process.pid for process in live if process}

    def is_training(process: psutil.Process) -> bool:
        return process.pid not in components and not process.name().startswith("postgres")

    ended = daemon.sweep(state.marker, grace, is_training)
    if ended:
        reporter.note(f"ended {ended} process(es) that the agent had started")
    return ended


def _delete(layout: Layout, state: ClusterState | None, reporter: ClusterReporter) -> None:
    if state and state.external_db_url:
        databases.drop(databases.maintenance(state.external_db_url))
    # Prefect's home remembers writes to the database that is deleted here.
    others = state.other_pools if state else []
    agents = [agent.work_dir(layout, state, pool) for pool in others] if state else []
    for folder in (layout.postgres, layout.prefect_home, layout.agent_work, *agents):
        if folder.exists():
            shutil.rmtree(folder)
    for name in ("service.json", "agent.json", *(f"{agent.name_of(pool)}.json" for pool in others)):
        (layout.root / name).unlink(missing_ok=True)
    # A change of the configuration that was being applied is neither finished nor undone.
    layout.earlier_config.unlink(missing_ok=True)
    layout.state.unlink(missing_ok=True)
    reporter.note(f"deleted the databases; checkpoint files stay in {layout.checkpoints}")
