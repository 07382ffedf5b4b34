"""The platform as Prefect's users see it: deployments, runs started by hand, the pages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from determined.common.wire import serving
from determined.common.wire.serving import Served
from determined_deployments.local import daemon
from determined_deployments.local.layout import Layout
from tests.integration.browser import open_browser
from tests.integration.prefect_server import Prefect
from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until

ROOT = Path(__file__).parents[2]

SCRIPT = """
import determined as det
info = det.get_cluster_info()
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        core_context.train.report_validation_metrics(op.length, {"x": info.trial.hparams["a"]})
        op.report_completed(info.trial.hparams["a"])
"""

CONFIG = """
name: from-prefect
entrypoint: python3 script.py
hyperparameters: {a: {type: categorical, vals: [1, 2, 3]}}
searcher: {name: grid, metric: x, max_concurrent_trials: 2, max_length: 1}
max_restarts: 0
"""


@pytest.fixture(scope="module")
def prefect(cluster: LocalCluster) -> Prefect:
    return Prefect(cluster)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    return folder


def test_an_experiment_started_from_prefect(
    cluster: LocalCluster, prefect: Prefect, model: Path
) -> None:
    deployment = prefect.deployment("experiment/experiment")
    run = prefect.call(
        f"/deployments/{deployment['id']}/create_flow_run",
        {"parameters": {"config": CONFIG, "model_dir": str(model)}},
    )
    ended = prefect.wait(run["id"])
    assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
    newest = cluster.json("experiment", "list", "--all")
    (experiment,) = [row for row in newest if row["name"] == "from-prefect"]
    assert cluster.describe(experiment["id"])["flowRunId"] == run["id"]
    assert len(cluster.trials(experiment["id"])) == 3


def test_a_mistake_in_the_configuration_fails_the_run_with_the_message(
    prefect: Prefect, model: Path
) -> None:
    deployment = prefect.deployment("experiment/experiment")
    run = prefect.call(
        f"/deployments/{deployment['id']}/create_flow_run",
        {"parameters": {"config": CONFIG.replace("grid", "gird"), "model_dir": str(model)}},
    )
    ended = prefect.wait(run["id"])
    assert ended["state_type"] == "FAILED"
    assert "searcher.name" in ended["state"]["message"]


def test_prefect_deploy_all(
    cluster: LocalCluster, prefect: Prefect, model: Path, tmp_path: Path
) -> None:
    """The same deployments by Prefect's own command, from a copy of the repository's root."""
    shutil.copy(ROOT / "prefect.yaml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PREFECT_API_URL": f"{prefect.url}/api",
            "PREFECT_API_AUTH_STRING": prefect.auth,
            "PREFECT_HOME": str(tmp_path / "prefect-home"),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = prefect.call("/deployments/filter", {})
    assert {"experiment", "trial"} <= {deployment["name"] for deployment in found}
    test_pool = {deployment["work_pool_name"] for deployment in found}
    assert test_pool == {"default"}
    # Their runs are still forked, in the directory of their deployment.
    deployment = prefect.deployment("experiment/experiment")
    config = CONFIG.replace("[1, 2, 3]", "[7]").replace("from-prefect", "deployed-by-hand")
    run = prefect.call(
        f"/deployments/{deployment['id']}/create_flow_run",
        {"parameters": {"config": config, "model_dir": "model"}},
    )
    ended = prefect.wait(run["id"])
    assert ended["state_type"] == "COMPLETED", ended["state"]["message"]
    (experiment,) = [
        row
        for row in cluster.json("experiment", "list", "--all")
        if row["name"] == "deployed-by-hand"
    ]
    assert cluster.trials(experiment["id"])[0]["searcherMetricValue"] == 7


def test_a_trial_under_a_stock_worker(
    cluster: LocalCluster, prefect: Prefect, model: Path, tmp_path: Path
) -> None:
    """Prefect's own worker runs the flow `trial`, which claims the leg with the run's token."""
    state = json.loads((cluster.data_dir / "cluster.json").read_text())
    blocker = tmp_path / "blocker"
    blocking = CONFIG.replace("[1, 2, 3]", "[1, 2]").replace("from-prefect", "blocker")
    holder = cluster.submit(blocker, blocking, script_py="import time; time.sleep(600)")
    until("two running trials", lambda: len(running_trials(cluster, holder)), equals=2)
    agent = daemon.running(Layout.of(cluster.data_dir), "agent")
    assert agent is not None
    worker: subprocess.Popen[bytes] | None = None
    try:
        config = tmp_path / "config.yaml"
        config.write_text(CONFIG.replace("[1, 2, 3]", "[4]"))
        done = cluster.det("flow", "run", str(config), str(model), "--detach")
        experiment = int(done.stdout.split()[-1])
        until(
            "the run of a trial",
            lambda: any(trial["flowRunId"] for trial in cluster.trials(experiment)),
        )
        (trial,) = cluster.trials(experiment)
        run_id = trial["flowRunId"]
        variables = variables_of(prefect, run_id)
        assert serving.read(state["agent_token"], variables["DET_RUN_TOKEN"]) == Served(
            serving.TRIAL, str(trial["id"])
        )
        driver = cluster.describe(experiment)["flowRunId"]
        token = variables_of(prefect, driver)["DET_RUN_TOKEN"]
        assert serving.read(state["agent_token"], token) == Served(
            serving.EXPERIMENT, str(experiment)
        )
        # The worker, not our agent, shall take the run.
        agent.suspend()
        prefect.call(f"/flow_runs/{run_id}/set_state", {"state": {"type": "SCHEDULED"}})
        # Prefect's command begins with a copy of the directory that it runs in.
        (tmp_path / "empty").mkdir()
        command = ("worker", "start", "--pool", "default", "--type", "process")
        with (tmp_path / "worker.log").open("w") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "prefect", *command],
                cwd=tmp_path / "empty",
                env={
                    **{key: value for key, value in os.environ.items() if key[:4] != "DET_"},
                    "PREFECT_API_URL": f"{prefect.url}/api",
                    "PREFECT_API_AUTH_STRING": prefect.auth,
                    "PREFECT_HOME": str(tmp_path / "prefect-home"),
                    "DET_MASTER": state["master_url"],
                    "DET_WORK_DIR": str(tmp_path / "work"),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        said = "submitting flow run"
        until("the worker has the run", lambda: said in (tmp_path / "worker.log").read_text())
        agent.resume()
        assert cluster.wait(experiment) == "COMPLETED", (tmp_path / "worker.log").read_text()
        assert cluster.trials(experiment)[0]["searcherMetricValue"] == 4
        assert prefect.wait(run_id)["state_type"] == "COMPLETED"
    finally:
        agent.resume()
        if worker is not None:
            worker.terminate()
            worker.wait()
        cluster.det("experiment", "kill", str(holder))


def variables_of(prefect: Prefect, run_id: str) -> dict[str, str]:
    """The variables that a worker sets in the run's environment."""
    run = prefect.http.get(f"/flow_runs/{run_id}").raise_for_status().json()
    found: dict[str, str] = run["job_variables"]["env"]
    return found


