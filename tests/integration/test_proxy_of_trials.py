"""A server inside a training process, reached through the proxy; and the limits of a hostile page."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx

from determined.common.api import Session
from tests.integration.browser import open_browser
from tests.local_cluster import DET, LocalCluster
from tests.waiting import TIMEOUT_S, until

CONFIG = """
name: serves
entrypoint: python3 train.py
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: {{batches: 1}}}}
max_restarts: 0
environment:
  environment_variables: [HOSTILE={hostile}, VICTIM={victim}]
  proxy_ports:
    - {{proxy_port: {hostile}, default_service_id: true}}
    - {{proxy_port: {victim}}}
"""
TRAIN = """
import http.server, os, threading

class Victim(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("victim asked for", self.path, "cookie", self.headers["Cookie"], flush=True)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Set-Cookie", "victims=secret; Path=/")
        self.send_header("Access-Control-Allow-Origin", self.headers["Origin"] or "*")
        self.send_header("Access-Control-Allow-Credentials", "true")
        self.end_headers()
        self.wfile.write(b"<title>the victim</title>private")

class Hostile(Victim):
    def do_GET(self):
        page = open("page.html", "rb").read()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

victim = http.server.ThreadingHTTPServer((os.environ["DET_LISTEN_HOST"], int(os.environ["VICTIM"])), Victim)
threading.Thread(target=victim.serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["HOSTILE"])), Hostile).serve_forever()
"""
PAGE = """<!DOCTYPE html><title>waiting</title><script>
const of = new URLSearchParams(location.search), found = {cookie: document.cookie};
const ask = async (name, url, options) => {
  try {
    const answer = await fetch(url, {credentials: "include", ...options});
    found[name] = answer.type + " " + answer.status + " " + (await answer.text());
  } catch (error) { found[name] = "refused"; }
};
const frame = url => new Promise(done => {
  const made = document.createElement("iframe");
  made.onload = () => { try { done(made.contentDocument.body.innerText) } catch (e) { done("closed"); } };
  made.src = url; document.documentElement.append(made);
});
const talk = url => new Promise(done => {
  const made = new WebSocket(url);
  made.onopen = () => done("open"); made.onerror = () => done("refused");
});
(async () => {
  await ask("api", of.get("service") + "/api/v1/me");
  await ask("mlflow", of.get("service") + "/mlflow/api/2.0/mlflow/experiments/search?max_results=5");
  await ask("below", of.get("service") + of.get("path"));
  await ask("victim", of.get("victim") + "/fetched");
  await ask("opaque", of.get("victim") + "/opaque", {mode: "no-cors"});
  found.frame = await frame(of.get("victim") + "/framed");
  found.socket = await talk(of.get("victim").replace("http", "ws") + "/socket");
  document.title = JSON.stringify(found);
})();
</script>"""


def free_ports() -> tuple[int, int]:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


def way_in(session: Session, task: str, port: str, path: str = "/") -> str:
    found = session.post(f"/api/v1/tasks/{task}/visits", json={"port": port, "path": path})
    return str(found["url"])


def test_a_hostile_page_of_a_task_reads_nothing_of_others(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    hostile, victim = free_ports()
    config = CONFIG.format(hostile=hostile, victim=victim)
    experiment = cluster.submit(tmp_path / "experiment", config, train_py=TRAIN, page_html=PAGE)
    session = cluster.session()
    url = session.master
    form = {"username": "determined", "password": cluster.password()}
    own = f"mlflow.localhost:{url.rpartition(':')[2]}"
    there = {"Host": own, "Origin": f"http://{own}"}
    given = httpx.post(f"{url}/mlflow/", data=form, headers=there, timeout=TIMEOUT_S)
    pages = given.cookies["determined-session"]

    def task_id() -> str | None:
        trials = cluster.trials(experiment)
        return str(trials[0]["taskId"]) if trials else None

    task = until("the trial", task_id)
    headers = {"Authorization": f"Bearer {session.token}", "Accept": "text/html"}
    with httpx.Client(headers=headers, timeout=TIMEOUT_S) as client:

        def page() -> str | None:
            found = client.get(f"{url}/proxy/{task}/")
            # Until then it says what it waits for.
            assert found.status_code == 200 or 'http-equiv="refresh"' in found.text, found.text
            return found.text if found.status_code == 200 else None

        assert until("the page", page) == PAGE
        until("the victim", lambda: client.get(f"{url}/proxy/{task}:{victim}/").status_code == 200)
    try:
        found = visit(session, pages, task, str(victim), tmp_path / "profile")
        assert found["cookie"] == ""
        assert found["api"] == "refused"
        assert found["mlflow"] == "refused"
        assert found["below"] == "refused"
        assert found["victim"] == "refused"
        assert "private" not in found["opaque"]
        assert found["frame"] == "closed"
        assert found["socket"] == "refused"
        logs = cluster.logs(experiment)
        assert "victim asked for /opened" in logs
        for path in ("/fetched", "/opaque", "/framed", "/socket"):
            assert f"victim asked for {path}" not in logs
        assert "determined-visit" not in logs
    finally:
        cluster.det("experiment", "kill", str(experiment))
        cluster.wait(experiment)


def visit(session: Session, pages: str, task: str, victim: str, profile: Path) -> dict[str, Any]:
    """The findings of the hostile page, in the browser of a user who is logged in everywhere."""
    label, url = task.replace(".", "--"), session.master
    victims = f"http://{label}---{victim}.localhost:{url.rpartition(':')[2]}"
    with open_browser(profile) as driver:
        # Logged in at MLflow's pages, at their host name.
        driver.get(f"http://mlflow.localhost:{url.rpartition(':')[2]}/mlflow/")
        cookie = {"name": "determined-session", "value": pages, "path": "/mlflow"}
        driver.add_cookie({**cookie, "httpOnly": True, "sameSite": "Lax"})
        driver.get(way_in(session, task, victim, "/opened"))
        until("the victim's page", lambda: driver.title == "the victim")
        assert driver.get_cookie("determined-visit")["httpOnly"]
        path = f"/?service={url}&victim={victims}&path=/proxy/{task}:{victim}/"
        driver.get(way_in(session, task, "", path))
        until("the page's findings", lambda: driver.title.startswith("{"))
        return dict(json.loads(driver.title))


def test_a_port_of_a_trial_is_a_port_of_this_machine_while_it_is_followed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    local, remote = free_ports()
    (tmp_path / "hello.txt").write_text("from the trial")
    # As a published example has it: the port is not in the configuration.
    config = {
        "name": "published",
        "entrypoint": f"python3 -m http.server {remote}",
        "searcher": {"name": "single", "metric": "x", "max_length": 1},
        "max_restarts": 0,
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    followed = subprocess.Popen(
        [*DET, "e", "create", "c.yaml", ".", "-f", "-p", f"{local}:{remote}"],
        cwd=tmp_path,
        env=cluster.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert followed.stdout is not None and followed.stderr is not None
    experiment = followed.stdout.readline().removeprefix("Created experiment ").strip()

    def answered() -> str | None:
        try:
            return httpx.get(f"http://127.0.0.1:{local}/hello.txt").text
        except httpx.TransportError:
            return None

    try:
        assert until("the trial answers", answered) == "from the trial"
    finally:
        cluster.det("e", "kill", experiment)
        said = followed.communicate(timeout=TIMEOUT_S)[1]
    assert followed.returncode == 1
    assert f"localhost:{local} is port {remote} of " in said
