"""A browser sends its cookies to every port of a host name, whoever listens there."""

from __future__ import annotations

import httpx
import pytest

from tests.integration.mlflow.conftest import Cluster

LIST = "/mlflow/ajax-api/2.0/mlflow/experiments/search?max_results=1"


@pytest.fixture
def cookie(mlflow_cluster: Cluster) -> str:
    """What a server at another port of the host name gets of somebody who is logged in at MLflow's pages."""
    form = {"username": "determined", "password": ""}
    answer = httpx.post(f"{mlflow_cluster.url}/mlflow/", data=form)
    return answer.cookies["determined-session"]


def test_the_cookie_of_pages_is_no_token(mlflow_cluster: Cluster, cookie: str) -> None:
    """Gains: commands in the user's name."""
    bare = cookie.removeprefix("pages.")
    assert bare != cookie
    for token in (cookie, bare):
        with mlflow_cluster.api(token) as api:
            assert api.get("/api/v1/me").status_code == 401
            wanted = {"config": {"entrypoint": "true", "resources": {"slots": 0}}}
            assert api.post("/api/v1/commands", json=wanted).status_code == 401
            assert api.get(LIST).status_code == 401


def test_a_token_is_no_cookie_of_pages(mlflow_cluster: Cluster) -> None:
    """Gains: nothing more than the token; but such a cookie would be one of the earlier kind."""
    cookies = {"determined-session": mlflow_cluster.token}
    with httpx.Client(base_url=mlflow_cluster.url, cookies=cookies) as browser:
        assert browser.get(LIST).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({}, 200),
    ],
)
def test_a_page_at_another_port_asks_nothing(
    mlflow_cluster: Cluster, cookie: str, headers: dict[str, str], status: int
) -> None:
    """Gains: what the user sees, where a page at the same host name may read answers."""
    cookies = {"determined-session": cookie}
    with httpx.Client(base_url=mlflow_cluster.url, cookies=cookies, timeout=180) as browser:
        assert browser.get(LIST, headers=headers).status_code == status


def test_the_session_of_pages_ends_with_a_new_password(mlflow_cluster: Cluster) -> None:
    """Gains: what the user sees, for as long as the thief likes."""
    with mlflow_cluster.api(mlflow_cluster.log_in("admin")) as admin:
        new = {"user": {"username": "eve"}, "password": "first words"}
        made = admin.post("/api/v1/users", json=new).raise_for_status().json()["user"]
        form = {"username": "eve", "password": "first words"}
        with httpx.Client(base_url=mlflow_cluster.url, timeout=180) as browser:
            assert browser.post("/mlflow/", data=form).status_code == 303
            assert browser.get(LIST).status_code == 200
            change = {"password": "second words"}
            admin.patch(f"/api/v1/users/{made['id']}", json=change).raise_for_status()
            assert browser.get(LIST).status_code == 401
