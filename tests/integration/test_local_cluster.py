"""The local cluster's processes: started, found again, killed, stopped. Postgres and Prefect are real; tests
of processes in general use small programs instead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from determined_deployments.local import (
    ClusterOptions,
    ComponentFailed,
    cluster_down,
    cluster_status,
    cluster_up,
    daemon,
    databases,
    read_logs,
    up,
)
from determined_deployments.local.component import Component
from determined_deployments.local.layout import Layout
from determined_deployments.local.report import Silent
from determined_deployments.local.state import ClusterState
from determined_registry.database import migrate
from tests.integration.local_layout import Notes, marker, plain_layout
from tests.waiting import TIMEOUT_S, until

POSTGRES = ("postgres",)


@pytest.fixture
def outside():
    """A folder that Postgres' user can enter; another pytest session would close pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="det-cluster-") as folder:
        yield Path(folder)


@pytest.fixture
def data(outside: Path):
    folder = outside / "data"
    yield folder
    cluster_down(folder)


def pid_of(data: Path, name: str) -> int:
    process = daemon.running(Layout.of(data), name)
    assert process is not None
    return process.pid


def kill(data: Path, name: str) -> None:
    process = psutil.Process(pid_of(data, name))
    process.kill()
    process.wait(TIMEOUT_S)


def left_of(state: ClusterState) -> list[psutil.Process]:
    return [p for p in daemon.members(state.marker) if not daemon.is_gone(p)]


