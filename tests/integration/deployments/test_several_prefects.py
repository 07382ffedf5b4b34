"""Several processes of Prefect's server: their start over an empty database, and a Redis between them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml

from determined_deployments.prefect_process import START_LOCK
from tests.installed import PATH, from_debian, kept, run_or_skip
from tests.integration.conftest import new_database
from tests.integration.deployments.test_foreground import deployed
from tests.object_servers import free_port
from tests.waiting import TIMEOUT_S, until

AUTH = ("determined", "secret")
PASSWORD = "p/w of redis"
THING = "test.thing"
PACKAGE = "prefect-redis==0.3.0"


@dataclass
class Server:
    """One process of Prefect's server. ``home``: its settings and its log."""

    url: str
    home: Path
    process: subprocess.Popen[bytes]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(
            method, f"{self.url}{path}", json=body, auth=AUTH, timeout=60, trust_env=False
        )
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def is_up(self) -> bool:
        assert self.process.poll() is None, f"it has ended:\n{self.log()}"
        with contextlib.suppress(httpx.HTTPError):
            return bool(self.ask("GET", "/ready"))
        return False

    def log(self) -> str:
        return (self.home / "prefect.log").read_text()[-5000:]


@contextlib.contextmanager
def server(
    database: str, home: Path, redis_url: str | None = None, **variables: str
) -> Iterator[Server]:
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    settings = {
        "prefect_db_url": database,
        "prefect_api_url": url,
        "prefect_auth": ":".join(AUTH),
        "data_dir": str(home / "data"),
    }
    if redis_url is not None:
        settings["prefect_redis_url"] = redis_url
    (home / "data").mkdir(parents=True)
    config = home / "service.yaml"
    config.write_text(yaml.safe_dump(settings))
    with deployed("prefect", config, home, **variables) as process:
        yield Server(url, home, process)


@pytest.fixture(scope="module")
def redis() -> Iterator[str]:
    """The address of a Redis with a password, whose log and data go with the module."""
    why_not = from_debian(["redis-server"], ["redis-server"])
    if why_not is not None:
        pytest.skip(why_not)
    program = shutil.which("redis-server", path=PATH)
    assert program is not None
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--requirepass", PASSWORD]
    process = subprocess.Popen([program, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "eady to accept connections" in line:
                break
        else:
            raise AssertionError("".join(said))
        yield f"redis://:{PASSWORD.replace('/', '%2F').replace(' ', '%20')}@127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def package() -> dict[str, str]:
    """Variables with which servers find the extra `redis`, whose dependencies are Prefect's own."""
    if importlib.util.find_spec("prefect_redis") is not None:
        return {}

    def install(home: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run_or_skip(PACKAGE, [*pip, "--no-deps", "--target", str(home), PACKAGE])

    return {"PYTHONPATH": str(kept(PACKAGE.replace("==", "-"), install))}


def test_a_server_starts_while_no_other_does(postgres_server: str, tmp_path: Path) -> None:
    """Of two that register Prefect's types of blocks at once, one would end."""
    database = new_database(postgres_server)
    asks = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE 'SELECT pg_try_advisory_lock(%'
        AND (SELECT count(*) FROM pg_tables WHERE tablename = 'block_type') = 1"""
    with psycopg.connect(database, autocommit=True) as connection:
        count = lambda query: connection.execute(query).fetchone()[0]  # type: ignore[index, misc]  # noqa: E731
        connection.execute("SELECT pg_advisory_lock(%s)", [START_LOCK])
        with server(database, tmp_path / "one") as one:
            until("it waits for its turn, with its tables", lambda: bool(count(asks)), show=one.log)
            assert one.process.poll() is None
            assert count("SELECT count(*) FROM block_type") == 0
            connection.execute("SELECT pg_advisory_unlock(%s)", [START_LOCK])
            until("it is up", one.is_up, show=one.log)
            assert count("SELECT count(*) FROM block_type") > 0
            # The next one need not wait until this one ends.
            assert count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_two_servers_share_a_database_and_a_redis(
    postgres_server: str, redis: str, package: dict[str, str], tmp_path: Path
) -> None:
    database = new_database(postgres_server)
    with (
        server(database, tmp_path / "one", redis, **package) as one,
        server(database, tmp_path / "two", redis, **package) as two,
    ):
        for each in (one, two):
            until("it is up", each.is_up, show=each.log)
        flow = one.ask("POST", "/flows/", {"name": "shared"})["id"]
        told = asyncio.run(_told_until_heard(one, two))
        run = one.ask("POST", "/flow_runs/", {"flow_id": flow, "state": {"type": "PENDING"}})["id"]
        assert two.ask("GET", f"/flow_runs/{run}")["state"]["type"] == "PENDING"

        def events(resource: str, field: str) -> list[str]:
            return [str(event[field]) for event in _stored(two, resource)]

        states = [f"prefect.flow-run.{state}" for state in ("Pending", "Running", "Completed")]
        of_run = f"prefect.flow-run.{run}"
        # What a server has not told the Redis yet is lost with it.
        until("the first event", lambda: events(of_run, "event"), equals=states[:1], show=one.log)
        one.process.kill()
        one.process.wait(TIMEOUT_S)
        # It goes on by the other, and each event is stored once.
        for state in ("RUNNING", "COMPLETED"):
            body = {"state": {"type": state}, "force": False}
            two.ask("POST", f"/flow_runs/{run}/set_state", body)
        assert two.ask("GET", f"/flow_runs/{run}")["state"]["type"] == "COMPLETED"
        until("its events", lambda: events(of_run, "event"), equals=states, show=two.log)
        until("what was told", lambda: events(THING, "id"), equals=told, show=two.log)


def _stored(server: Server, resource: str) -> list[dict[str, Any]]:
    """A resource's events, in the order in which they happened."""
    chosen = {"resource": {"id": [resource]}, "order": "ASC"}
    return list(server.ask("POST", "/events/filter", {"filter": chosen})["events"])


async def _told_until_heard(teller: Server, hearer: Server) -> list[str]:
    """Tells one server of events until a listener at the other hears one of them; the ids of all."""
    from prefect.events.clients import PrefectEventSubscriber
    from prefect.events.filters import EventFilter, EventResourceFilter
    from prefect.settings import PREFECT_API_AUTH_STRING, temporary_settings

    ids: list[str] = []
    chosen = EventFilter(resource=EventResourceFilter(id=[THING]))
    with temporary_settings({PREFECT_API_AUTH_STRING: ":".join(AUTH)}):
        listener = PrefectEventSubscriber(api_url=hearer.url, filter=chosen)
        async with asyncio.timeout(TIMEOUT_S), listener:
            heard = asyncio.ensure_future(anext(listener))
            while not heard.done():
                event = {
                    "id": str(uuid.uuid4()),
                    "occurred": datetime.now(UTC).isoformat(),
                    "event": "told",
                    "resource": {"prefect.resource.id": THING},
                }
                ids.append(event["id"])
                teller.ask("POST", "/events", [event])
                await asyncio.wait([heard], timeout=1.0)
            assert str(heard.result().id) in ids
    return ids
