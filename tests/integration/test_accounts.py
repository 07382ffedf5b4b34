"""A second user of the machine, and trials under separate accounts: the paths that each can reach.

The table of docs/inside/security.md is made here: the test fails when the page says something else.
"""

from __future__ import annotations

import dataclasses
import json
import pwd
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.common.api import Session
from determined_deployments.local import daemon
from determined_deployments.local import state as states
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import ClusterState
from tests import accounts
from tests.local_cluster import LocalCluster

PROBE = Path(__file__).with_name("account_probe.py")
PAGE = Path(__file__).parents[2] / "docs" / "inside" / "security.md"

CONFIG = """
name: accounts
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 1}}
max_restarts: 0
"""

STAYS = """
import json, os, time
import determined

with determined.core.init() as core:
    with core.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("of this trial")
    print("facts", json.dumps({
        "pid": os.getpid(), "uid": os.getuid(), "workdir": os.getcwd(), "checkpoint": uuid,
        "run": os.environ["DET_RUN_DIR"], "tmp": os.environ["TMPDIR"],
    }), flush=True)
    while not core.preempt.should_preempt():
        time.sleep(0.2)
"""

LOOKS = """
import os, runpy, sys
import determined

with determined.core.init() as core:
    assert os.getuid() == UID
    with core.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("of the other trial")
    core.train.report_validation_metrics(1, {"loss": 1.0})
sys.argv[1:] = ["facts.json"]
runpy.run_path("probe.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A separate cluster: accounts open some of its folders, which other tests expect to be closed."""
    with LocalCluster.running() as running:
        yield running


@pytest.fixture(scope="module")
def people() -> Iterator[list[pwd.struct_passwd]]:
    with accounts.made(3) as made:
        yield made


def user_linked_with(
    cluster: LocalCluster, state: ClusterState, account: pwd.struct_passwd, folder: Path
) -> LocalCluster:
    """A new user of the cluster whose tasks run as ``account``; the cluster as this user sees it."""
    name, password = f"user-{secrets.token_hex(3)}", secrets.token_urlsafe(9)
    link = {
        "agentUid": account.pw_uid,
        "agentGid": account.pw_gid,
        "agentUser": account.pw_name,
        "agentGroup": account.pw_name,
    }
    with Session(state.master_url, state.agent_token) as session:
        user = {"username": name, "active": True, "agentUserGroup": link}
        session.post("/api/v1/users", json={"user": user, "password": password})
    env = {"DET_USER": name, "DET_PASS": password, "DET_DEBUG_CONFIG_PATH": str(folder / name)}
    return dataclasses.replace(cluster, env={**cluster.env, **env})


def facts(cluster: LocalCluster, state: ClusterState, trial: dict[str, Any]) -> dict[str, Any]:
    layout = Layout.of(cluster.data_dir)
    agent = daemon.running(layout, "agent")
    assert agent is not None
    (scratch,) = json.loads((layout.agent_work / "scratch.json").read_text())
    return {
        "data": str(cluster.data_dir),
        "service": state.master_url,
        "prefect": state.prefect_url,
        "postgres": state.postgres_port,
        "postgres_sockets": [
            str(path) for path in Path("/tmp").glob(f".s.PGSQL.{state.postgres_port}")
        ],
        "fork_servers": f"{scratch}/zygotes",
        "agent": agent.pid,
        "trial": trial,
    }


def by_hand(
    folder: Path, given: dict[str, Any], account: pwd.struct_passwd | None
) -> dict[str, str]:
    """The probe, started from a shell of that account; None: the cluster's account."""
    (folder / "facts.json").write_text(json.dumps(given))
    (folder / "probe.py").write_text(PROBE.read_text())
    for path in folder.iterdir():
        path.chmod(0o644)
    done = subprocess.run(
        [sys.executable, "probe.py", "facts.json"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )
    assert done.returncode == 0, done.stderr
    return probed(done.stdout)


def probed(text: str) -> dict[str, str]:
    (line,) = [line for line in text.splitlines() if "probed {" in line]
    found: dict[str, str] = json.loads(line[line.index("probed {") + 7 :])
    return found


def test_the_paths_of_each_account(
    cluster: LocalCluster,
    people: list[pwd.struct_passwd],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    state = states.load(Layout.of(cluster.data_dir))
    assert state is not None
    one, two, neighbour = people
    first = user_linked_with(cluster, state, one, tmp_path)
    second = user_linked_with(cluster, state, two, tmp_path)
    stays = first.submit(tmp_path / "one", CONFIG, train_py=STAYS)
    request.addfinalizer(lambda: first.det("experiment", "kill", str(stays)))
    (line,) = first.wait_for_lines(stays, "facts {")
    trial = json.loads(line[line.index("facts {") + 6 :])
    assert trial["uid"] == one.pw_uid
    given = facts(cluster, state, trial)

    script = LOOKS.replace("UID", str(two.pw_uid))
    files = {"train_py": script, "probe_py": PROBE.read_text(), "facts_json": json.dumps(given)}
    looks = second.submit(tmp_path / "two", CONFIG, **files)
    (log,) = second.wait_for_lines(looks, "probed {")
    with accounts.passable_folder() as folder:
        columns = {
            "another user": by_hand(folder, given, neighbour),
            "trial with an account": probed(log),
        }
    table = [f"| what | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    table += [
        f"| {what} | {' | '.join(column[what] for column in columns.values())} |"
        for what in columns["another user"]
    ]
    text = "\n".join(table)
    assert text in PAGE.read_text(), f"docs/inside/security.md must have this table:\n{text}"


def test_the_agents_own_account_reaches_everything(
    cluster: LocalCluster,
    people: list[pwd.struct_passwd],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Check that the probe finds open things: under the cluster's account it is refused nothing."""
    state = states.load(Layout.of(cluster.data_dir))
    assert state is not None
    stays = cluster.submit(tmp_path / "own", CONFIG, train_py=STAYS)
    request.addfinalizer(lambda: cluster.det("experiment", "kill", str(stays)))
    (line,) = cluster.wait_for_lines(stays, "facts {")
    found = by_hand(
        tmp_path, facts(cluster, state, json.loads(line[line.index("facts {") + 6 :])), None
    )
    denied = {what for what, answer in found.items() if "permitted" in answer or "denied" in answer}
    assert denied == set()


def test_the_clusters_account_for_trials(
    cluster: LocalCluster, people: list[pwd.struct_passwd], tmp_path: Path
) -> None:
    cluster.up("--task-user", people[0].pw_name)
    try:
        script = "import getpass, os\nprint('runs as', os.getuid(), getpass.getuser())"
        experiment = cluster.submit(tmp_path, CONFIG, train_py=script)
        (line,) = cluster.wait_for_lines(experiment, "runs as")
    finally:
        cluster.up("--task-user", "")
    assert f"runs as {people[0].pw_uid} {people[0].pw_name}" in line
