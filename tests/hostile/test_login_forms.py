"""Forms that ask for a password: a page that sends such a form with its password logs its visitor in as the
attacker, who then owns and reads the visitor's work.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.hostile.test_cookies import LIST, OWN, listening
from tests.integration.browser import open_browser
from tests.integration.mlflow.conftest import Cluster
from tests.integration.service_api.conftest import World
from tests.waiting import until

MINE = {"username": "determined", "password": ""}
FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "null"},
    {},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_another_page_cannot_log_in_at_mlflows_pages(
    mlflow_cluster: Cluster, headers: dict[str, str]
) -> None:
    """Gains: the data that the visitor enters on these pages, stored as the attacker's."""
    with mlflow_cluster.browser() as browser:
        answer = browser.post("/mlflow/", data=MINE, headers=headers)
        assert answer.status_code == 403
        assert "another page sent this form" in answer.text
        assert not browser.cookies
        own = {"Origin": f"http://{browser.headers['host']}"}
        for here in (OWN, own):
            assert browser.post("/mlflow/", data=MINE, headers=here).status_code == 303


async def test_another_page_cannot_log_in_at_a_task(world: World, user: httpx.AsyncClient) -> None:
    """Gains: the visitor's input in a notebook of the attacker."""
    leg = await world.leg()
    path, host = f"/task-login?task={leg.task_id}", "localhost:8080"
    for headers in FOREIGN:
        answer = await user.post(path, data=MINE, headers={"Host": host, **headers})
        assert answer.status_code == 403, headers
        assert "another page sent this form" in answer.text
    for headers in (OWN, {"Origin": f"http://{host}"}):
        answer = await user.post(path, data=MINE, headers={"Host": host, **headers})
        assert answer.status_code == 303, headers


def test_browsers_send_own_forms_and_no_others(
    mlflow_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Browsers send ``Sec-Fetch-Site`` to trusted host names, and only ``Origin`` to others."""
    port, here = httpx.URL(mlflow_cluster.url).port, "det.example.com"
    profile = tmp_path_factory.mktemp("chromium")
    with listening() as heads, open_browser(profile, here=here) as driver:
        for host in (here, "mlflow.localhost"):
            pages = f"http://{host}:{port}/mlflow/"
            driver.get(f"http://127.0.0.1:{heads.port}/")
            driver.execute_script(SEND, pages)
            until("the refusal", lambda: "another page sent this form" in driver.page_source)
            assert _cookie(driver) is None
            driver.get(pages)
            driver.find_element("name", "username").send_keys("determined")
            driver.find_element("tag name", "button").click()
            given = until("the login", lambda: _cookie(driver))
            with mlflow_cluster.browser(cookies={"determined-session": given["value"]}) as browser:
                assert browser.get(LIST).status_code == 200


def _cookie(driver: Any) -> Any:
    return driver.get_cookie("determined-session")


SEND = """
const form = document.createElement("form");
form.method = "post";
form.action = arguments[0];
form.innerHTML = '<input name="username" value="determined"><input name="password" value="">';
document.body.append(form);
form.submit();
"""
