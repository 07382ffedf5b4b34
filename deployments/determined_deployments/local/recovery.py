"""Finds components whose pid file was lost (a command killed at the wrong moment, a deleted file).

Without this a second Prefect or a second agent would be started beside the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

import psutil

from determined_deployments.local import daemon, postgres, prefect_server
from determined_deployments.local.daemon import PidFile
from determined_deployments.local.layout import Layout, write_private
from determined_deployments.local.report import ClusterReporter

KEYS = {
    "prefect": prefect_server.MODULE,
    "service": "determined_service",
    "agent": "determined_deployments.agent",
}
"""A word of each component's command line. Processes started by the agent inherit its environment,
so that alone does not tell the agent from them."""


def recover(
    layout: Layout, marker: str, reporter: ClusterReporter, other_agents: Iterable[str] = ()
) -> None:
    """Writes the missing pid files of live components of the cluster ``marker``."""
    for name in ("postgres", *KEYS, *other_agents):
        if daemon.running(layout, name):
            continue
        process = search(layout, marker, name)
        if process is None:
            continue
        try:
            content = PidFile(
                process.pid, process.create_time(), daemon.fingerprint_of(process), marker
            )
        except psutil.NoSuchProcess:
            continue
        write_private(layout.pid_file(name), json.dumps(asdict(content)))
        reporter.note(
            f"{name} runs as pid {process.pid} without a valid pid file; a new pid file was written"
        )


def search(layout: Layout, marker: str, name: str) -> psutil.Process | None:
    """The live process of component ``name``, independent of the pid files. For Postgres it is the server
    on the cluster's folder, otherwise the oldest process that was started as this component.
    """
    if name == postgres.NAME:
        pid = postgres.postmaster(layout.postgres)
        return psutil.Process(pid) if pid else None
    found = []
    for process in daemon.members(marker):
        try:
            key = KEYS.get(name, KEYS["agent"])
            if daemon.component_of(process) == name and key in process.cmdline():
                found.append((process.create_time(), process.pid, process))
        except psutil.Error:
            continue
    return min(found)[2] if found else None
