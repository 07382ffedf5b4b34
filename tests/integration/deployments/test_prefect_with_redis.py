"""Two processes of Prefect's server on one database, with a Redis between them."""

from __future__ import annotations

import datetime
import importlib.util
import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from websockets.sync.client import connect

from tests.integration.conftest import new_database
from tests.integration.deployments.test_foreground import answer, deployed
from tests.object_servers import free_port
from tests.waiting import TIMEOUT_S, until

LOGIN = "determined:secret"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """The address of a Redis that ends with the test."""
    program = shutil.which("redis-server")
    if program is None or importlib.util.find_spec("prefect_redis") is None:
        pytest.skip("needs redis-server (apt) and the extra redis (prefect-redis)")
    port = free_port()
    words = ["--bind", "127.0.0.1", "--requirepass", "sesam", "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen([program, "--port", str(port), *words], stdout=subprocess.DEVNULL)
    yield f"redis://:sesam@127.0.0.1:{port}/0"
    process.terminate()
    process.wait(TIMEOUT_S)


def test_an_event_of_one_is_heard_by_those_who_listen_to_the_other(
    postgres_server: str, redis: str, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    config = tmp_path / "service.yaml"
    settings = {
        "db_url": "postgresql://nobody@127.0.0.1/none",
        "prefect_db_url": new_database(postgres_server),
        "prefect_redis_url": redis,
        "prefect_api_url": "http://prefect.invalid:4200/api",
        "prefect_auth": LOGIN,
        "agent_token": "token",
        "data_dir": str(tmp_path / "data"),
    }
    config.write_text(yaml.safe_dump(settings))
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    first, second = (
        {"PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": str(port)}
        for port in ports
    )
    # Both at once over an empty database: they take turns in making the tables.
    with (
        deployed("prefect", config, homes[0], **first),
        deployed("prefect", config, homes[1], **second),
    ):
        for port, home in zip(ports, homes, strict=True):

            def ready(url: str = f"http://127.0.0.1:{port}/api/ready") -> bool:
                found = answer(url, auth=tuple(LOGIN.split(":")))
                return found is not None and found.status_code == 200

            log = home / "prefect.log"
            until(f"Prefect at {port}", ready, show=log.read_text)
        name = f"test.{uuid.uuid4().hex}"
        now = datetime.datetime.now(datetime.UTC)
        span = {
            "since": str(now - datetime.timedelta(hours=1)),
            "until": str(now + datetime.timedelta(hours=1)),
        }
        wanted = {"event": {"name": [name]}, "occurred": span}
        event = {
            "id": str(uuid.uuid4()),
            "occurred": now.isoformat(),
            "event": name,
            "resource": {"prefect.resource.id": "test"},
        }
        with connect(
            f"ws://127.0.0.1:{ports[1]}/api/events/out", subprotocols=["prefect"], proxy=None
        ) as listener:
            listener.send(json.dumps({"type": "auth", "token": LOGIN}))
            assert json.loads(listener.recv(TIMEOUT_S))["type"] == "auth_success"
            listener.send(json.dumps({"type": "filter", "filter": wanted}))
            with httpx.Client(
                base_url=f"http://127.0.0.1:{ports[0]}/api",
                auth=tuple(LOGIN.split(":")),
                trust_env=False,
            ) as client:
                client.post("/events", json=[event]).raise_for_status()
            heard = json.loads(listener.recv(TIMEOUT_S))
        assert heard["event"]["event"] == name

        # Stored once, whichever of the two has written it, and read through both.
        for port in ports:
            url = f"http://127.0.0.1:{port}/api/events/filter"

            def stored(url: str = url) -> int:
                found = httpx.post(
                    url,
                    json={"filter": wanted},
                    auth=tuple(LOGIN.split(":")),
                    trust_env=False,
                )
                return int(found.raise_for_status().json()["total"])

            until("the event to be stored", lambda: stored() > 0)
            assert stored() == 1
