"""What an experiment of 1,000, 10,000 and 100,000 trials costs: each route and command that shows it, and
a trial more, with CPU of service, client and Postgres. The trials are rows, as after a search; no process
ran."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from benchmarks.cluster import DET
from benchmarks.database import postgres
from determined.common.wire.search import Attached, Events
from determined_flows.recorded_search import RecordedSearch
from determined_registry.database import migrate
from tests.listening import listening

SIZES = (1_000, 10_000, 100_000)
TOKEN = "agent-token-of-the-benchmark"
CONFIG = """
name: large
entrypoint: python3 train.py
hyperparameters: {a: {type: double, minval: 0, maxval: 1}}
searcher: {name: random, metric: loss, max_length: 8, max_trials: 300000, max_concurrent_trials: 1}
checkpoint_storage: {type: shared_fs, host_path: /tmp}
"""

# Trials that ended, each with a leg, an allocation, a validation, its summary and its events.
FILL = (
    """
    CREATE OR REPLACE TEMPORARY VIEW bulk AS
    SELECT *, substr(request_id, 6)::int AS n FROM trials WHERE request_id LIKE 'bulk-%'
    """,
    """
    INSERT INTO tasks (id, kind, owner_id, flow_run_id)
    SELECT 1 || '.bulk-' || n, 'TRIAL', 1, gen_random_uuid()
    FROM generate_series(%(from)s::int, %(to)s::int) n
    """,
    """
    INSERT INTO trials (experiment_id, request_id, task_id, state, reason, hparams, seed, op_length, op_index,
                        op_complete, closed, run_count, searcher_metric_value, end_time, progress)
    SELECT 1, 'bulk-' || n, 1 || '.bulk-' || n, CASE WHEN n %% 1000 = 0 THEN 'ERROR' ELSE 'COMPLETED' END,
           'completed', jsonb_build_object('a', random()), n, 8, 1, true, true, 1, random(), now(), 1
    FROM generate_series(%(from)s::int, %(to)s::int) n
    """,
    """
    INSERT INTO allocations (id, task_id, experiment_id, trial_id, run_id, state, resource_pool, slots,
                             agent_id, slot_ids, assigned_at, started_at, ended_at, exit_code)
    SELECT task_id || '.1', task_id, 1, id, 1, 'TERMINATED', 'default', 1, 'a1', '[0]', now(), now(),
           now(), 0
    FROM bulk WHERE n BETWEEN %(from)s::int AND %(to)s::int
    """,
    """
    INSERT INTO legs (task_id, run_id, allocation_id, state, reason, start_time, end_time)
    SELECT task_id, 1, task_id || '.1', 'COMPLETED', 'completed', now(), now()
    FROM bulk WHERE n BETWEEN %(from)s::int AND %(to)s::int
    """,
    """
    WITH made AS (
        INSERT INTO metrics (trial_id, run_id, group_name, steps_completed, metrics, end_time)
        SELECT id, 1, 'validation', 8, jsonb_build_object('loss', searcher_metric_value), now()
        FROM bulk WHERE n BETWEEN %(from)s::int AND %(to)s::int
        RETURNING id, trial_id
    )
    UPDATE trials t SET latest_validation_id = m.id, best_validation_id = m.id
    FROM made m WHERE m.trial_id = t.id
    """,
    """
    INSERT INTO metric_summaries (trial_id, group_name, metric, type, count, finite_count, sum, min, max,
                                  last, last_steps)
    SELECT id, 'validation', 'loss', 'number', 1, 1, searcher_metric_value, searcher_metric_value,
           searcher_metric_value, to_jsonb(searcher_metric_value), 8
    FROM bulk WHERE n BETWEEN %(from)s::int AND %(to)s::int
    """,
)


@dataclass
class Service:
    """A service of the benchmark's own, without Prefect."""

    url: str
    database: str
    process: psutil.Process
    env: dict[str, str]
    client: httpx.Client

    def cpu(self) -> tuple[float, float]:
        """CPU seconds so far of the service and of Postgres."""
        return cpu_s(self.process), sum(cpu_s(one) for one in postgres_of(self.database))


def cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def postgres_of(url: str) -> list[psutil.Process]:
    with psycopg.connect(url) as conn:
        row = conn.execute("SHOW data_directory").fetchone()
    assert row is not None
    pid = int((Path(row[0]) / "postmaster.pid").read_text().split()[0])
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


@contextlib.contextmanager
def service() -> Iterator[Service]:
    with postgres() as admin, tempfile.TemporaryDirectory(prefix="det-bench-service-") as folder:
        migrate.upgrade(admin)
        with listening() as listener:
            port = listener.getsockname()[1]
        settings = Path(folder) / "service.json"
        settings.write_text(
            json.dumps(
                {
                    "db_url": admin,
                    "agent_token": TOKEN,
                    "port": port,
                    "data_dir": folder,
                    "default_checkpoint_storage": {"type": "shared_fs", "host_path": "/tmp"},
                }
            )
        )
        env = {**os.environ, "DET_SERVICE_CONFIG": str(settings)}
        process = subprocess.Popen([sys.executable, "-m", "determined_service"], env=env)
        url = f"http://127.0.0.1:{port}"
        try:
            client = httpx.Client(base_url=url, timeout=600)
            for _ in range(600):
                with contextlib.suppress(httpx.HTTPError):
                    if client.get("/ready").is_success:
                        break
                time.sleep(0.1)
            login = {"username": "determined", "password": "", "isHashed": True}
            answer = client.post("/api/v1/auth/login", json=login).raise_for_status()
            client.headers["Authorization"] = f"Bearer {answer.json()['token']}"
            det_env = {
                **env,
                "DET_MASTER": url,
                "DET_USER": "determined",
                "DET_PASS": "",
                "DET_DEBUG_CONFIG_PATH": f"{folder}/config",
            }
            yield Service(url, admin, psutil.Process(process.pid), det_env, client)
        finally:
            process.terminate()
            process.wait(30)


def _fill(running: Service, start: int, end: int) -> None:
    with psycopg.connect(running.database, autocommit=True) as conn:
        for statement in FILL:
            given = {"from": start, "to": end}
            conn.execute(statement, given if "from" in statement and "%(" in statement else None)
        conn.execute("VACUUM ANALYZE")


ROUTES = (
    "/experiments/1",
    "/experiments/1/trials?limit=200",
    "/experiments/1/trials?limit=200&offset=-200",
    "/experiments/1/trials?limit=200&orderBy=ORDER_BY_DESC&sortBy=SORT_BY_BEST_VALIDATION_METRIC",
    "/experiments/1/explanation",
    "/experiments/1/checkpoints",
    "/experiments",
    "/job-queues-v2?resourcePool=default",
    "/trials/900",
)
DRIVEN = 100


