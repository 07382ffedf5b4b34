"""Fixtures of every suite that talks to a real cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from tests.local_cluster import LocalCluster

# Keras decides when it is imported; its default, TensorFlow, is not installed.
os.environ.setdefault("KERAS_BACKEND", "torch")

# The same examples in every run: a finding must not depend on who runs the tests. To search for more:
# HYPOTHESIS_PROFILE=default pytest tests/unit/searchers
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """One local cluster for the whole test session: Postgres, Prefect, the service and an agent."""
    with LocalCluster.running() as running:
        yield running