def running_trials(cluster: LocalCluster, experiment: int) -> list[dict[str, Any]]:
    return [trial for trial in cluster.trials(experiment) if trial["state"] == "RUNNING"]


class Page:
    """Prefect's pages behind the service's login, for an administrator."""

    def __init__(self, browser: Any, cluster: LocalCluster) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        self.browser = browser
        self.wait = WebDriverWait(browser, TIMEOUT_S)
        record = json.loads((cluster.data_dir / "cluster.json").read_text())
        own = f"prefect.localhost:{httpx.URL(record['master_url']).port}"
        self.url = f"http://{own}"
        # Input into the browser's login window. A page whose own address has it may not fetch.
        browser.get(f"http://admin:{record['passwords']['admin']}@{own}/ui-settings")
        browser.get(self.url)
        self.shows("Deployments", "Blocks")

    def find(self, selector: str) -> list[Any]:
        """By CSS, or by XPath if it begins with a slash; waits for the first."""
        from selenium.webdriver.common.by import By

        by = By.XPATH if selector.startswith("/") else By.CSS_SELECTOR
        return list(self.wait.until(lambda page: page.find_elements(by, selector)))

    def shows(self, *texts: str) -> None:
        """Waits until the page shows all the texts."""
        self.wait.until(lambda _: all(text in self.text() for text in texts))

    def text(self) -> str:
        return str(self.find("body")[0].text)

    def open_run(self, run_id: str) -> None:
        self.browser.get(f"{self.url}/runs/flow-run/{run_id}")


