"""Deployments: the process agent, the local cluster, and the worker types that Prefect finds here.

Prefect loads this package (entry point group ``prefect.collections``) to learn our worker types, and is
always imported by then. Other programs (`det deploy`) do not pay for Prefect's import.
"""

import sys
from importlib.util import find_spec

from determined.common.wire import no_telemetry

no_telemetry.forbid()

if "prefect" in sys.modules:
    # Registers the worker types of the launchers that come with us.
    import determined_deployments.agent.launchers.fork_server.worker

    if find_spec("prefect_docker"):
        import determined_deployments.agent.launchers.docker.worker
    if find_spec("prefect_kubernetes"):
        import determined_deployments.agent.launchers.kubernetes.worker  # noqa: F401
