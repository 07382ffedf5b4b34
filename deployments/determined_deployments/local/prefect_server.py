"""The Prefect server: API, UI and its background loops in one process on loopback."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

from determined.common.wire import no_telemetry
from determined_deployments.local import databases, probe
from determined_deployments.local.component import Component, StopSignals
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import HOST, ClusterState

NAME = "prefect"
MODULE = "determined_deployments.prefect_process"

QUIET = {
    # Seconds between looks at the database, for one machine. Schedules and automations stay on; the longer
    # intervals only delay cosmetics (Late marks, offline marks) or rare repairs.
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "30",
    "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "30",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "30",
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "30",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "15",
    "PREFECT_SERVER_SERVICES_TRIGGERS_PG_NOTIFY_HEARTBEAT_INTERVAL_SECONDS": "30",
    "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT15S",
    # No message leaves the machine.
    **no_telemetry.VARIABLES,
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Its second version asks another host (amplitude.com) whether to record sessions.
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
    # A library of its task queue would check every argument of every call against its annotation.
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_LEVEL": "WARNING",
}

STOP_SIGNALS: StopSignals = ((signal.SIGTERM, 8.0),)
"""A longer wait is useless: without a database the server never ends by itself, and it keeps nothing in
memory.
"""


def environment(api_url: str, auth: str, home: Path, db_url: str) -> dict[str, str]:
    """Of the server that ``api_url`` names; ``db_url``: ``postgresql://…``."""
    address = urlsplit(api_url)
    return {
        **QUIET,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": api_url,
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_HOST": address.hostname or HOST,
        "PREFECT_SERVER_API_PORT": str(address.port or 4200),
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "ui"),
        "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",  # MODULE does it
        "PREFECT_API_DATABASE_CONNECTION_URL": databases.for_asyncpg(db_url),
    }


def shared_by_redis(url: str) -> dict[str, str]:
    """Of each of several servers on one database, which need a Redis between them: Prefect's own variables.

    Events, their order, leases of concurrency limits, clean-ups that workers are asked for, and the turns of
    the background loops are in it.
    """
    return {
        "PREFECT_SERVER_EVENTS_MESSAGING_BROKER": "prefect_redis.messaging",
        "PREFECT_SERVER_EVENTS_MESSAGING_CACHE": "prefect_redis.messaging",
        "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect_redis.ordering",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect_redis.lease_storage",
        "PREFECT_SERVER_WORKER_CHANNEL_CLEANUP_QUEUE_STORAGE": "prefect_redis.cleanup_queue",
        "PREFECT_REDIS_MESSAGING_URL": url,
        "PREFECT_REDIS_WORKER_CLEANUP_QUEUE_URL": url,
        "PREFECT_SERVER_DOCKET_URL": url,
    }


def component(layout: Layout, state: ClusterState, after: tuple[str, ...]) -> Component:
    """The server on ``state.prefect_port``, its tables in the database ``prefect``."""
    port = state.prefect_port
    argv = (sys.executable, "-P", "-m", MODULE, HOST, str(port))
    home, db_url = layout.prefect_home, databases.url(state, "prefect")
    env = environment(state.prefect_api_url, state.prefect_auth, home, db_url)
    return Component(
        name=NAME,
        argv=argv,
        env=env,
        # Not /health: that wants no password, so another cluster's Prefect would answer, too.
        is_ready=lambda: (
            probe.get(f"{state.prefect_api_url}/version", login=state.prefect_auth) is not None
        ),
        url=state.prefect_url,
        port=port,
        after=after,
        stop_signals=STOP_SIGNALS,
        prepare=lambda note: layout.prefect_home.mkdir(mode=0o700, exist_ok=True),
    )
