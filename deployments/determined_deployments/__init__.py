"""Where it runs: the process agent, the local cluster, and how Prefect finds our worker types.

Prefect loads this package (entry point group ``prefect.collections``) to learn our worker types, and is
always imported by then. Everybody else (`det deploy`) does not pay for Prefect's import.
"""

import sys

if "prefect" in sys.modules:
    # Registers the worker type.
    import determined_deployments.agent.worker  # noqa: F401
