"""Templates of `det init`; templates of other frameworks are in test_frameworks.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster
from tests.templates import try_out


@pytest.mark.parametrize("name", ["core", "pytorch", "sklearn", "ddp", "fsdp"])
def test_a_template_runs_as_it_is(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    try_out(cluster, tmp_path, name)
