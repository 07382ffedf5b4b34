"""A whole cluster on this machine: Postgres, Prefect's server, the service and one agent.

:func:`cluster_up`, :func:`cluster_down`, :func:`cluster_status` and :func:`read_logs` are what `det deploy
local` calls. A component is a :class:`~.component.Component`: a command, and a check that tells whether it
works. ``plan`` makes the list of components; ``up`` and ``down`` know only what that class says.
"""

from determined_deployments.local.down import cluster_down
from determined_deployments.local.errors import ClusterError, ComponentFailed
from determined_deployments.local.logs import read_logs
from determined_deployments.local.plan import ClusterOptions
from determined_deployments.local.status import ComponentStatus, cluster_status
from determined_deployments.local.up import cluster_up

__all__ = [
    "ClusterError",
    "ClusterOptions",
    "ComponentFailed",
    "ComponentStatus",
    "cluster_down",
    "cluster_status",
    "cluster_up",
    "read_logs",
]
