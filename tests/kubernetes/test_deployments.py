"""Runs of users' deployments in a pool on Kubernetes are Jobs, as Prefect's Kubernetes worker makes them."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined_deployments.agent.launchers.kubernetes import labels
from determined_deployments.agent.launchers.kubernetes.worker import FINISHED_JOB_TTL_S
from determined_deployments.local import state as states
from determined_deployments.local.layout import Layout
from tests.kubernetes.agents import POOL, POOLS, Agent
from tests.kubernetes.conftest import KUBECONFIG, NEWEST, Target
from tests.kubernetes.standin.objects import is_over
from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until

pytestmark = [
    pytest.mark.parametrize("target", [NEWEST], indirect=True, scope="session"),
    pytest.mark.skipif(KUBECONFIG is not None, reason="images have no flow of the test's"),
]
FLOW = """
import os, time
from prefect import flow

@flow(log_prints=True)
def hello(seconds: float = 0.0):
    print("greeting", os.environ.get("GREETING"))
    time.sleep(seconds)
"""
RUN_LABEL = "prefect.io/flow-run-id"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.running(config=POOLS) as made:
        yield made


class Prefect:
    """What a user does in Prefect: ``prefect`` on the command line, and its page."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        found = states.load(Layout(cluster.data_dir))
        assert found is not None
        self.env = {
            **cluster.env,
            "PREFECT_API_URL": found.prefect_api_url,
            "PREFECT_API_AUTH_STRING": found.prefect_auth or "",
            "PREFECT_HOME": str(folder / "prefect-home"),
        }
        self.folder = folder
        self._url = found.prefect_api_url
        self._auth = tuple((found.prefect_auth or ":").split(":", 1))

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *command],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        import httpx

        answer = httpx.request(method, f"{self._url}{path}", json=body, auth=self._auth, timeout=60)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def deploy(self, name: str, *options: str) -> str:
        """The deployment's id."""
        (self.folder / "flow.py").write_text(FLOW)
        pool = options or ("--pool", POOL)
        self.run("deploy", "flow.py:hello", "--name", name, *pool)
        return str(self.ask("GET", f"/deployments/name/hello/{name}")["id"])

    def start(self, deployment: str, **parameters: Any) -> str:
        """The run's id."""
        path = f"/deployments/{deployment}/create_flow_run"
        return str(self.ask("POST", path, {"parameters": parameters})["id"])

    def state(self, run: str) -> str:
        return str(self.ask("GET", f"/flow_runs/{run}")["state"]["name"])

    def log(self, run: str) -> str:
        given = {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200}
        return "\n".join(line["message"] for line in self.ask("POST", "/logs/filter", given))


