"""Keeps Prefect and MLflow from reporting to their makers how they are used."""

from __future__ import annotations

import os

VARIABLES = {
    # Both read it; MLflow takes no other word for yes.
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Of a server, a temporary one that a flow starts included.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
"""In the environment of every process of the cluster, and of every task unless its configuration says
otherwise.
"""


def forbid() -> None:
    """Sets those :data:`VARIABLES` that the environment lacks. Prefect and MLflow read them when they are
    imported, so this comes first.
    """
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
