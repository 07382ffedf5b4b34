"""What MLflow's store reads of our own experiments: rows in Postgres, no server."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException

from determined.common.wire import mlflow as wire
from determined_registry.mlflow.tracking import TrackingStore

TRIALS = 30


def fill(url: str) -> None:
    """A search of 30 trials, each with 100 training reports and 10 validations; and a single trial."""
    with psycopg.connect(url, autocommit=True) as conn:
        owner = conn.execute("SELECT id FROM users WHERE username = 'determined'").fetchone()
        for number, searcher in ((1, "random"), (2, "single")):
            config = {
                "searcher": {"name": searcher, "metric": "accuracy", "smaller_is_better": False},
                "checkpoint_storage": {"type": "shared_fs", "host_path": "/nowhere"},
            }
            conn.execute(
                "INSERT INTO experiments (state, name, labels, config, owner_id) "
                "VALUES ('COMPLETED', %s, %s, %s, %s)",
                (f"exp {number}", json.dumps(["mine"]), json.dumps(config), owner[0]),  # type: ignore[index]
            )
        for number in range(1, TRIALS + 2):
            experiment = 1 if number <= TRIALS else 2
            task = f"{experiment}.{number}"
            conn.execute(
                "INSERT INTO tasks (id, kind, owner_id) VALUES (%s, 'TRIAL', %s)",
                (task, owner[0]),  # type: ignore[index]
            )
            hparams = {"lr": number / 1e6, "model": {"layers": number % 3}, "big": number > 15}
            state = "COMPLETED" if number % 5 else "ERROR"
            conn.execute(
                "INSERT INTO trials (experiment_id, request_id, task_id, state, hparams, seed, run_count, "
                "searcher_metric_value) VALUES (%s, %s, %s, %s, %s, 0, 1, %s)",
                (experiment, task, task, state, json.dumps(hparams), number / 100),
            )
        conn.execute(
            """
            INSERT INTO metrics (trial_id, run_id, group_name, steps_completed, end_time, metrics)
            SELECT t, 1, 'training', s, timestamptz '2026-01-01' + s * interval '1 s',
                   jsonb_build_object('loss', 1.0 / s, 'note', 'text')
            FROM generate_series(1, 31) t, generate_series(1, 100) s
            UNION ALL
            SELECT t, 1, 'validation', s * 10, timestamptz '2026-01-01' + s * interval '10 s',
                   jsonb_build_object('accuracy', t / 100.0,
                       'odd', CASE WHEN t = 7 THEN '"NaN"'::jsonb ELSE to_jsonb(t) END)
            FROM generate_series(1, 31) t, generate_series(1, 10) s
            UNION ALL
            SELECT 5, 1, 'curve', CASE s WHEN 100 THEN 1000000 ELSE s END,
                   timestamptz '2026-01-01' + s * interval '1 s', jsonb_build_object('uneven', s)
            FROM generate_series(1, 100) s
            UNION ALL
            SELECT 5, 1, 'heap', 0, timestamptz '2026-01-01' + s * interval '1 s',
                   jsonb_build_object('same step', s)
            FROM generate_series(1, 100) s
            UNION ALL
            SELECT 6, 1, 'disk', s, timestamptz '2026-01-01' + s * interval '1 s',
                   jsonb_build_object('host-1', jsonb_build_object(
                       'disk_iops', s / 2.0, '/', jsonb_build_object('disk_util', 40)))
            FROM generate_series(1, 100) s
            """
        )
        conn.execute(
            """
            INSERT INTO metric_summaries (trial_id, group_name, metric, type, count, finite_count, last,
            last_steps) SELECT DISTINCT ON (m.trial_id, m.group_name, p.key) m.trial_id, m.group_name,
            p.key, 'number', count(*) OVER (PARTITION BY m.trial_id, m.group_name, p.key), 1,
                   p.value, m.steps_completed
            FROM metrics m, jsonb_each(m.metrics) p
            ORDER BY m.trial_id, m.group_name, p.key, m.steps_completed DESC
            """
        )


@pytest.fixture
def store(database_url: str) -> TrackingStore:
    fill(database_url)
    return TrackingStore(database_url.replace("postgresql", "determined+postgresql", 1))


def found(store: TrackingStore, filter_string: str = "", **more: Any) -> list[str]:
    return [
        run.info.run_id
        for run in store.search_runs(["1"], filter_string, ViewType.ACTIVE_ONLY, **more)
    ]


def test_a_search_is_the_parent_of_its_trials(store: TrackingStore) -> None:
    names = {one.name: one for one in store.search_experiments()}
    assert names.keys() == {"exp 1 #1", "exp 2 #2"}
    assert store.get_experiment_by_name("exp 1 #1").experiment_id == "1"  # type: ignore[union-attr]
    assert names["exp 1 #1"].tags["label.mine"] == "true"
    parent = store.get_run("search-1")
    assert parent.data.metrics == {"validation/accuracy": 0.3}
    assert parent.data.params["searcher.name"] == "random"
    children = found(store, "tags.mlflow.parentRunId = 'search-1'", max_results=100)
    assert sorted(map(int, children)) == list(range(1, TRIALS + 1))
    # A single trial has none.
    single = store.search_runs(["2"], "", ViewType.ACTIVE_ONLY)
    assert [run.info.run_id for run in single] == ["31"]
    assert "mlflow.parentRunId" not in single[0].data.tags


def test_the_first_of_the_link_is_the_best_trial(store: TrackingStore, database_url: str) -> None:
    """By its best value, which `det` names; of equals the first."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("UPDATE trials SET searcher_metric_value = 0.9 WHERE id IN (4, 8)")
        conn.execute("UPDATE trials SET searcher_metric_value = NULL WHERE id = 30")
        conn.execute("UPDATE trials SET searcher_metric_value = 'NaN' WHERE id = 29")
        conn.execute(
            "UPDATE trials SET best_validation_id = (SELECT id FROM metrics WHERE trial_id = 4 "
            "AND group_name = 'validation' AND steps_completed = 30) WHERE id = 4"
        )
    page = urlsplit(urlsplit(wire.experiment(1, "accuracy", smaller_is_better=False)).fragment)
    asked = parse_qs(page.query)
    assert asked["orderByAsc"] == ["false"]
    order = [f"{asked['orderByKey'][0]} DESC"]
    listed = found(store, order_by=order, max_results=100)
    assert listed[:3] == ["4", "8", "28"]
    assert listed[-3] == "29" and sorted(listed[-2:]) == ["30", "search-1"]
    assert found(store, "metrics.`best validation/accuracy` > 0.5") == ["8", "4"]
    best = store.get_metric_history("4", "best validation/accuracy")
    assert [(one.value, one.step) for one in best] == [(0.9, 30)]
    assert store.get_run("4").data.metrics["validation/accuracy"] == pytest.approx(0.04)


