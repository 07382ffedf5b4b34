"""Clusters and services that the attacks need, as the suites beside this one make them, and a victim."""

from pathlib import Path

import pytest

from tests.integration.conftest import (
    agent,
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
    "agent",
    "database_url",
    "mlflow_cluster",
    "postgres_server",
    "service_app",
    "settings",
    "template",
    "user",
    "world",
]

SECRET = "root's"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory that only root may change, with files as a checkpoint has them."""
    found = tmp_path / "victim"
    found.mkdir()
    (found / "file").write_text(SECRET)
    return found
