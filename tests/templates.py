"""Templates of `det init`, tried like a newcomer: the test runs the printed commands, in order."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S


def make(cluster: LocalCluster, folder: Path, name: str) -> tuple[list[str], list[str]]:
    """Makes the folder of the template in ``folder``; the two commands that `det init` names: the one off the
    cluster, and the next one."""
    said = cluster.det("init", name, cwd=folder).stderr.splitlines()
    assert said[0].startswith(f"wrote {name}: ")
    assert "not installed here" not in said[1]
    alone, following = said[1:]
    return (
        shlex.split(alone.removeprefix("off the cluster: ")),
        shlex.split(following.removeprefix("next: ")),
    )


def try_out(cluster: LocalCluster, folder: Path, name: str) -> None:
    """Runs the template off the cluster and on it, to the end."""
    alone, following = make(cluster, folder, name)
    assert (alone[0], following[0]) == ("python", "det")
    env = {key: value for key, value in os.environ.items() if not key.startswith("DET_")}
    home = str(folder / "home")
    done = subprocess.run(
        [sys.executable, *alone[1:]],
        env={**env, "HOME": home, "XDG_DATA_HOME": home, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "validation metrics after" in done.stderr
    assert list((folder / "home").rglob("metadata.json")), "no checkpoint is stored"
    # It ends with 0 only if the experiment is COMPLETED, and prints the best trial.
    best = cluster.det(*following[1:], cwd=folder).stdout
    assert "checkpoint" in best.lower(), best
