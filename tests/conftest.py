"""Fixtures of every suite that talks to a real cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.local_cluster import LocalCluster

# Keras decides when it is imported; its default, TensorFlow, is not installed.
os.environ.setdefault("KERAS_BACKEND", "torch")

# The same examples in every run: a finding must not depend on who runs the tests. To search for more:
# HYPOTHESIS_PROFILE=default pytest tests/unit/searchers
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


# These share one Postgres and start no cluster.
WITH_DATABASE = ("integration/control/", "integration/registry/", "integration/service_api/")


class Shares(LoadScopeScheduling):
    """How `make test` shares the tests out to its two processes.

    Each has a cluster of its own, one for `tests/integration`, the other for the suites beside it and, when
    these are through, for what needs none: about half of the time each.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0].removeprefix("tests/")
        if path.startswith("unit/"):
            return path
        if path.startswith(WITH_DATABASE):
            return "database"
        return "integration" if path.startswith("integration/") else "others"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares:
    return Shares(config, log)


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """One local cluster for the whole test session: Postgres, Prefect, the service and an agent."""
    with LocalCluster.running() as running:
        yield running
