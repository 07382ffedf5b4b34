"""The service's access check before MLflow's pages: who is admitted, which features are closed, and when
MLflow's server runs."""

from __future__ import annotations

import os

import httpx
import psycopg
import pytest

from determined_registry.database import mlflow_role
from tests.integration.mlflow.conftest import Cluster

PAGE = {"Accept": "text/html"}
OWN = {"Sec-Fetch-Site": "same-origin"}


def test_without_a_login_there_is_the_login_page(cluster: Cluster) -> None:
    with cluster.browser() as browser:
        page = browser.get("/mlflow/", headers=PAGE)
        assert page.status_code == 401 and "<form" in page.text
        refused = browser.get("/mlflow/api/2.0/mlflow/experiments/search")
        assert refused.status_code == 401
        assert "MLFLOW_TRACKING_TOKEN" in refused.json()["message"]
        assert "det dev auth-token" in refused.json()["message"]
        wrong = browser.post(
            "/mlflow/", data={"username": "determined", "password": "x"}, headers=OWN
        )
        assert wrong.status_code == 401 and "wrong user name" in wrong.text
        right = browser.post(
            "/mlflow/", data={"username": "determined", "password": ""}, headers=OWN
        )
        assert right.status_code == 303 and right.headers["location"] == "/mlflow/"
        cookie = right.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Path=/mlflow" in cookie
        assert "omain" not in cookie
        assert "<div id=" in browser.get("/mlflow/", headers=PAGE).text
        # The cookie opens only MLflow's pages.
        assert browser.get("/api/v1/me").status_code == 404
        assert browser.get("/api/v1/me", headers={"Host": "localhost"}).status_code == 401
        search = "/mlflow/ajax-api/2.0/mlflow/runs/search"
        body = {"experiment_ids": ["1"]}
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert browser.post(search, json=body, headers=foreign).status_code == 403
        assert browser.post(search, json=body).status_code == 403
        own = {"Origin": f"http://{browser.headers['host']}"}
        assert browser.post(search, json=body, headers=own).status_code == 200


def test_pages_have_separate_host_names(cluster: Cluster) -> None:
    """Browsers are led there; programs with a token stay."""
    port = httpx.URL(cluster.url).port
    with httpx.Client(base_url=cluster.url, timeout=180) as visitor:
        for host in ("127.0.0.1", "localhost", "other.localhost"):
            here = {"Host": f"{host}:{port}", **PAGE}
            led = visitor.get("/mlflow/models?a=%2F1&b", headers=here)
            if host == "other.localhost":  # a task's
                assert led.status_code == 401 and "/task-login" in led.text
                continue
            assert led.status_code == 302
            own = f"http://mlflow.localhost:{port}/mlflow/"
            assert led.headers["location"] == f"{own}models?a=%2F1&b"
            form = {"username": "determined", "password": ""}
            posted = visitor.post("/mlflow/", data=form, headers=here)
            assert (posted.status_code, posted.headers["location"]) == (303, own)
            assert "set-cookie" not in posted.headers
        # Where no such name leads here, they stay.
        stays = visitor.get("/mlflow/", headers={"Host": "det.example.com", **PAGE})
        assert stays.status_code == 401 and "<form" in stays.text
    with cluster.api() as api:
        search = "/mlflow/api/2.0/mlflow/experiments/search?max_results=1"
        assert api.get(search).status_code == 200
        assert api.get("/mlflow/", headers=PAGE).status_code == 200
    with cluster.browser() as browser:
        assert browser.get("/").headers["location"] == "/mlflow/"
        for path in ("/api/v1/master", "/docs", "/task-login?task=x", "/proxy/x/", "/mlflowx"):
            assert browser.get(path).status_code == 404, path


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "ajax-api/3.0/mlflow/assistant/config"),
        ("POST", "ajax-api/3.0/mlflow/assistant/message"),
        ("POST", "ajax-api/2.0/mlflow/gateway-proxy"),
        ("POST", "gateway/mlflow/v1/chat/completions"),
        ("GET", "ajax-api/3.0/jobs/1"),
        ("POST", "ajax-api/3.0/mlflow/jobs/cancel/1"),
        ("POST", "api/2.0/mlflow/webhooks"),
        ("POST", "ajax-api/3.0/mlflow/ui-telemetry"),
        ("GET", "static-files/../ajax-api/3.0/mlflow/assistant/sessions/1/stream"),
        ("GET", "ajax-api/3.0/mlflow/%61ssistant/sessions/1/stream"),
    ],
)
def test_routes_that_run_commands_or_reach_other_hosts_are_closed(
    cluster: Cluster, method: str, path: str
) -> None:
    with cluster.api() as api:
        answer = api.request(method, f"/mlflow/{path}", json={} if method == "POST" else None)
    assert answer.status_code in (403, 404), answer.text
    assert answer.status_code == 404 or "closed" in answer.text


