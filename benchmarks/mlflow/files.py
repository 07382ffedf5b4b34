"""``python -m benchmarks.mlflow.files``: an artifact of 20 MB up and down through MLflow's client.

Against our service and against `mlflow server`, both with artifacts in a directory of this machine, in turns
from one process: the medians of the times and of the rounds' ratios, and the mean CPU of the servers. Each
file has other bytes, and what comes back is compared. The client's own work is in both times. No time is
asserted.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.mlflow.servers import TrackingServer, both

SIZE, ROUNDS = 20_000_000, 15
WAYS = ("up", "down")


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="det-bench-mlflow-") as folder,
        both(Path(folder)) as (ours, theirs),
    ):
        # MLflow's own server looks at no token.
        os.environ.update(ours.environment)
        os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
        compare(ours, theirs, Path(folder))


def compare(ours: TrackingServer, theirs: TrackingServer, folder: Path) -> None:
    """Prints what a file takes up and down, and what it costs each server."""
    sides = {"ours": ours, "MLflow's": theirs}
    took: dict[tuple[str, str], list[float]] = {(way, name): [] for way in WAYS for name in sides}
    cost: dict[tuple[str, str], list[float]] = {(way, name): [] for way in WAYS for name in sides}
    users = {name: _User(server) for name, server in sides.items()}
    for turn in range(ROUNDS + 1):
        sent = folder / f"model-{turn}.bin"
        sent.write_bytes(os.urandom(SIZE))
        # Who is first changes from round to round.
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            for way, (seconds, cpu) in users[name].pass_through(sent, folder / "got").items():
                if turn:  # the first fills caches and makes connections
                    took[way, name].append(seconds)
                    cost[way, name].append(cpu)
        sent.unlink()
    print("| 20 MB | ours | MLflow's | ratio | CPU of our servers | of MLflow's | ratio |")
    print("|---|---|---|---|---|---|---|")
    for way in WAYS:
        pairs = zip(took[way, "ours"], took[way, "MLflow's"], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        times = [f"{statistics.median(took[way, name]) * 1000:.0f} ms" for name in sides]
        spent = [statistics.mean(cost[way, name]) * 1000 for name in sides]
        cells = [way, *times, f"{ratio:.2f}", *(f"{one:.0f} ms" for one in spent)]
        print(f"| {' | '.join(cells)} | {spent[0] / spent[1]:.2f} |")


class _User:
    """Who sends files to a run of the server's, and fetches them."""

    def __init__(self, server: TrackingServer) -> None:
        from mlflow import MlflowClient

        self._server = server
        self._client = MlflowClient(server.uri)
        experiment = self._client.create_experiment("files")
        self._run = self._client.create_run(experiment).info.run_id

    def pass_through(self, file: Path, target: Path) -> dict[str, tuple[float, float]]:
        """Seconds, and CPU seconds of the server, by the way that the file went."""
        target.mkdir()
        calls: list[Callable[[], object]] = [
            lambda: self._client.log_artifact(self._run, str(file)),
            lambda: self._client.download_artifacts(self._run, file.name, str(target)),
        ]
        found = {}
        for way, call in zip(WAYS, calls, strict=True):
            spent, begun = self._server.cpu_seconds(), time.perf_counter()
            call()
            seconds = time.perf_counter() - begun
            found[way] = seconds, self._server.cpu_seconds() - spent
        assert filecmp.cmp(file, target / file.name, shallow=False), "other bytes came back"
        shutil.rmtree(target)
        return found


if __name__ == "__main__":
    main()
