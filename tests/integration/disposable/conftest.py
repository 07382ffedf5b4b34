"""A cluster for tests that configure it anew, break it, or want another environment around it: the other
tests of a session share one that stays as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.local_cluster import LocalCluster
from tests.toy_plugin import install_toy_searcher


@pytest.fixture(scope="session")
def disposable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster for this folder, with another package's searcher installed."""
    site = tmp_path_factory.mktemp("site")
    install_toy_searcher(site)
    with LocalCluster.running({"PYTHONPATH": str(site)}) as running:
        yield running