def test_runs_of_others_are_their_own(cluster: Cluster) -> None:
    with cluster.api() as api:
        made = api.post("/mlflow/api/2.0/mlflow/experiments/create", json={"name": "of mine"})
        experiment = made.json()["experiment_id"]
        run = api.post(
            "/mlflow/api/2.0/mlflow/runs/create", json={"experiment_id": experiment}
        ).json()["run"]["info"]["run_id"]
    with cluster.api(cluster.log_in("admin")) as admin:
        user = {"user": {"username": "mallory"}, "password": ""}
        admin.post("/api/v1/users", json=user).raise_for_status()
    with cluster.api(cluster.log_in("mallory")) as other:
        assert other.get(f"/mlflow/api/2.0/mlflow/runs/get?run_id={run}").status_code == 200
        for path, body in {
            "runs/create": {"experiment_id": experiment},
            "runs/set-tag": {"run_id": run, "key": "a", "value": "b"},
            "runs/log-metric": {"run_id": run, "key": "a", "value": 1, "timestamp": 1, "step": 1},
            "runs/log-batch": {"run_id": run, "tags": [{"key": "a", "value": "b"}]},
            "runs/delete": {"run_id": run},
            "experiments/set-experiment-tag": {
                "experiment_id": experiment,
                "key": "a",
                "value": "b",
            },
        }.items():
            answer = other.post(f"/mlflow/api/2.0/mlflow/{path}", json=body)
            assert answer.status_code == 403, (path, answer.text)
            assert "only its owner determined or an administrator may" in answer.text, path
        put = other.put(f"/mlflow/api/2.0/mlflow-artifacts/artifacts/trials/{run}/x", content=b"x")
        assert put.status_code == 403, put.text
    with cluster.api() as api:
        found = api.get(f"/mlflow/api/2.0/mlflow/runs/get?run_id={run}").json()["run"]
        assert "metrics" not in found["data"]
        assert "a" not in {tag["key"] for tag in found["data"]["tags"]}


def test_the_server_is_started_again_when_it_was_killed(cluster: Cluster) -> None:
    path = "/mlflow/api/2.0/mlflow/experiments/search"
    with cluster.api() as api:
        assert api.get(path, params={"max_results": 1}).status_code == 200
        pid = cluster.server_pid()
        os.kill(pid, 9)
        # At once, while the service may not have seen it yet.
        answer = api.post(path, json={"max_results": 1})
        assert answer.status_code == 200, answer.text
        assert cluster.server_pid() not in (0, pid)


def test_its_role_only_reads_its_tables(cluster: Cluster) -> None:
    """With the session's limits removed, as a person with the role's password could do."""
    with psycopg.connect(cluster.reader_url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        tables = [
            str(row[0])
            for row in connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            )
        ]
        readable = set()
        for table in tables:
            for statement in (
                f"SELECT * FROM {table} LIMIT 0",
                f"DELETE FROM {table}",
                f"TRUNCATE {table}",
                f"INSERT INTO {table} DEFAULT VALUES",
            ):
                try:
                    connection.execute(statement)
                except psycopg.errors.InsufficientPrivilege:
                    continue
                assert statement.startswith("SELECT"), statement
                readable.add(table)
        assert readable == set(mlflow_role.READS)
        connection.execute("SELECT id, username FROM users")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT password_hash FROM users")
        connection.execute("SELECT id, name FROM workspaces")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT checkpoint_storage FROM workspaces")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE mine (a int)")


def test_a_batch_that_is_sent_twice_is_stored_once(cluster: Cluster) -> None:
    with cluster.api() as api:
        made = api.post("/mlflow/api/2.0/mlflow/experiments/create", json={"name": "twice"})
        run = api.post(
            "/mlflow/api/2.0/mlflow/runs/create",
            json={"experiment_id": made.json()["experiment_id"]},
        ).json()["run"]["info"]["run_id"]
        points = [
            {"key": "a", "value": number, "timestamp": 1_700_000_000_000, "step": 0}
            for number in range(3)
        ]
        for _ in range(2):
            answer = api.post(
                "/mlflow/api/2.0/mlflow/runs/log-batch", json={"run_id": run, "metrics": points}
            )
            assert answer.status_code == 200, answer.text
        history = api.get(
            "/mlflow/api/2.0/mlflow/metrics/get-history", params={"run_id": run, "metric_key": "a"}
        ).json()
        assert [point["value"] for point in history["metrics"]] == [0, 1, 2]


def test_it_speaks_to_the_service_alone_and_starts_nothing(cluster: Cluster) -> None:
    """Its telemetry, job engine, gateway and assistant would: Python says of each connection and process."""
    with cluster.api() as api:
        made = api.post("/mlflow/api/2.0/mlflow/experiments/create", json={"name": "watched"})
        assert made.status_code == 200, made.text
    lines = (cluster.folder / "watched.txt").read_text().splitlines()
    service = f"127.0.0.1', {httpx.URL(cluster.url).port}"
    asked = [line for line in lines if line.startswith("socket.") and service in line]
    # What Python's `platform` and `ctypes` ask about the machine.
    harmless = [line for line in lines if "('uname'," in line or "('/sbin/ldconfig'," in line]
    assert asked  # to make the experiment
    assert set(lines) - set(asked) - set(harmless) == set()
