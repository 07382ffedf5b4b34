"""Fixtures of every suite that talks to a real cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.local_cluster import LocalCluster

# Keras decides when it is imported; its default, TensorFlow, is not installed.
os.environ.setdefault("KERAS_BACKEND", "torch")

# The same examples in every run: a finding must not depend on who runs the tests. To search for more:
# HYPOTHESIS_PROFILE=default pytest tests/unit/searchers
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


TESTS = Path(__file__).parent
# They share one Postgres and start no cluster.
WITH_DATABASE = {"integration/control", "integration/registry", "integration/service_api"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """How `make test` shares the tests out to its two processes (pytest-xdist, by these groups).

    All that needs the session's cluster stays together, for there is one per process; unit tests go a file
    at a time to whichever process is free.
    """
    for item in items:
        path = item.path.relative_to(TESTS)
        group = "cluster"
        if path.parts[0] == "unit":
            group = str(path)
        elif "/".join(path.parts[:2]) in WITH_DATABASE:
            group = "database"
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """One local cluster for the whole test session: Postgres, Prefect, the service and an agent."""
    with LocalCluster.running() as running:
        yield running
