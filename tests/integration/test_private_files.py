"""Another user of the machine reads no file of a local cluster."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.timeout(300)

CONFIG = """
name: private
entrypoint: python3 train.py
hyperparameters: {}
searcher: {name: single, metric: loss, max_length: 1}
"""
TRAIN = """
import determined as det
with det.core.init() as context:
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("mine")
    context.train.report_validation_metrics(1, {"loss": 1.0})
"""


def open_to_others(folder: Path) -> Iterator[Path]:
    """The files that another user can list, read or write below ``folder``, if the way to it is open."""
    mode = folder.stat().st_mode
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        yield folder
    if not mode & stat.S_IXOTH:
        return
    for entry in os.scandir(folder):
        if entry.is_symlink():
            continue
        if entry.is_dir():
            yield from open_to_others(Path(entry.path))
        elif entry.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            yield Path(entry.path)


def test_other_accounts_cannot_read_a_clusters_files(cluster: LocalCluster, tmp_path: Path) -> None:
    experiment = cluster.submit(tmp_path, CONFIG, train_py=TRAIN)
    assert cluster.wait(experiment) == "COMPLETED"
    weights = list((cluster.data_dir / "checkpoints").rglob("weights"))
    assert weights
    assert list(open_to_others(cluster.data_dir)) == []
    # Not the folders alone: the files are closed, too.
    for file in (*weights, cluster.data_dir / "cluster.json", *cluster.data_dir.glob("logs/*")):
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_tries_to_read_it(cluster: LocalCluster) -> None:
    nobody = pwd.getpwnam("nobody")
    for name in ("", "checkpoints", "cluster.json", "logs/service.log", "agent.json", "agent"):
        path = cluster.data_dir / name
        assert path.exists()
        reader = ["ls" if path.is_dir() else "cat", str(path)]
        done = subprocess.run(
            reader,
            user=nobody.pw_uid,
            group=nobody.pw_gid,
            extra_groups=[],
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0, name
        assert "Permission denied" in done.stderr, name
