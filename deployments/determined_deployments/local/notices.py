"""Warnings of `cluster-up` about a cluster that works now, but not for long or not for everyone."""

from __future__ import annotations

import shlex
import shutil

from determined.common.wire import disk
from determined_deployments.local import probe
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout
from determined_deployments.local.report import ClusterReporter
from determined_deployments.local.state import ClusterState


def look_at_disk(layout: Layout, reporter: ClusterReporter) -> None:
    """Says when the disk is nearly full. Raises ClusterError where a new database would not fit."""
    free = shutil.disk_usage(layout.root).free
    if free >= disk.LITTLE_BYTES:
        return
    little = f"only {disk.words(free)} are free at {layout.root}"
    if free < disk.TOO_LITTLE_BYTES and not layout.state.exists():
        raise ClusterError(
            f"{little}, and a new cluster needs {disk.words(disk.TOO_LITTLE_BYTES)}: free some space, or"
            " choose another --data-dir"
        )
    reporter.note(
        f"{little}, where the database and checkpoints lie: free some space, or delete old experiments"
        " (det e delete); without space Postgres stops, and with it everything"
    )


def say_without_agent(state: ClusterState, reporter: ClusterReporter) -> None:
    """Names the pools in which everything would wait."""
    answer = probe.get(f"{state.master_url}/api/v1/resource-pools", token=state.agent_token)
    for pool in answer.get("resourcePools", ()) if isinstance(answer, dict) else ():
        if not pool["numAgents"]:
            name = shlex.quote(pool["name"])
            reporter.note(
                f"resource pool {pool['name']} has no agent: its tasks wait until you start one"
                f" (det agent start --pool {name})"
            )
