"""The published `det` with commands and generic tasks."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import yaml

from tests.compat.upstream_client import UpstreamClient

# The first test may have to install the client.
pytestmark = pytest.mark.timeout(900)

EXPERIMENT = """
name: curves
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 1}}
"""
TRAIN = """
import determined as det
with det.core.init() as core:
    core.train.report_validation_metrics(1, {"loss": 1.0})
"""


def test_commands(upstream: UpstreamClient, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from the context\n")
    ran = upstream.det(
        "cmd", "run", "-c", str(tmp_path), "--config", "description=c", "cat", "a.txt"
    )
    assert "from the context" in ran.stdout
    variable = "environment.environment_variables=[X_OF_MINE=7]"
    shell = ("cmd", "run", "--config", variable, "env | grep X_OF_MINE; exit 3")
    assert "|| X_OF_MINE=7" in upstream.det(*shell).stdout
    hook = tmp_path / "startup-hook.sh"
    hook.write_text("export FROM_HOOK=yes\n")
    hooked = upstream.det("cmd", "run", "-i", str(hook), "env | grep FROM_HOOK && echo 'and so on'")
    assert "|| FROM_HOOK=yes" in hooked.stdout and "|| and so on" in hooked.stdout
    hook.write_text("echo by the hook alone\n")
    alone = upstream.det("cmd", "run", "-i", str(hook), "--config", "description=hook")
    assert "|| by the hook alone" in alone.stdout
    hook.unlink()
    wide = upstream.det("cmd", "run", "--config", "resources.slots=99", "true", code=1).stderr
    assert "request unfulfillable: resources.slots: 99 slots" in wide
    task_id = upstream.det("cmd", "run", "-d", "sleep", "100").stdout.strip()
    assert "to 7" in upstream.det("cmd", "set", "priority", task_id, "7").stdout
    assert "sleep" in upstream.det("cmd", "config", task_id).stdout
    upstream.det("cmd", "kill", task_id[:8])
    upstream.det("cmd", "logs", "-f", task_id)
    listed = {one["id"]: one for one in upstream.json("cmd", "list")}
    assert (listed[task_id]["state"], listed[task_id]["exitStatus"]) == (
        "TERMINATED",
        "killed by the user",
    )
    assert "c" in {one["description"] for one in listed.values()}
    described = upstream.json("cmd", "describe", task_id)
    assert (described["workspaceName"], described["resourcePool"]) == ("Uncategorized", "default")
    started = upstream.det("notebook", "start", "-d", "--config", "resources.slots=0")
    notebook = started.stdout.strip()
    assert notebook in {one["id"] for one in upstream.json("notebook", "list")}
    upstream.det("notebook", "kill", notebook)


def test_a_tensorboard_and_its_address(upstream: UpstreamClient, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(EXPERIMENT)
    (tmp_path / "train.py").write_text(TRAIN)
    experiment = upstream.create(tmp_path / "task.yaml", str(tmp_path))
    upstream.wait(experiment)
    board = upstream.det("tensorboard", "start", "-d", str(experiment)).stdout.strip()
    (found,) = [one for one in upstream.json("tensorboard", "list") if one["id"] == board]
    assert found["experimentIds"] == [experiment]
    assert "to 7" in upstream.det("tensorboard", "set", "priority", board, "7").stdout
    assert "bind_mounts" in upstream.det("tensorboard", "config", board).stdout
    browser = {"BROWSER": "echo opens %s"}
    said = upstream.det("tensorboard", "open", board, more=browser).stdout
    (opened,) = [line for line in said.splitlines() if line.startswith("opens ")]
    page = httpx.get(opened.removeprefix("opens "), follow_redirects=True)
    # The page that asks for the password, and then leads to the TensorBoard.
    assert page.status_code == 200 and f"To open task {board}" in page.text
    assert dict(page.url.params) == {"task": board, "next": f"/proxy/{board}/"}
    upstream.det("tensorboard", "kill", board[:8])
    upstream.det("tensorboard", "logs", board)


def test_generic_tasks(upstream: UpstreamClient, tmp_path: Path) -> None:
    config = tmp_path / "task.yaml"
    config.write_text("entrypoint: [sleep, '100']\nresources: {slots: 0}\n")
    said = upstream.det("task", "create", str(config)).stdout
    task_id = said.split()[-1]
    upstream.det("task", "pause", task_id)
    upstream.det("task", "unpause", task_id)
    shown = yaml.safe_load(upstream.det("task", "config", task_id).stdout)
    assert shown == yaml.safe_load(config.read_text())
    forked = upstream.det("task", "fork", task_id).stdout.split()[-1]
    assert forked != task_id
    running = upstream.json("task", "list").values()
    assert {task_id, forked} <= {one["taskId"] for one in running}
    for one in (task_id, forked):
        upstream.det("task", "kill", one)