def test_a_trial_is_a_run(store: TrackingStore) -> None:
    run = store.get_run("16")
    assert run.data.metrics["training/loss"] == pytest.approx(0.01)
    assert run.data.metrics["validation/accuracy"] == pytest.approx(0.16)
    assert "training/note" not in run.data.metrics
    assert run.data.params == {"lr": "1.6e-05", "model.layers": "1", "big": "True"}
    assert run.info.status == "FINISHED"
    assert store.get_run("15").info.status == "FAILED"
    assert run.info.user_id == "determined"
    for nothing in ("99", "search-2", "search-9", "x'; DROP TABLE trials", "1" * 40):
        with pytest.raises(MlflowException, match="does not exist"):
            store.get_run(nothing)


@pytest.mark.parametrize(
    ("filter_string", "wanted"),
    [
        ("metrics.`validation/accuracy` > 0.28", [29, 30]),
        ("metrics.accuracy > 0.28", [29, 30]),
        ("metrics.`validation/odd` != 3 and metrics.`validation/odd` < 5", [1, 2, 4]),
        ("params.lr = '2.8e-05'", [28]),
        ("params.`model.layers` = '0' and params.big = 'False'", [3, 6, 9, 12, 15]),
        ("attributes.status = 'FAILED'", [5, 10, 15, 20, 25, 30]),
        ("attributes.run_id IN ('4', '2')", [2, 4]),
        ("attributes.run_name LIKE 'trial-2%'", [2, *range(20, 30)]),
        ("tags.`determined.trial` = '12'", [12]),
        ("params.lr LIKE '%x%'", []),
        ("metrics.nothing > 0", []),
    ],
)
def test_filters(store: TrackingStore, filter_string: str, wanted: list[int]) -> None:
    assert sorted(int(one) for one in found(store, filter_string)) == wanted