class Search:
    """The flow, the agent and the training process of experiment 1, one trial at a time."""

    def __init__(self, running: Service) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.running = running
        self.agent = httpx.Client(base_url=running.url, headers=headers, timeout=60)
        self.session = str(uuid.uuid4())
        self.driver = str(uuid.uuid4())
        self.poll_seq = 0
        self.register()
        found = self._tell("/internal/v1/experiments/1/search/attach", driver=self.driver)
        attached = Attached.from_json(found)
        self.search = RecordedSearch(
            attached.experiment.config, attached.snapshot, attached.snapshot_event_id
        )
        self.state = attached.experiment.state

    def register(self) -> None:
        """The agent again, which is lost after a while without a call."""
        device = {"type": "cpu", "uuid": "", "brand": "benchmark"}
        self._tell(
            "/internal/v1/agents/a1/register",
            session=self.session,
            resource_pool="default",
            host="h",
            version="1",
            slot_type="cpu",
            slots=[{"id": 0, "device": device}],
            allocations=[],
        )

    def _tell(self, path: str, **body: object) -> dict[str, Any]:
        answer = self.agent.post(path, json=body)
        assert answer.is_success, (path, answer.text)
        return dict(answer.json())

    def one_trial(self) -> None:
        """From its placement until the search has its end."""
        launch: list[dict[str, Any]] = []
        while not launch:
            told = self._tell(
                "/internal/v1/agents/a1/work",
                session=self.session,
                running=[],
                timeout_s=5,
                prefect_poll_seq=self.poll_seq,
            )
            self.poll_seq, launch = told["prefect_poll_seq"], told["launch"]
        (spec,) = launch
        allocation, trial = spec["allocation_id"], spec["trial_id"]
        of = f"/internal/v1/allocations/{allocation}"
        self._tell(f"{of}/running", pid=1, host="h")
        mine = {"Authorization": f"Bearer {spec['session_token']}"}
        path = f"/api/v1/trials/{trial}/searcher"
        report = {"group": "validation", "steps_completed": 8, "metrics": {"loss": 0.5}}
        batch = {
            "stream": str(uuid.uuid4()),
            "seq": 1,
            "run_id": spec["run_id"],
            "reports": [report],
        }
        self.agent.post(f"/api/v1/trials/{trial}/metrics/batch", json=batch, headers=mine)
        done = {"op": {"length": 8}, "searcherMetric": 0.5}
        self.agent.post(f"{path}/completed_operation", json=done, headers=mine)
        self._events()
        self._tell(f"{of}/exit", exit_code=0, kind="exited")
        self._events()

    def _events(self) -> None:
        params = {
            "driver": self.driver,
            "after": self.search.last_event_id,
            "timeout_s": 5,
            "state": self.state,
        }
        answer = self.agent.get("/internal/v1/experiments/1/search/events", params=params)
        found = Events.from_json(answer.raise_for_status().json())
        operations = self.search.handle(found.events)
        commit = self.search.commit(uuid.UUID(self.driver), operations)
        self._tell("/internal/v1/experiments/1/search/commit", **commit.to_json())


COMMANDS = (
    ("e", "describe", "1"),
    ("e", "describe", "1", "--json"),
    ("e", "list-trials", "1"),
    ("e", "list-trials", "1", "--json"),
    ("e", "list"),
    ("e", "list-checkpoints", "1"),
    ("t", "describe", "900"),
    ("t", "logs", "900"),
    ("job", "list"),
)


def _measured(running: Service, what: str, run: object) -> None:
    before = running.cpu()
    children = os.times()
    began = time.perf_counter()
    length = run() if callable(run) else 0
    wall = time.perf_counter() - began
    after, spent = running.cpu(), os.times()
    client = (
        spent.children_user
        + spent.children_system
        - children.children_user
        - children.children_system
    )
    print(
        f"  {1000 * wall:8.0f} ms wall; CPU ms: service {1000 * (after[0] - before[0]):6.0f}, Postgres "
        f"{1000 * (after[1] - before[1]):6.0f}, client {1000 * client:6.0f}; {length:>10,} bytes  {what}",
        flush=True,
    )


def main() -> None:
    with service() as running:
        answer = running.client.post("/api/v1/experiments", json={"config": CONFIG})
        assert answer.is_success, answer.text
        search = Search(running)
        have = 0
        for size in SIZES:
            began = time.perf_counter()
            _fill(running, have + 1, size)
            have = size
            print(f"{size:,} trials (rows made in {time.perf_counter() - began:.0f} s)", flush=True)
            search.register()
            before = running.cpu()
            for _ in range(DRIVEN):
                search.one_trial()
            after = running.cpu()
            print(
                f"  a trial more: CPU ms: service {1000 * (after[0] - before[0]) / DRIVEN:.1f}, "
                f"Postgres {1000 * (after[1] - before[1]) / DRIVEN:.1f}"
            )
            for route in ROUTES:

                def get(route: str = route) -> int:
                    found = running.client.get(f"/api/v1{route}")
                    if not found.is_success:
                        print(found.status_code, found.text[:200])
                    return len(found.content)

                get() if size == SIZES[0] else None
                _measured(running, f"GET {route}", get)
            for command in COMMANDS:

                def call(command: tuple[str, ...] = command) -> int:
                    done = subprocess.run(
                        [*DET, *command], env=running.env, capture_output=True, text=True
                    )
                    if done.returncode:
                        print(done.stderr[-300:])
                    return len(done.stdout)

                _measured(running, f"det {' '.join(command)}", call)


if __name__ == "__main__":
    main()