@pytest.fixture(scope="module")
def page(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("chromium"), network=True) as browser:
        yield Page(browser, cluster)


def test_the_experiment_and_its_subflows_on_prefects_page(
    cluster: LocalCluster, page: Page, model: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.replace("from-prefect", "seen-in-prefect"))
    done = cluster.det("flow", "run", str(config), str(model), "--detach")
    experiment = int(done.stdout.split()[-1])
    assert cluster.wait(experiment) == "COMPLETED"
    page.open_run(cluster.describe(experiment)["flowRunId"])
    page.shows(f"seen-in-prefect #{experiment}")
    # The innermost one, listed last, takes the click.
    page.find('//*[normalize-space(.)="Subflow Runs"]')[-1].click()
    try:
        page.shows(*(f"trial {trial['id']}" for trial in cluster.trials(experiment)))
    finally:
        page.browser.save_screenshot(str(tmp_path / "experiment.png"))
    asked = [json.loads(event["message"]) for event in page.browser.get_log("performance")]
    urls = [
        httpx.URL(event["message"]["params"]["response"]["url"])
        for event in asked
        if event["message"]["method"] == "Network.responseReceived"
    ]
    answered = {url.host for url in urls if url.scheme in ("http", "https")}
    assert answered == {"prefect.localhost"}, "Prefect's page reaches other hosts"


SLOW = """
import time
import determined as det
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        for step in range(10**6):
            core_context.train.report_training_metrics(step, {"loss": 1.0})
            if core_context.preempt.should_preempt():
                raise SystemExit
            time.sleep(0.1)
"""


def test_cancelling_on_prefects_page(
    cluster: LocalCluster, prefect: Prefect, page: Page, tmp_path: Path
) -> None:
    """First a trial's run, then the experiment's, as by a user of Prefect's pages."""
    config = CONFIG.replace("[1, 2, 3]", "[1, 2]").replace("from-prefect", "cancelled-there")
    experiment = cluster.submit(tmp_path, config, script_py=SLOW)
    until("two running trials", lambda: len(running_trials(cluster, experiment)), equals=2)
    until(
        "a run for each trial",
        lambda: all(trial["flowRunId"] for trial in cluster.trials(experiment)),
    )
    first, second = cluster.trials(experiment)

    def cancel(run_id: str) -> None:
        page.open_run(run_id)
        try:
            page.shows("Running")
            page.find('//button[normalize-space(.)="Cancel"]')[0].click()
            page.find('//button[normalize-space(.)="Confirm"]')[0].click()
            page.shows("Cancelled")
        finally:
            page.browser.save_screenshot(str(tmp_path / f"{run_id}.png"))

    def state(trial: dict[str, Any]) -> str:
        return str(cluster.json("trial", "describe", str(trial["id"]))["state"])

    cancel(first["flowRunId"])
    until("the first trial canceled", lambda: state(first), equals="STATE_CANCELED")
    assert state(second) == "STATE_RUNNING"
    cancel(cluster.describe(experiment)["flowRunId"])
    assert cluster.wait(experiment) == "CANCELED"
    assert state(second) == "STATE_CANCELED"
    assert prefect.wait(second["flowRunId"])["state_type"] == "CANCELLED"
