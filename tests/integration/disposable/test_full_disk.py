"""A local cluster on a disk that fills up: the messages to the user, and that the cluster goes on once space
is free."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster
from tests.memory_folder import memory_folder
from tests.waiting import until

MIB = 2**20
CONFIG = """
name: large
entrypoint: python3 train.py
searcher: {name: single, metric: x, max_length: 1}
"""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """One whose data directory is a separate file system of 600 MiB."""
    with memory_folder("determined-disk-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=600m,mode=711", "tmpfs", str(data)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("needs a user who may mount")
        made = LocalCluster.in_directory(Path(folder))
        try:
            yield made
        finally:
            made.end()
            subprocess.run(["umount", "--lazy", str(data)], check=True)


def fill(folder: Path, left: int) -> Path:
    """A file that leaves that number of bytes."""
    path = folder / "filling"
    with path.open("ab") as file:
        wanted = path.stat().st_size + shutil.disk_usage(folder).free - left
        os.posix_fallocate(file.fileno(), 0, wanted)
    return path


def test_a_disk_that_fills_up_is_said_to_be_full(cluster: LocalCluster, tmp_path: Path) -> None:
    data = cluster.data_dir
    filling = fill(data, 9 * MIB)
    refused = cluster.det("deploy", "local", "cluster-up", check=False)
    assert refused.returncode == 1
    words = " ".join(refused.stderr.split())
    assert f"only 9 MiB are free at {data}, and a new cluster needs 200 MiB" in words
    filling.unlink()

    cluster.up()
    fill(data, 9 * MIB)
    words = " ".join(cluster.up().stderr.split())
    assert f"only 9 MiB are free at {data}, where the database" in words

    # The sender of data that does not fit gets the reason, whether Postgres refuses it or has to stop.
    fill(data, MIB)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/train.py").write_text("")
    (tmp_path / "model/weights").write_bytes(os.urandom(60 * MIB))
    (tmp_path / "config.yaml").write_text(CONFIG)
    create = ("experiment", "create", str(tmp_path / "config.yaml"), str(tmp_path / "model"))
    failed = cluster.det(*create, "--paused", check=False)
    assert failed.returncode == 1
    assert "free some space there" in failed.stderr, failed.stderr
    assert "full" in failed.stderr

    filling.unlink()
    cluster.up()
    until(
        "the cluster to take work",
        lambda: cluster.det(*create, "--paused", check=False).returncode == 0,
    )