@pytest.fixture(scope="module")
def prefect(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Prefect:
    return Prefect(cluster, tmp_path_factory.mktemp("users"))


@pytest.fixture(scope="module")
def agent(cluster: LocalCluster, target: Target) -> Iterator[Agent]:
    made = Agent(cluster, target, "kube-flows")
    yield made
    made.stop()


def jobs(target: Target, run: str, namespace: str | None = None) -> list[dict[str, Any]]:
    assert target.standin is not None
    where = namespace or target.namespace

    def of_run(thing: dict[str, Any]) -> bool:
        return bool(thing["metadata"].get("labels", {}).get(RUN_LABEL) == run)

    found = target.standin.do(lambda cluster: cluster.store.select("jobs", where, of_run))
    return list(found)


def until_state(prefect: Prefect, run: str, state: str, agent: Agent | None = None) -> None:
    show = lambda: prefect.state(run) + prefect.log(run) + (agent.log()[-5000:] if agent else "")  # noqa: E731
    until(f"the run is {state}", lambda: prefect.state(run), equals=state, show=show)


def running(prefect: Prefect, agent: Agent | None, deployment: str) -> str:
    """A run that sleeps."""
    run = prefect.start(deployment, seconds=600)
    until_state(prefect, run, "Running", agent)
    prints(prefect, run, "greeting")
    return run


def prints(prefect: Prefect, run: str, words: str) -> None:
    """Prefect has a run's lines a moment after its state."""
    until(words, lambda: words in prefect.log(run), show=lambda: prefect.log(run))


def pods_of(target: Target, run: str) -> list[dict[str, Any]]:
    """Those that have not ended."""
    return [
        pod
        for pod in target.list("pods")
        if pod["metadata"].get("labels", {}).get(RUN_LABEL) == run and not is_over(pod)
    ]


def test_a_users_run_is_a_job(prefect: Prefect, agent: Agent, target: Target) -> None:
    run = prefect.start(prefect.deploy("plain"))
    until_state(prefect, run, "Completed", agent)
    (job,) = jobs(target, run)
    assert job["spec"]["template"]["spec"]["containers"][0]["image"].startswith(
        "prefecthq/prefect:"
    )
    # By which the chart's hook after an uninstall finds it.
    assert job["metadata"]["labels"][labels.WORKER] == "kube-flows"
    # No variable stands in the Job: Prefect's password is among them.
    (container,) = job["spec"]["template"]["spec"]["containers"]
    password = prefect.env["PREFECT_API_AUTH_STRING"]
    assert container["env"] == [] and password not in json.dumps(job)
    (secret,) = [
        one for one in target.list("secrets") if RUN_LABEL in (one["metadata"].get("labels") or {})
    ]
    assert container["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
    assert base64.b64decode(secret["data"]["PREFECT_API_AUTH_STRING"]).decode() == password
    (owner,) = secret["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    # It goes after a day, and its Secret with it.
    assert job["spec"]["ttlSecondsAfterFinished"] == FINISHED_JOB_TTL_S == 86_400
    prints(prefect, run, "greeting None")
    until("its pod has ended", lambda: pods_of(target, run), equals=[])


def test_what_is_changed_in_the_pools_template_reaches_the_job(
    prefect: Prefect, agent: Agent, target: Target
) -> None:
    """As on Prefect's page: the pool was made by the service, before its agent came."""
    assert target.standin is not None
    target.standin.do(lambda cluster: cluster.add_namespace("others"))
    template = prefect.ask("GET", f"/work_pools/{POOL}")["base_job_template"]
    given = template["variables"]["properties"]
    before = {name: dict(one) for name, one in given.items()}
    given["image"]["default"] = "registry.example.com/flows:1"
    given["namespace"]["default"] = "others"
    given["env"]["default"] = {"GREETING": "from the pool"}
    given["finished_job_ttl"]["default"] = 60
    change = {"base_job_template": template}
    deployment = prefect.deploy("changed")
    try:
        prefect.ask("PATCH", f"/work_pools/{POOL}", change)
        run = prefect.start(deployment)
        until_state(prefect, run, "Completed", agent)
    finally:
        given.update(before)
        prefect.ask("PATCH", f"/work_pools/{POOL}", change)
    assert jobs(target, run) == []
    (job,) = jobs(target, run, "others")
    assert job["spec"]["ttlSecondsAfterFinished"] == 60
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/flows:1"
    prints(prefect, run, "greeting from the pool")


def test_a_run_that_dies_has_crashed(prefect: Prefect, agent: Agent, target: Target) -> None:
    """Prefect's observer sees it, for which only the agent's settings name the cluster."""
    run = running(prefect, agent, prefect.deploy("dies"))
    (pod,) = pods_of(target, run)
    assert target.standin is not None
    target.standin.do(lambda cluster: cluster.evict(pod))
    until_state(prefect, run, "Crashed", agent)
    assert pods_of(target, run) == []


def test_a_cancelled_run_ends_with_its_pod(prefect: Prefect, agent: Agent, target: Target) -> None:
    run = running(prefect, agent, prefect.deploy("cancelled"))
    prefect.run("flow-run", "cancel", run)
    until_state(prefect, run, "Cancelled", agent)
    until("its pod has ended", lambda: pods_of(target, run), equals=[])


def test_a_worker_by_itself_runs_users_deployments(
    prefect: Prefect, target: Target, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Where no cluster of ours is known: as `prefect worker start --type kubernetes`."""
    env = {**prefect.env, "KUBECONFIG": str(target.kubeconfig), "DET_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "alone"]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            [*command, "--type", "determined-kubernetes"], env=env, stdout=log, stderr=log
        )
    read = lambda: (tmp_path / "log").read_text()  # noqa: E731
    try:
        until("it works", lambda: "started!" in read(), show=read)
        run = prefect.start(prefect.deploy("alone", "--pool", "alone"))
        until_state(prefect, run, "Completed")
        assert len(jobs(target, run)) == 1
        worker.send_signal(signal.SIGINT)
        worker.wait(TIMEOUT_S)
    finally:
        worker.kill()
    assert "stopped!" in read()
