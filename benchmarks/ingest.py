"""Metrics per second that the service takes from one reporter, in batches of 100 reports of 10."""

from __future__ import annotations

from benchmarks.cluster import cluster
from benchmarks.in_trial import run

SCRIPT = """
import datetime, json, os, statistics, time, uuid
from determined.common.api import Session

BATCHES, REPORTS, METRICS = 300, 100, 10
stream = str(uuid.uuid4())
now = datetime.datetime.now(datetime.timezone.utc).isoformat()
path = f"/api/v1/trials/{os.environ['DET_TRIAL_ID']}/metrics/batch"
waits = []
with Session(os.environ["DET_MASTER"], os.environ["DET_SESSION_TOKEN"]) as session:
    start = time.perf_counter()
    for seq in range(1, BATCHES + 1):
        reports = [
            {
                "group": "training",
                "steps_completed": (seq - 1) * REPORTS + n,
                "metrics": {f"m{i}": n * 0.1 + i for i in range(METRICS)},
                "end_time": now,
            }
            for n in range(REPORTS)
        ]
        sent = time.perf_counter()
        session.post(path, json={"stream": stream, "seq": seq, "run_id": 1, "reports": reports})
        waits.append(time.perf_counter() - sent)
    seconds = time.perf_counter() - start
print(json.dumps({"rate": BATCHES * REPORTS * METRICS / seconds, "p50": statistics.median(waits)}))
"""


def main() -> None:
    with cluster() as running:
        before = running.cpu_seconds()
        result = run(running, SCRIPT)
        after = running.cpu_seconds()
    cost = sum(after[name] - before[name] for name in ("service", "postgres"))
    print(
        f"one reporter: {result['rate']:,.0f} metrics/s, a batch of 1000 answered in"
        f" {1000 * result['p50']:.1f} ms (median); service and Postgres"
        f" {1000 * cost / 300:.1f} ms of CPU per 1000 metrics"
    )


if __name__ == "__main__":
    main()
