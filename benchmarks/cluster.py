"""A local cluster of the benchmark's own, and what its processes cost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from determined.common import local_cluster

DET = [sys.executable, "-m", "determined.cli"]


@dataclass
class Cluster:
    """A running cluster with its data in ``data_dir``."""

    data_dir: Path
    env: dict[str, str]

    def det(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs `det` against this cluster; the completed process with its output."""
        return subprocess.run(
            [*DET, *args], env=self.env, check=check, capture_output=True, text=True
        )

    def processes(self) -> dict[str, list[psutil.Process]]:
        """The living processes by component, each with all its descendants."""
        found: dict[str, list[psutil.Process]] = {}
        seen: set[int] = set()
        for path in sorted((self.data_dir / "run").glob("*.json")):
            try:
                root = psutil.Process(json.loads(path.read_text())["pid"])
                tree = [root, *root.children(recursive=True)]
            except (psutil.NoSuchProcess, ValueError):
                continue
            found[path.stem] = [process for process in tree if process.pid not in seen]
            seen.update(process.pid for process in tree)
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds so far by component; reaped children are counted."""
        totals = {}
        for name, tree in self.processes().items():
            total = 0.0
            for process in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total += times.user + times.system
                    total += times.children_user + times.children_system
            totals[name] = total
        return totals

    def settle(self, timeout: float = 60.0) -> None:
        """Waits until its processes have little to do: fork servers import for a while."""
        deadline = time.monotonic() + timeout
        before = sum(self.cpu_seconds().values())
        while time.monotonic() < deadline:
            time.sleep(2.0)
            now = sum(self.cpu_seconds().values())
            if now - before < 0.3:
                return
            before = now


@contextlib.contextmanager
def data_dir() -> Iterator[dict[str, str]]:
    """An environment with its own empty data directory; the cluster in it is ended at the end."""
    with tempfile.TemporaryDirectory(prefix="determined-bench-") as folder:
        env = {
            **os.environ,
            "DET_DATA_DIR": f"{folder}/data",
            "DET_DEBUG_CONFIG_PATH": f"{folder}/config",
        }
        env.pop("DET_MASTER", None)
        # One that is told to end (`timeout`, say) must not leave its cluster behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            yield env
        finally:
            subprocess.run([*DET, "deploy", "local", "cluster-down"], env=env, capture_output=True)


def up(env: dict[str, str], *options: str) -> float:
    """Seconds that `det deploy local cluster-up` took."""
    start = time.perf_counter()
    done = subprocess.run(
        [*DET, "deploy", "local", "cluster-up", *options], env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - start


@contextlib.contextmanager
def cluster(*options: str) -> Iterator[Cluster]:
    """A cluster for one benchmark; ``options`` of `cluster-up`."""
    with data_dir() as env:
        up(env, *options)
        folder = Path(env["DET_DATA_DIR"])
        assert local_cluster.read(folder) is not None
        yield Cluster(folder, env)
