"""Prefect's page and API behind the service's login."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster

SECRET = "kept-by-alice"


class Service:
    """The cluster's service as its users reach it, at its address and at the address of Prefect's pages."""

    def __init__(self, cluster: LocalCluster) -> None:
        record = json.loads((cluster.data_dir / "cluster.json").read_text())
        self.url: str = record["master_url"]
        self.passwords: dict[str, str] = record["passwords"]
        self.host = f"prefect.localhost:{httpx.URL(self.url).port}"

    def asks(self, user: str | None = "determined", *, here: bool = True) -> httpx.Client:
        """``here``: at the host name of Prefect's pages."""
        headers = {"Host": self.host} if here else {}
        auth = (user, self.passwords[user]) if user else None
        return httpx.Client(base_url=self.url, auth=auth, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def service(cluster: LocalCluster) -> Service:
    return Service(cluster)


@pytest.fixture(scope="module")
def run(cluster: LocalCluster) -> Iterator[str]:
    """A flow run that a user made in Prefect, with a secret among its parameters."""
    prefect = Prefect(cluster)
    flow = prefect.call("/flows/", {"name": "alices-own"})["id"]
    made = prefect.call(
        "/flow_runs/",
        {
            "flow_id": flow,
            "parameters": {"config": SECRET},
            "state": {"type": "PENDING"},
            "name": f"made-{uuid.uuid4().hex}",
        },
    )
    yield str(made["id"])
    prefect.http.delete(f"/flow_runs/{made['id']}")


def test_browsers_are_led_to_the_pages_own_host_name_and_asked_there(service: Service) -> None:
    with service.asks(None, here=False) as visitor:
        led = visitor.get("/prefect/runs/flow-run/7?tab=Logs", headers={"Accept": "text/html"})
        assert led.status_code == 302
        assert led.headers["location"] == f"http://{service.host}/runs/flow-run/7?tab=Logs"
        # A browser would send a password for this address to every page at the address.
        assert "www-authenticate" not in visitor.get("/prefect/api/version").headers
        elsewhere = visitor.get("/prefect/", headers={"Host": "det.example.com"})
        assert elsewhere.status_code == 404 and "proxy_host" in elsewhere.text
    with service.asks(None) as visitor:
        refused = visitor.get("/")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith('Basic realm="')
        assert "PREFECT_API_AUTH_STRING" in refused.json()["message"]
        wrong = visitor.get("/", auth=("determined", "wrong"))
        assert wrong.status_code == 401
        # The service's own pages and API do not exist at this address.
        assert visitor.get("/api/v1/me").status_code == 401
    with service.asks() as visitor:
        page = visitor.get("/")
        assert (
            "<html" in page.text and "connect-src 'self'" in page.headers["content-security-policy"]
        )
        settings = visitor.get("/ui-settings").json()
        assert (settings["api_url"], settings["auth"]) == (f"http://{service.host}/api", None)
        assert visitor.get("/api/v1/me").status_code == 403


def test_other_users_look_and_change_nothing(
    cluster: LocalCluster, service: Service, run: str
) -> None:
    """Gains, without this: a run of any command with the agent's account, and others' data in Prefect."""
    with service.asks() as visitor:
        seen = visitor.get(f"/api/flow_runs/{run}").json()
        assert seen["id"] == run and seen["parameters"] == {}
        wanted = {"flow_runs": {"id": {"any_": [run]}}}
        listed = visitor.post("/api/flow_runs/filter", json=wanted)
        assert [one["id"] for one in listed.json()] == [run] and SECRET not in listed.text
        for method, path in (
            ("POST", f"/api/flow_runs/{run}/set_state"),
            ("PATCH", f"/api/flow_runs/{run}"),
            ("DELETE", f"/api/flow_runs/{run}"),
            ("POST", "/api/block_documents/filter"),
            ("POST", "/api/variables/filter"),
            ("GET", "/x/%2e%2e/api/variables/name/x"),
        ):
            refused = visitor.request(method, path, json={"state": {"type": "CANCELLED"}})
            assert refused.status_code in (400, 403), f"{method} {path}: {refused.text}"
    prefect = Prefect(cluster)
    assert prefect.call(f"/flow_runs/{run}")["state"]["type"] == "PENDING"


def test_an_administrator_may_do_everything_from_a_page_of_prefects(
    service: Service, run: str
) -> None:
    body = {"state": {"type": "CANCELLED"}, "force": True}
    with service.asks("admin") as visitor:
        assert visitor.get(f"/api/flow_runs/{run}").json()["parameters"] == {"config": SECRET}
        path = f"/api/flow_runs/{run}/set_state"
        for foreign in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://127.0.0.1:1"},
        ):
            assert visitor.post(path, json=body, headers=foreign).status_code == 403
        own = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{service.host}"}
        assert visitor.post(path, json=body, headers=own).status_code == 201


def test_a_password_that_was_changed_counts_no_more(service: Service) -> None:
    name = f"eve-{uuid.uuid4().hex[:8]}"
    with httpx.Client(base_url=service.url, timeout=60) as admin:
        login = {"username": "admin", "password": service.passwords["admin"]}
        token = admin.post("/api/v1/auth/login", json=login).json()["token"]
        admin.headers["Authorization"] = f"Bearer {token}"
        new = {"user": {"username": name}, "password": "first words"}
        made = admin.post("/api/v1/users", json=new).json()["user"]
        with service.asks(None) as visitor:
            first = (name, "first words")
            assert visitor.get("/api/version", auth=first).status_code == 200
            change = {"password": "second words"}
            admin.patch(f"/api/v1/users/{made['id']}", json=change).raise_for_status()
            assert visitor.get("/api/version", auth=first).status_code == 401
            assert visitor.get("/api/version", auth=(name, "second words")).status_code == 200
            change = {"active": False}
            admin.patch(f"/api/v1/users/{made['id']}", json=change).raise_for_status()
            assert visitor.get("/api/version", auth=(name, "second words")).status_code in (
                401,
                403,
            )


def test_many_requests_at_once_are_one_login(service: Service) -> None:
    """A page of Prefect's asks for twenty things, as many as a user may have logins at once and more."""

    async def ask() -> list[int]:
        auth = ("determined", service.passwords["determined"])
        headers = {"Host": service.host}
        async with httpx.AsyncClient(
            base_url=service.url, auth=auth, headers=headers, timeout=60
        ) as visitor:
            answers = await asyncio.gather(*(visitor.get("/api/version") for _ in range(40)))
        return [answer.status_code for answer in answers]

    assert asyncio.run(ask()) == [200] * 40


def test_prefects_own_client_with_a_user_of_the_cluster(service: Service, run: str) -> None:
    program = (
        "import sys\n"
        "from prefect.client.orchestration import get_client\n"
        "print(get_client(sync_client=True).read_flow_run(sys.argv[1]).name)\n"
    )
    environment = {
        **os.environ,
        "PREFECT_API_URL": f"{service.url}/prefect/api",
        "PREFECT_API_AUTH_STRING": f"determined:{service.passwords['determined']}",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, run],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("made-"), done.stderr
