"""The rest of the published `det`: what no other test here runs, each command once against one cluster.

What is absent here answers with the alternative.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from pathlib import Path

import pytest

from tests.compat.conftest import SCRIPT
from tests.compat.upstream_client import UpstreamClient
from tests.waiting import until

# The first test may have to install the client.
pytestmark = pytest.mark.timeout(900)

CONFIG = """
name: to-be-changed
entrypoint: python3 train.py
max_restarts: 0
searcher: {name: single, metric: accuracy, smaller_is_better: false}
hyperparameters: {quality: 0.1}
# With one checkpoint, the published `det trial download --latest` finds none.
checkpoint_storage: {save_trial_latest: 2}
"""


@pytest.fixture
def admin(upstream: UpstreamClient, tmp_path: Path) -> UpstreamClient:
    """The published client, logged in as the administrator."""
    found = dataclasses.replace(upstream, home=tmp_path / "home")
    found.home.mkdir()
    found.login("admin", found.passwords["admin"])
    return found


@pytest.fixture
def experiment(admin: UpstreamClient, tmp_path: Path) -> int:
    """A completed experiment of one trial."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(SCRIPT)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    number = admin.create(config, str(tmp_path / "model"))
    admin.wait(number)
    return number


def listed(admin: UpstreamClient, what: str, experiment: int, column: str) -> list[str]:
    text = admin.det("experiment", what, str(experiment), "--csv").stdout
    return [row[column] for row in csv.DictReader(io.StringIO(text))]


def test_of_experiments(admin: UpstreamClient, experiment: int, tmp_path: Path) -> None:
    number = str(experiment)
    (trial,) = listed(admin, "list-trials", experiment, "Trial ID")
    checkpoint = listed(admin, "list-checkpoints", experiment, "UUID")[0]
    assert "'renamed'" in admin.det("experiment", "set", "name", number, "renamed").stdout
    kept = ("--save-experiment-best", "0", "--save-trial-best", "2", "--save-trial-latest", "2")
    admin.det("experiment", "set", "gc-policy", "--yes", *kept, number)
    said = admin.det("experiment", "set", "weight", number, "1.5", code=1).stderr
    assert "only one that has not ended is in a queue" in said

    name = f"of-{number}"
    admin.det("workspace", "create", name)
    admin.det("project", "create", name, "moved")
    assert "Moved" in admin.det("experiment", "move", number, name, "moved").stdout
    assert "renamed" in admin.det("project", "list-experiments", name, "moved").stdout

    assert "Killed trial" in admin.det("trial", "kill", trial).stdout
    admin.det("trial", "support-bundle", trial, "-o", str(tmp_path))
    assert list(tmp_path.glob("det-bundle-trial-*.tar.gz"))
    admin.det("trial", "download", trial, "--latest", "-o", str(tmp_path / "files"))
    assert (tmp_path / "files" / "state.txt").exists()
    assert "Deletion" in admin.det("checkpoint", "delete", checkpoint, "--yes").stdout
    assert "Deletion" in admin.det("experiment", "delete", number, "--yes").stdout
    until(
        "the experiment is deleted",
        lambda: (
            admin._run(
                ["-m", "determined.cli", "experiment", "describe", number], None, 60
            ).returncode
        ),
    )
    admin.det("workspace", "delete", name, "--yes")


def test_of_the_cluster(admin: UpstreamClient) -> None:
    (agent,) = {one["id"] for one in admin.json("agent", "list")}
    assert "Disabled" in admin.det("agent", "disable", agent).stderr
    assert "Enabled" in admin.det("agent", "enable", agent).stderr
    assert "Disabled slot 0" in admin.det("slot", "disable", agent, "0").stdout
    assert "Enabled slot 0" in admin.det("slot", "enable", agent, "0").stdout
    assert "tensorboard_timeout" in admin.det("master", "config", "show").stdout
    assert "determined_service" in admin.det("master", "logs").stdout
    admin.det("master", "cluster-message", "set", "-m", "closed tonight")
    assert "closed tonight" in admin.det("master", "cluster-message", "get").stdout
    admin.det("master", "cluster-message", "clear")
    assert "closed" not in admin.det("master", "cluster-message", "get").stdout
    assert "default" in admin.det("rp", "bindings", "list-workspaces", "default").stdout
    for verb in ("add", "replace"):
        said = admin.det("rp", "bindings", verb, "default", "Uncategorized", code=1).stderr
        assert "which every workspace may use: it cannot be bound" in said
    admin.det("rp", "bindings", "remove", "default", "Uncategorized")
    assert "admin" in admin.det("dev", "curl", "/api/v1/me").stdout
    assert "admin" in admin.det("dev", "bindings", "call", "get_GetMe").stdout
    assert "get_GetMe" in admin.det("dev", "bindings", "list").stdout
    assert len(admin.det("dev", "auth-token").stdout.strip()) > 20


def test_of_users_and_tasks(admin: UpstreamClient) -> None:
    admin.det("user", "create", "resting", "--password", "Secret-1-word")
    admin.det("user", "deactivate", "resting")
    admin.det("user", "activate", "resting")
    linked = ("--agent-uid", "1000", "--agent-gid", "1000", "--agent-user", "u", "--agent-group")
    admin.det("user", "link-with-agent-user", "resting", *linked, "g")
    admin.det("user", "rename", "resting", "rested")
    assert "rested" in admin.det("user", "list").stdout
    admin.det("workspace", "list-members", "Uncategorized")

    started = admin.det("notebook", "start", "-d")
    found = re.search(r"[0-9a-f-]{36}", started.stdout + started.stderr)
    assert found is not None, started
    assert "resource_pool" in admin.det("notebook", "config", found[0]).stdout
    admin.det("notebook", "logs", found[0])
    admin.det("notebook", "kill", found[0])


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("auth list-providers", "No SSO providers found"),
        ("auth login", "No SSO providers found"),
        ("oauth client list", "Determined Enterprise Edition is required"),
        ("oauth client add name http://x", "Determined Enterprise Edition is required"),
        ("oauth client remove 1", "Determined Enterprise Edition is required"),
        ("task cleanup-logs", "logs are kept until their experiment is deleted"),
        ("experiment set log-retention 1 --days 3", "logs are kept until their experiment"),
        ("trial set log-retention 1 --forever", "logs are kept until their experiment"),
        ("workspace bindings list Uncategorized", "namespaces belong to resource pools"),
        ("workspace bindings set Uncategorized --namespace n", "namespaces belong to"),
        ("workspace bindings delete Uncategorized", "namespaces belong to resource pools"),
        ("workspace resource-quota set Uncategorized 3", "and quotas to users"),
    ],
)
def test_what_is_absent_says_so(admin: UpstreamClient, command: str, says: str) -> None:
    done = admin.det(*command.split(), code=0 if command.startswith("auth") else 1)
    assert says in done.stdout + done.stderr
