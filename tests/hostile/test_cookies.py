"""A browser sends its cookies to every port of a host name, whichever program listens there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.integration.browser import open_browser
from tests.integration.mlflow.conftest import Cluster
from tests.waiting import until

OPENED = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
OWN = {"Sec-Fetch-Site": "same-origin"}
LIST = "/mlflow/ajax-api/2.0/mlflow/experiments/search?max_results=1"


PAGE = """<!DOCTYPE html><title>looks</title><script>
const given = new URLSearchParams(location.search);
const at = port => `http://mlflow.localhost:${port}`;
async function ask(url) {
  try { return (await (await fetch(url, {credentials: "include"})).text()) ? "read" : ""; }
  catch { return "refused"; }
}
async function look() {
  const path = "/mlflow/ajax-api/2.0/mlflow/experiments/search?max_results=1";
  const found = [await ask(at(given.get("mlflow")) + path), await ask(at(given.get("own")) + "/seen")];
  document.title = "found: " + found.join(", ");
}
look();
</script>"""
"""Of another server: asks MLflow's pages, and itself at their host name."""


class Heads:
    """A server at another port, and the heads of the requests that it got."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(f"{self.command} {self.path}\n{self.headers}")
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(PAGE.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]


@contextlib.contextmanager
def listening() -> Iterator[Heads]:
    heads = Heads()
    thread = threading.Thread(target=heads.server.serve_forever)
    thread.start()
    try:
        yield heads
    finally:
        heads.server.shutdown()
        heads.server.server_close()
        thread.join()


@pytest.fixture
def cookie(mlflow_cluster: Cluster) -> str:
    """The headers that a server at another port of the host name gets from a user logged in at MLflow's
    pages."""
    form = {"username": "determined", "password": ""}
    with mlflow_cluster.browser() as browser:
        return browser.post("/mlflow/", data=form, headers=OWN).cookies["determined-session"]


def test_the_cookie_of_pages_is_not_a_token(mlflow_cluster: Cluster, cookie: str) -> None:
    """Gains: commands in the user's name."""
    bare = cookie.removeprefix("pages.")
    assert bare != cookie
    for token in (cookie, bare):
        with mlflow_cluster.api(token) as api:
            assert api.get("/api/v1/me").status_code == 401
            wanted = {"config": {"entrypoint": "true", "resources": {"slots": 0}}}
            assert api.post("/api/v1/commands", json=wanted).status_code == 401
            assert api.get(LIST).status_code == 401


def test_the_cookie_of_one_kind_of_pages_opens_no_other(
    mlflow_cluster: Cluster, cookie: str
) -> None:
    """Gains: programs run in the user's name, by whoever has the cookie of MLflow's pages."""
    host = f"det.localhost:{httpx.URL(mlflow_cluster.url).port}"
    headers = {"Host": host, "Origin": f"http://{host}"}
    with httpx.Client(base_url=mlflow_cluster.url, headers=headers, timeout=180) as browser:
        form = {"username": "determined", "password": "", "to": ""}
        given = browser.post("/det/login", data=form).headers["set-cookie"].partition(";")[0]
        own = browser.get("/det/", headers={"Cookie": given})
        assert own.status_code == 200
        other = browser.get("/det/", headers={"Cookie": f"determined-front={cookie}"})
        assert (other.status_code, other.headers["location"]) == (302, "/det/login?to=%2Fdet%2F")
    cookies = {"determined-session": given.partition("=")[2]}
    with mlflow_cluster.browser(cookies=cookies) as browser:
        assert browser.get(LIST).status_code == 401


def test_a_token_is_not_a_pages_cookie(mlflow_cluster: Cluster) -> None:
    """Gains: nothing more than the token; but such a cookie would be one of the earlier kind."""
    cookies = {"determined-session": mlflow_cluster.token}
    with mlflow_cluster.browser(cookies=cookies) as browser:
        assert browser.get(LIST).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        (OPENED | {"Sec-Fetch-Site": "same-site"}, 200),
        (OPENED | {"Sec-Fetch-Site": "cross-site"}, 200),
        (OPENED | {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({}, 200),
    ],
)
def test_a_page_at_another_port_asks_nothing(
    mlflow_cluster: Cluster, cookie: str, headers: dict[str, str], status: int
) -> None:
    """Gains: the data that the user sees, if a page at the same host name may read answers."""
    cookies = {"determined-session": cookie}
    with mlflow_cluster.browser(cookies=cookies) as browser:
        assert browser.get(LIST, headers=headers).status_code == status


def test_the_session_of_pages_ends_with_a_new_password(mlflow_cluster: Cluster) -> None:
    """Gains: the data that the user sees, for an unlimited time."""
    with mlflow_cluster.api(mlflow_cluster.log_in("admin")) as admin:
        new = {"user": {"username": "eve"}, "password": "first words"}
        made = admin.post("/api/v1/users", json=new).raise_for_status().json()["user"]
        form = {"username": "eve", "password": "first words"}
        with mlflow_cluster.browser() as browser:
            assert browser.post("/mlflow/", data=form, headers=OWN).status_code == 303
            assert browser.get(LIST).status_code == 200
            change = {"password": "second words"}
            admin.patch(f"/api/v1/users/{made['id']}", json=change).raise_for_status()
            # A recently checked token stays in the cache until its end is announced.
            until("its end", lambda: browser.get(LIST).status_code, equals=401)


def test_the_cookie_of_pages_is_good_at_their_host_name_alone(
    mlflow_cluster: Cluster, cookie: str
) -> None:
    """Gains: the data that the user sees, from a page at the service's address."""
    cookies = {"determined-session": cookie}
    port = httpx.URL(mlflow_cluster.url).port
    with httpx.Client(base_url=mlflow_cluster.url, cookies=cookies, timeout=180) as browser:
        for host in ("127.0.0.1", "localhost"):
            answer = browser.get(LIST, headers={"Host": f"{host}:{port}"})
            assert answer.status_code == 401, host


def test_a_server_at_another_port_gets_no_login(
    mlflow_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Gains: the login of whoever visits it. A browser sends a cookie to every port of its host name. So the
    service's known host names have no cookie, and requests from other sites to MLflow's host name carry
    none."""
    port = httpx.URL(mlflow_cluster.url).port
    with listening() as heads, open_browser(tmp_path_factory.mktemp("chromium")) as driver:
        driver.get(f"{mlflow_cluster.url}/mlflow/#/models")
        assert driver.current_url == f"http://mlflow.localhost:{port}/mlflow/#/models"
        driver.find_element("name", "username").send_keys("determined")
        driver.find_element("tag name", "button").click()
        given = until("the login", lambda: driver.get_cookie("determined-session"))
        assert given["httpOnly"] and given["domain"] == "mlflow.localhost"
        # The user is logged in through any address of the service.
        driver.get(f"http://localhost:{port}/mlflow/")
        assert not driver.find_elements("name", "username")
        for name in ("127.0.0.1", "localhost", "other.localhost"):
            driver.get(f"http://{name}:{heads.port}/?mlflow={port}&own={heads.port}")
            until(f"what the page at {name} found", lambda: driver.title.startswith("found"))
            assert driver.title == "found: refused, refused"
    assert {"/", "/seen"} <= {head.split()[1].partition("?")[0] for head in heads.seen}
    assert not [head for head in heads.seen if "determined" in head.lower()]
