"""Clusters and services that the attacks need, as the suites beside this one make them."""

from tests.integration.conftest import (
    database_url,
    postgres_server,
    service_app,
    settings,
    template,
    user,
)
from tests.integration.mlflow.conftest import cluster as mlflow_cluster
from tests.integration.service_api.conftest import world

__all__ = [
    "database_url",
    "mlflow_cluster",
    "postgres_server",
    "service_app",
    "settings",
    "template",
    "user",
    "world",
]