def test_orders_and_pages(store: TrackingStore) -> None:
    best = found(store, order_by=["metrics.`validation/accuracy` DESC"], max_results=3)
    assert best[:1] == ["search-1"] or best == ["30", "29", "28"]
    # Values that are not numbers come after numbers, and missing values come last.
    order = found(store, order_by=["metrics.`validation/odd` ASC"], max_results=100)
    assert order[-2:] == ["7", "search-1"]
    assert order[:3] == ["1", "2", "3"]
    pages: list[str] = []
    token = None
    while True:
        page = store.search_runs(
            ["1"], "", ViewType.ACTIVE_ONLY, 7, ["params.lr ASC"], page_token=token
        )
        pages += [run.info.run_id for run in page]
        token = page.token
        if not token:
            break
    assert len(pages) == len(set(pages)) == TRIALS + 1
    with pytest.raises(MlflowException):
        found(store, "nonsense ! 3")
    with pytest.raises(MlflowException):
        found(store, order_by=["metrics.a", "metrics.a"])


def test_histories(store: TrackingStore) -> None:
    every = store.get_metric_history("3", "training/loss")
    assert [point.step for point in every] == list(range(1, 101))
    assert [point.step for point in store.get_metric_history("3", "loss")] == list(range(1, 101))
    assert store.get_metric_history("3", "nothing") == []
    page = store.get_metric_history("3", "training/loss", max_results=40)
    rest = store.get_metric_history("3", "training/loss", max_results=80, page_token=page.token)
    assert [point.step for point in [*page, *rest]] == list(range(1, 101))
    sample = store.get_metric_history_bulk_interval(["3", "4"], "training/loss", 10, None, None)
    steps = [point.step for point in sample if point.run_id == "3"]
    # The same points as MLflow's store, also for irregular steps.
    places = [*range(1, 91, 10), 100]
    assert steps == places
    sample = store.get_metric_history_bulk_interval(["5"], "curve/uneven", 10, None, None)
    assert [point.value for point in sample] == places
    sample = store.get_metric_history_bulk_interval(["5"], "heap/same step", 10, 0, 5)
    assert [point.value for point in sample] == places
    last = store.get_metric_history_bulk_interval(["5"], "curve/uneven", 1, None, None)
    assert [point.value for point in last] == [100]
    part = store.get_metric_history_bulk_interval(["3"], "training/loss", 1000, 20, 25)
    assert [point.step for point in part] == list(range(20, 26))
    bulk = store.get_metric_history_bulk(["3", "4"], "validation/accuracy", 15)
    assert len(bulk) == 15
    # From the least step that there may be to the greatest.
    ends = store.get_metric_history_bulk_interval(["3"], "training/loss", 10, -(2**63), 2**63 - 1)
    assert [point.step for point in ends] == places


def test_the_profilers_reports_are_system_metrics(store: TrackingStore) -> None:
    known = store.get_run("6").data.metrics
    assert known["system/disk/host-1/disk_iops"] == 50
    assert known["system/disk/host-1///disk_util"] == 40
    every = store.get_metric_history("6", "system/disk/host-1/disk_iops")
    assert [point.value for point in every] == [step / 2 for step in range(1, 101)]
    sample = store.get_metric_history_bulk_interval(
        ["6", "7"], "system/disk/host-1/disk_iops", 5, None, None
    )
    assert [point.step for point in sample] == [1, 21, 41, 61, 100]
    assert store.get_metric_history("6", "system/disk/host-1") == []
    assert store.get_metric_history("6", "system/training/loss") == []


def test_it_changes_nothing_by_itself(store: TrackingStore) -> None:
    with pytest.raises(MlflowException, match="changes nothing"):
        store.delete_run("3")
    with pytest.raises(Exception, match="read-only"):
        store._runs._db.all("DELETE FROM trials RETURNING id")


def test_an_experiment_of_a_project_has_its_place_in_its_name(
    store: TrackingStore, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("INSERT INTO workspaces (name) VALUES ('vision')")
        conn.execute(
            "INSERT INTO projects (workspace_id, name) SELECT max(id), 'cats' FROM workspaces"
        )
        conn.execute(
            "UPDATE experiments SET project_id = (SELECT max(id) FROM projects) WHERE id = 2"
        )
    assert {one.name for one in store.search_experiments()} == {"exp 1 #1", "vision/cats/exp 2 #2"}
    found = store.get_experiment_by_name("vision/cats/exp 2 #2")
    assert found is not None and found.experiment_id == "2"
    assert store.get_experiment("2").name == "vision/cats/exp 2 #2"
    assert store.get_experiment_by_name("exp 2 #2") is None
    (one,) = store.search_experiments(filter_string="name LIKE 'vision/%'")
    assert one.experiment_id == "2"
