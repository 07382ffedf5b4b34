"""Fixtures of every suite that talks to a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One local cluster for the whole test session: Postgres, Prefect, the service and an agent."""
    running = LocalCluster.in_directory(tmp_path_factory.mktemp("cluster"))
    try:
        running.up()
        yield running
    finally:
        running.down()