def query(state: ClusterState, statement: str):
    with psycopg.connect(databases.url(state, "determined"), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_data_survives_down_and_up(data):
    state = cluster_up(data, components=POSTGRES)
    query(state, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert query(state, "SHOW fsync") == [("on",)]
    assert cluster_down(data)
    assert left_of(state) == []
    again = cluster_up(data, components=POSTGRES)
    assert again == state
    assert query(again, "SELECT answer FROM kept") == [(42,)]


def test_password_is_needed(data):
    state = cluster_up(data, components=POSTGRES)
    stranger = state.model_copy(update={"db_passwords": {"determined": "guess"}})
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        query(stranger, "SELECT 1")


RIGHTS = """
    SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls
    FROM pg_roles WHERE rolname = current_user
"""


def test_the_service_and_prefect_own_their_databases_and_nothing_else(data):
    state = cluster_up(data, components=POSTGRES)
    for name in databases.NAMES:
        with psycopg.connect(databases.url(state, name)) as connection:
            assert connection.execute(RIGHTS).fetchall() == [(False,)]
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT pg_read_file('postgresql.conf')")
            connection.rollback()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("COPY (SELECT 1) TO PROGRAM 'cat'")
    reader = databases.mlflow_url(state)
    with psycopg.connect(reader) as connection:
        assert connection.execute(RIGHTS).fetchall() == [(False,)]
        assert connection.execute("SHOW transaction_read_only").fetchall() == [("on",)]
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(databases.on_server(reader, "prefect"))
    other = databases.on_server(databases.url(state, "determined"), "prefect")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(other)


def prefect_client(state: ClusterState) -> httpx.Client:
    auth = httpx.BasicAuth(*state.prefect_auth.split(":"))
    url = state.prefect_api_url
    return httpx.Client(base_url=url, auth=auth, trust_env=False, timeout=TIMEOUT_S)


def set_on_prefects_page(state: ClusterState) -> None:
    """A schedule that rests, limits and an automation, by the requests of Prefect's page."""
    with prefect_client(state) as client:

        def make(path: str, body: object) -> Any:
            return client.post(path, json=body).raise_for_status().json()

        flow = make("/flows/", {"name": "mine"})["id"]
        given = {"name": "mine", "flow_id": flow, "concurrency_limit": 2}
        mine = f"/deployments/{make('/deployments/', given)['id']}"
        hourly = {"schedule": {"cron": "0 * * * *", "timezone": "UTC"}, "active": True}
        (made,) = make(f"{mine}/schedules", [hourly])
        rests = client.patch(f"{mine}/schedules/{made['id']}", json={"active": False})
        rests.raise_for_status()
        make("/v2/concurrency_limits/", {"name": "gpu", "limit": 3, "active": True})
        make("/concurrency_limits/", {"tag": "training", "concurrency_limit": 1})
        trigger = {
            "type": "event",
            "posture": "Reactive",
            "expect": ["data.arrived"],
            "threshold": 1,
            "within": 0,
        }
        action = {"type": "do-nothing"}
        make("/automations/", {"name": "at new data", "trigger": trigger, "actions": [action]})


def on_prefects_page(state: ClusterState) -> dict[str, Any]:
    with prefect_client(state) as client:

        def found(path: str) -> Any:
            return client.post(f"{path}/filter", json={}).raise_for_status().json()

        (deployment,) = found("/deployments")
        return {
            "schedules": [
                (one["schedule"]["cron"], one["active"]) for one in deployment["schedules"]
            ],
            "deployment": deployment["global_concurrency_limit"]["limit"],
            "limits": {
                one["name"]: one["limit"]
                for one in found("/v2/concurrency_limits")
                if not one["name"].startswith("deployment:")
            },
            "tags": {one["tag"]: one["concurrency_limit"] for one in found("/concurrency_limits")},
            "automations": [(one["name"], one["enabled"]) for one in found("/automations")],
        }


def test_a_cluster_of_the_release_before_is_moved(data):
    """There everything belonged to the superuser, and the service and Prefect ran as that role. What people
    have set on Prefect's page is in force afterwards, once."""
    both = ("postgres", "prefect")
    state = cluster_up(data, components=both)
    set_on_prefects_page(state)
    superuser = databases.embedded_url(state, "determined")
    migrate.upgrade(superuser, "0005")
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute("INSERT INTO users (username) VALUES ('kept')")
    cluster_down(data)
    state = cluster_up(data, components=POSTGRES)
    for name in databases.NAMES:
        with psycopg.connect(databases.embedded_url(state, name), autocommit=True) as connection:
            owner = databases.OWNERS[name]
            connection.execute(f"REASSIGN OWNED BY {owner} TO {databases.ROLE}")
            connection.execute(f"ALTER DATABASE {name} OWNER TO {databases.ROLE}")
            connection.execute(f"GRANT CONNECT ON DATABASE {name} TO PUBLIC")
            connection.execute(f"DROP OWNED BY {owner}")
            connection.execute(f"DROP ROLE {owner}")
    cluster_down(data)
    layout = Layout.of(data)
    record = json.loads(layout.state.read_text())
    del record["db_passwords"], record["mlflow_db_password"]
    layout.state.write_text(json.dumps(record))

    state = cluster_up(data, components=both)
    # Prefect answers, with the tables that it had, and the next release's migrations run.
    assert on_prefects_page(state) == {
        "schedules": [("0 * * * *", False)],
        "deployment": 2,
        "limits": {"gpu": 3, "tag:training": 1},
        "tags": {"training": 1},
        "automations": [("at new data", True)],
    }
    url = databases.url(state, "determined")
    migrate.upgrade(url)
    assert query(state, "SELECT username FROM users") == [("kept",)]
    for name in databases.NAMES:
        with psycopg.connect(databases.embedded_url(state, name)) as connection:
            left = connection.execute(databases._STRAYS, [databases.OWNERS[name]]).fetchall()
            assert left == []
            kinds = "SELECT count(*) FROM pg_class WHERE relowner = %s::regrole AND relkind = 'r'"
            tables = connection.execute(kinds, [databases.OWNERS[name]]).fetchone()
            assert tables is not None
            assert tables[0] > 15
    assert cluster_up(data, components=both) == state


def test_second_up_starts_nothing(data):
    cluster_up(data, components=POSTGRES)
    before, notes = pid_of(data, "postgres"), Notes()
    cluster_up(data, components=POSTGRES, reporter=notes)
    assert pid_of(data, "postgres") == before
    assert notes.lines == ["postgres already running"]


def test_killed_postgres_comes_back_with_all_commits(data):
    state = cluster_up(data, components=POSTGRES)
    query(state, "CREATE TABLE kept AS SELECT 42 AS answer")
    kill(data, "postgres")
    notes = Notes()
    state = cluster_up(data, components=POSTGRES, reporter=notes)
    assert notes.has("replays its log")
    assert query(state, "SELECT answer FROM kept") == [(42,)]


def test_lost_pid_file_of_a_live_postgres(data):
    cluster_up(data, components=POSTGRES)
    pid = pid_of(data, "postgres")
    Layout.of(data).pid_file("postgres").unlink()
    notes = Notes()
    cluster_up(data, components=POSTGRES, reporter=notes)
    assert notes.has(f"postgres runs as pid {pid} without a valid pid file")
    assert pid_of(data, "postgres") == pid
    Layout.of(data).pid_file("postgres").unlink()
    assert cluster_down(data)
    assert not psutil.pid_exists(pid) or daemon.is_gone(psutil.Process(pid))


def test_stale_postmaster_file_with_a_reused_pid(data):
    state = cluster_up(data, components=POSTGRES)
    cluster_down(data)
    # As after a power cut, when the pid now belongs to somebody else.
    (data / "postgres" / "postmaster.pid").write_text(
        f"{os.getpid()}\n{data}/postgres\n1\n{state.postgres_port}\n\n127.0.0.1\n\nready\n"
    )
    cluster_up(data, components=POSTGRES)
    assert query(state, "SELECT 1") == [(1,)]


def test_database_folder_half_made_by_a_killed_command(data):
    half = data / "postgres.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    state = cluster_up(data, components=POSTGRES)
    assert query(state, "SELECT 1") == [(1,)]
    assert not half.exists()


def test_two_ups_at_once(data):
    program = (
        "import sys\n"
        "from determined_deployments.local import cluster_up\n"
        f"print(cluster_up({str(data)!r}, components=('postgres',)).cluster_id)\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ids = {process.communicate(timeout=TIMEOUT_S)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(ids) == 1
    servers = [p for p in daemon.members(ids.pop()) if "-D" in p.cmdline()]
    assert len(servers) == 1


def test_delete_db_keeps_checkpoints(data):
    state = cluster_up(data, components=POSTGRES)
    (data / "checkpoints" / "weights").write_text("x")
    cluster_down(data, delete_db=True)
    assert sorted(p.name for p in data.iterdir()) == ["checkpoints", "logs", "run"]
    assert (data / "checkpoints" / "weights").exists()
    assert cluster_up(data, components=POSTGRES).cluster_id != state.cluster_id


def test_external_server(data, outside):
    host = cluster_up(data, components=POSTGRES)
    url = databases.embedded_url(host, "postgres")
    with psycopg.connect(url, autocommit=True) as connection:
        for name in databases.NAMES:
            connection.execute(f"DROP DATABASE {name}")
    second = outside / "second"
    state = cluster_up(second, ClusterOptions(db_url=url), components=POSTGRES)
    assert query(state, "SELECT current_database()") == [("determined",)]
    assert not (second / "postgres").exists()
    cluster_down(second, delete_db=True)
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT datname FROM pg_database").fetchall()
    assert not set(databases.NAMES) & {row[0] for row in rows}


def test_prefect_with_auth_survives_a_killed_postgres(data):
    both = ("postgres", "prefect")
    state = cluster_up(data, components=both)
    auth = httpx.BasicAuth(*state.prefect_auth.split(":"))
    url = f"{state.prefect_api_url}/work_pools/filter"
    with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client:
        assert client.post(url, json={}).status_code == 401
        assert client.post(url, json={}, auth=auth).status_code == 200
        assert "<html" in client.get(state.prefect_url, follow_redirects=True).text
        prefect = pid_of(data, "prefect")
        kill(data, "postgres")
        rows = {row.component: row for row in cluster_status(data)}
        assert (rows["postgres"].state, rows["prefect"].state) == ("dead", "running")
        cluster_up(data, components=both)
        assert pid_of(data, "prefect") == prefect
        assert client.post(url, json={}, auth=auth).status_code == 200
    rows = {row.component: row for row in cluster_status(data)}
    assert [rows[name].state for name in both] == ["running", "running"]
    assert rows["prefect"].memory is None or rows["prefect"].memory > 50_000_000
    # It does not depend on the command that started it, because it has a separate session.
    assert os.getsid(prefect) == prefect
    cluster_down(data)
    assert left_of(state) == []


# --- processes in general -----------------------------------------------------------------


def script(name: str, code: str, ready_file: Path | None = None, **changes) -> Component:
    """A component that runs ``code``; ready when ``ready_file`` exists (None: at once)."""
    return Component(
        name=name,
        argv=(sys.executable, "-c", code),
        is_ready=lambda: ready_file is None or ready_file.exists(),
        url="",
        **changes,
    )


@pytest.fixture
def layout(tmp_path):
    with plain_layout(tmp_path) as made:
        yield made


def test_failing_component_shows_its_log_and_takes_its_friends_down(layout, tmp_path):
    good = script("service", "import time; time.sleep(600)")
    bad = script("agent", "print('cannot do it'); raise SystemExit(3)", tmp_path / "never")
    with pytest.raises(ComponentFailed, match=r"agent ended .*exit status 3") as caught:
        up.start(layout, marker(layout), [good, bad], Silent())
    assert caught.value.log_tail == "cannot do it"
    assert list(daemon.members(marker(layout))) == []
    assert daemon.running(layout, "service") is None


def test_component_that_never_gets_ready(layout, tmp_path):
    slow = script("agent", "import time; time.sleep(600)", tmp_path / "never", ready_timeout=0.3)
    with pytest.raises(ComponentFailed, match="was not ready after 0 s"):
        up.start(layout, marker(layout), [slow], Silent())
    assert list(daemon.members(marker(layout))) == []


def test_order_and_runs_before_later_ones(layout, tmp_path):
    calls: list[str] = []
    first = script(
        "postgres",
        f"import pathlib,time; pathlib.Path({str(tmp_path / 'a')!r}).touch(); time.sleep(600)",
        tmp_path / "a",
        prepare=lambda note: calls.append("prepare"),
        established=lambda: calls.append("established"),
    )
    second = script(
        "prefect",
        "import time; time.sleep(600)",
        after=("postgres",),
        prepare=lambda note: calls.append("second"),
    )
    up.start(layout, marker(layout), [second, first], Silent())
    assert calls == ["prepare", "established", "second"]


def test_changed_settings_restart_a_component(layout):
    code = "import time; time.sleep(600)"
    up.start(layout, marker(layout), [script("service", code, env={"A": "1"})], Silent())
    before = daemon.running(layout, "service")
    notes = Notes()
    up.start(layout, marker(layout), [script("service", code, env={"A": "2"})], notes)
    after = daemon.running(layout, "service")
    assert before and after and before.pid != after.pid
    assert after.environ()["A"] == "2"
    assert notes.has("runs with other settings")


def test_down_ends_training_that_outlived_its_agent(layout, tmp_path):
    # A child in a separate session that ignores SIGTERM, left behind by a killed agent.
    child = (
        "import signal,time,pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch(); time.sleep(600)"
    )
    parent = (
        "import subprocess,sys,time;"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True);"
        "time.sleep(600)"
    )
    up.start(layout, marker(layout), [script("agent", parent, tmp_path / "up")], Silent())
    agent = daemon.running(layout, "agent")
    assert agent is not None
    (training,) = agent.children()
    agent.kill()
    notes = Notes()
    assert cluster_down(layout.root, training_grace=0.5, reporter=notes)
    assert daemon.is_gone(training)
    assert notes.has("ended 1 process(es) that the agent had started")


def test_component_that_ignores_sigterm_is_killed(layout, tmp_path):
    code = (
        "import signal,time,pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch(); time.sleep(600)"
    )
    component = script("service", code, tmp_path / "up")
    up.start(layout, marker(layout), [component], Silent())
    process = daemon.running(layout, "service")
    assert process is not None
    assert daemon.stop(process, ((signal.SIGTERM, 0.3),)) is False
    assert daemon.is_gone(process)


def test_interrupted_start_leaves_nothing(layout, tmp_path):
    code = (
        "import sys,os\n"
        "from pathlib import Path\n"
        "from determined_deployments.local import up\n"
        "from determined_deployments.local.component import Component\n"
        "from determined_deployments.local.layout import Layout\n"
        "from determined_deployments.local.report import Silent\n"
        "c = Component('agent', (sys.executable, '-c', 'import time; time.sleep(600)'),"
        " lambda: False, '')\n"
        f"up.start(Layout(Path({str(layout.root)!r})), {marker(layout)!r}, [c], Silent())\n"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.DEVNULL,
        # A shell starts its background jobs with SIGINT ignored, and these tests may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until("the agent running", lambda: daemon.running(layout, "agent"))
    command.send_signal(signal.SIGINT)
    command.wait(TIMEOUT_S)
    assert [p for p in daemon.members(marker(layout)) if not daemon.is_gone(p)] == []


def test_logs_are_followed(layout):
    code = "import time\nfor i in range(3): print(i, flush=True); time.sleep(0.3)\ntime.sleep(600)"
    up.start(layout, marker(layout), [script("agent", code)], Silent())
    seen: list[str] = []

    enough = threading.Event()

    def read() -> None:
        lines = read_logs(layout.root, ["agent"], follow=True, stop=enough.is_set)
        seen.extend(line for _, line in lines)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        until("three lines", lambda: seen[:3], equals=["0", "1", "2"])
    finally:
        enough.set()
    reader.join()
    assert seen == ["0", "1", "2"]
