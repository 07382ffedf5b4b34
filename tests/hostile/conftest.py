"""Clusters that the attacks need, as the suites beside this one make them."""

from tests.integration.conftest import postgres_server, template
from tests.integration.mlflow.conftest import cluster as mlflow_cluster

__all__ = ["mlflow_cluster", "postgres_server", "template"]
