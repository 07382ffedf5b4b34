"""``python -m benchmarks.mlflow.writing``: `log_batch` of 1,000 metrics through MLflow's client.

Against our service and against `mlflow server` on another database of the same Postgres, in turns, from one
process; medians of the rounds. The client's own work is in both times. Nothing is asserted.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.mlflow.servers import TrackingServer, both

METRICS, KEYS, REQUESTS, ROUNDS = 1000, 10, 10, 5


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="det-bench-mlflow-") as folder,
        both(Path(folder)) as (ours, theirs),
    ):
        # MLflow's own server looks at no token.
        os.environ.update(ours.environment)
        compare(ours, theirs)


def compare(ours: TrackingServer, theirs: TrackingServer) -> None:
    """Prints metrics per second and what 1,000 metrics cost each server."""
    from mlflow import MlflowClient

    sides = {"ours": ours, "MLflow's": theirs}
    clients = {name: MlflowClient(server.uri) for name, server in sides.items()}
    experiments = {name: client.create_experiment("writing") for name, client in clients.items()}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    costs: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(ROUNDS + 1):
        for name, server in sides.items():
            run = clients[name].create_run(experiments[name]).info.run_id
            spent = server.cpu_seconds()
            seconds = _log(clients[name], run)
            if turn:  # the first fills caches and makes connections
                metrics = REQUESTS * METRICS
                rates[name].append(metrics / seconds)
                costs[name].append((server.cpu_seconds() - spent) / metrics * 1e6)
            kept = clients[name].get_run(run).data.metrics["metric_0"]
            assert kept == REQUESTS * METRICS / KEYS - 1, kept
    print("| server | metrics/s, median | least to most | server's CPU ms per 1,000 |")
    print("|---|---|---|---|")
    for name, found in rates.items():
        middle, cost = statistics.median(found), statistics.median(costs[name])
        print(f"| {name} | {middle:,.0f} | {min(found):,.0f} to {max(found):,.0f} | {cost:.1f} |")
    ratio, cheaper = (
        statistics.median(one) / statistics.median(other)
        for one, other in (
            (rates["ours"], rates["MLflow's"]),
            (costs["MLflow's"], costs["ours"]),
        )
    )
    print(f"\nratio: {ratio:.1f} times the metrics/s, {cheaper:.1f} times less CPU")


def _log(client: object, run: str) -> float:
    """Seconds that all requests took, one after the other."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    assert isinstance(client, MlflowClient)
    steps = METRICS // KEYS
    batches = [
        [
            Metric(f"metric_{key}", float(step), 1_700_000_000_000 + step, step)
            for step in range(request * steps, (request + 1) * steps)
            for key in range(KEYS)
        ]
        for request in range(REQUESTS)
    ]
    begun = time.perf_counter()
    for batch in batches:
        client.log_batch(run, batch)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
