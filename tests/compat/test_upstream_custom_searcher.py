"""A custom searcher under Determined's own client, the last one that had them, against this service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.compat.upstream_client import UpstreamClient, installed_python
from tests.integration.test_custom_search import SEARCH, check_trials, write_search
from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until

pytestmark = pytest.mark.timeout(900)

VERSION = "0.37.0"
RUN = """
import os
import determined as det
from determined.experimental import client

assert det.__version__ == "0.37.0"
client.login(os.environ["DET_MASTER"], "determined", os.environ["SECRET"])
runner = searcher.LocalSearchRunner(method, pathlib.Path("state"))
print("ended", runner.run("trials.yaml", "model"), runner.state.experiment_completed, flush=True)
"""


@pytest.fixture(scope="session")
def old_client(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> UpstreamClient:
    """The published client of that release, at this session's cluster."""
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    home = tmp_path_factory.mktemp("old-upstream-home")
    return UpstreamClient(
        installed_python(VERSION), home, record["master_url"], record["passwords"]
    )


def start(client: UpstreamClient, folder: Path) -> subprocess.Popen[bytes]:
    env = {**client.env, "SECRET": client.passwords["determined"], "PYTHONWARNINGS": "ignore"}
    with (folder / "search.log").open("ab") as log:
        return subprocess.Popen(
            [str(client.python), "search.py"], cwd=folder, env=env, stdout=log, stderr=log
        )


def test_the_examples_asha_runs_unchanged_and_survives_a_kill(
    old_client: UpstreamClient, cluster: LocalCluster, tmp_path: Path
) -> None:
    folder = write_search(tmp_path / "search", RUN)
    log = folder / "search.log"
    assert SEARCH in (folder / "search.py").read_text()
    process = start(old_client, folder)
    until(
        "three validations",
        lambda: log.read_text().count("validationCompleted(") >= 3 or process.poll() is not None,
        show=log.read_text,
    )
    assert process.poll() is None, log.read_text()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process = start(old_client, folder)
    assert process.wait(TIMEOUT_S) == 0, log.read_text()
    word, experiment, completed = log.read_text().splitlines()[-1].split()
    assert (word, completed) == ("ended", "True"), log.read_text()
    check_trials(cluster, int(experiment))
