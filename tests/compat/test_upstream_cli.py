"""The published `det` against this service: it reads our JSON and prints it."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from determined.__version__ import __version__
from determined.experimental import Determined
from determined_service.access.throttle import PAIR
from tests.compat.conftest import Submitted
from tests.compat.upstream_client import VERSION, UpstreamClient
from tests.local_cluster import LocalCluster
from tests.waiting import until

# The first test may have to install the client.
pytestmark = pytest.mark.timeout(900)

SLEEPER = """
import time
import determined as det

with det.core.init() as core_context:
    print("started", flush=True)
    while not core_context.preempt.should_preempt():
        time.sleep(0.1)
"""


def described(upstream: UpstreamClient, number: int) -> dict[str, Any]:
    (found,) = upstream.json("e", "describe", str(number))
    return dict(found["experiment"])


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_login_and_logout(upstream: UpstreamClient, tmp_path: Path) -> None:
    own = dataclasses.replace(upstream, home=tmp_path)
    assert "Invalid username/password" in own.login("admin", "wrong", code=1)
    own.login("admin", own.passwords["admin"])
    assert own.json("master", "config")["feature_switches"] == []
    assert "logged in as user 'admin'" in own.det("user", "whoami").stdout
    own.det("user", "logout")
    assert "Unauthenticated" in own.det("user", "whoami", code=1).stderr


def test_change_password(upstream: UpstreamClient, tmp_path: Path) -> None:
    """The published client has no field for the old password: its recent login replaces it."""
    admin = Determined(upstream.master, "admin", upstream.passwords["admin"])
    pia = admin.create_user("pia", admin=False, password="First-1-password")
    own = dataclasses.replace(upstream, home=tmp_path)
    own.login("pia", "First-1-password")
    new = "Second-2-password"
    own.det("user", "change-password", input=f"{new}\n{new}\n")
    assert "logged in as user 'pia'" in own.det("user", "whoami").stdout
    assert "Invalid username/password" in own.login("pia", "First-1-password", code=1)
    own.login("pia", new)
    own.login("admin", own.passwords["admin"])
    third = "Third-3-password"
    own.det("user", "change-password", "pia", input=f"{third}\n{third}\n")
    own.login("pia", third)
    pia.deactivate()


def test_access_after_the_wait(upstream: UpstreamClient, tmp_path: Path) -> None:
    admin = Determined(upstream.master, "admin", upstream.passwords["admin"])
    quinn = admin.create_user("quinn", admin=False, password="First-1-password")
    guess = {"username": "quinn", "password": "guess"}
    answers: list[int] = []

    def asked(given: dict[str, str]) -> int:
        return httpx.post(
            f"{upstream.master}/api/v1/auth/login", json=given, timeout=60
        ).status_code

    while 429 not in answers:
        answers.append(asked(guess))
        assert len(answers) < 5 * PAIR.burst
    right = guess | {"password": "First-1-password"}
    until("quinn may try again", lambda: asked(right), equals=200)
    dataclasses.replace(upstream, home=tmp_path).login("quinn", "First-1-password")
    quinn.deactivate()


def test_the_cluster(upstream: UpstreamClient, cluster: LocalCluster) -> None:
    info = yaml.safe_load(upstream.det("master", "info").stdout)
    assert info["clusterId"] in (cluster.data_dir / "cluster.json").read_text()
    assert info["version"] == __version__
    said = upstream.det("version")
    versions = yaml.safe_load(said.stdout)
    assert versions["client"]["version"] == versions["master"]["version"] == VERSION
    assert versions["master"]["service_version"] == __version__
    # No word about versions that differ, which it has at every call otherwise.
    assert upstream.det("user", "whoami").stderr == said.stderr == ""
    (agent,) = upstream.json("agent", "list")
    assert (agent["num_slots"], agent["enabled"], agent["resource_pools"]) == (2, True, "default")
    assert yaml.safe_load(upstream.det("master", "cluster-message", "get").stdout) == {
        "clusterMessage": None
    }
    told = upstream.det("master", "cluster-message", "set", "-m", "x", "-d", "1h", code=1).stderr
    assert "only an administrator may set the message of the cluster" in told
    slots = upstream.json("slot", "list")
    assert [(slot["slot_id"], slot["type"]) for slot in slots] == [("0", "cpu"), ("1", "cpu")]


def test_reading_an_experiment(upstream: UpstreamClient, submitted: Submitted) -> None:
    number = str(submitted.id)
    rows = {row["ID"]: row for row in table(upstream.det("e", "list", "--csv").stdout)}
    row = rows[number]
    assert (row["Name"], row["State"]) == ("from-the-published-client", "COMPLETED")
    assert (row["Owner"], row["Progress"]) == ("determined", "100.0%")
    found = described(upstream, submitted.id)
    assert found["state"] == "STATE_COMPLETED"
    assert found["labels"] == ["compat"]
    assert found["numTrials"] == 2
    config = yaml.safe_load(upstream.det("e", "config", number).stdout)
    assert config["entrypoint"] == "python3 train.py"
    assert config["searcher"]["metric"] == "accuracy"
    trials = table(upstream.det("e", "list-trials", number, "--csv").stdout)
    assert [row["State"] for row in trials] == ["COMPLETED", "COMPLETED"]
    assert [row["# of Batches"] for row in trials] == ["6", "6"]


def test_metrics_of_an_experiment(upstream: UpstreamClient, submitted: Submitted) -> None:
    said = upstream.det("e", "describe", str(submitted.id), "--metrics", "--csv").stdout
    workloads = table(said[said.index("Workloads:\n") + len("Workloads:\n") :])
    assert len(workloads) == 12
    assert {row["Training Metric: grad"] for row in workloads} == {"Infinity"}
    validated = [row for row in workloads if row["Validation State"]]
    found = sorted(float(row["Validation Metric: accuracy"]) for row in validated)
    assert found == pytest.approx([0.06, 0.12, 0.3, 0.6])
    # Of each trial the policy keeps the best one and the latest.
    assert {row["Checkpoint State"] for row in validated} <= {"COMPLETED", "DELETED"}


def test_best_checkpoints_first(upstream: UpstreamClient, submitted: Submitted) -> None:
    said = upstream.det("e", "list-checkpoints", str(submitted.id), "--best", "2", "--csv").stdout
    best, second = table(said)
    assert float(best["Validation Metric"]) == pytest.approx(0.6)
    assert float(second["Validation Metric"]) == pytest.approx(0.3)
    assert best["# of Batches"] == "6"


def test_logs(upstream: UpstreamClient, submitted: Submitted) -> None:
    said = upstream.det("e", "logs", str(submitted.id)).stdout
    lines = [line.partition("|| ")[2] for line in said.splitlines()]
    assert [line for line in lines if line.startswith("step")] == [f"step {i}" for i in range(1, 7)]
    (trial, _) = table(upstream.det("e", "list-trials", str(submitted.id), "--csv").stdout)
    number = trial["Trial ID"]
    warnings = upstream.det("t", "logs", number, "--level", "WARNING").stdout.splitlines()
    assert warnings[0].endswith("root: almost done")
    assert "|| WARNING: [" in warnings[0]
    assert "step" not in "".join(warnings)
    followed = upstream.det("t", "logs", "-f", number, "--stdtype", "stderr").stdout
    assert "on stderr" in followed
    assert "step" not in followed
    assert "step 1\n" in upstream.det("t", "logs", number, "--head", "1").stdout


def test_describing_a_trial(upstream: UpstreamClient, submitted: Submitted) -> None:
    (number, _) = (
        row["Trial ID"]
        for row in table(upstream.det("e", "list-trials", str(submitted.id), "--csv").stdout)
    )
    found = upstream.json("t", "describe", number, "--metrics")
    trial = found["trial"]
    assert trial["state"] == "STATE_COMPLETED"
    assert trial["experimentId"] == submitted.id
    quality = trial["hparams"]["quality"]
    assert trial["bestValidation"]["metrics"]["avgMetrics"]["accuracy"] == quality * 6
    assert trial["bestCheckpoint"]["totalBatches"] == 6
    summary = trial["summaryMetrics"]["avg_metrics"]["loss"]
    assert (summary["count"], summary["max"]) == (6, 1.0)
    assert len(found["workloads"]) == 6 + 2 + 2


def test_downloads(upstream: UpstreamClient, submitted: Submitted, tmp_path: Path) -> None:
    upstream.det("e", "download-model-def", str(submitted.id), "--output-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as tar:
        file = tar.extractfile("train.py")
        assert file is not None
        assert file.read() == (submitted.model / "train.py").read_bytes()
    upstream.det("e", "download", str(submitted.id), "-o", str(tmp_path / "best"), "-q")
    (folder,) = (tmp_path / "best").iterdir()
    assert (folder / "state.txt").read_text() == "0.1 6"
    described = upstream.det("c", "describe", folder.name).stdout
    assert '"accuracy": 0.6' in described
    one = tmp_path / "one"
    upstream.det("c", "download", folder.name, "-o", str(one), "--mode", "direct")
    proxied = tmp_path / "proxied"
    upstream.det("c", "download", folder.name, "-o", str(proxied), "--mode", "master")
    for path in ("state.txt", "metadata.json"):
        assert (proxied / path).read_bytes() == (one / path).read_bytes()
    assert (one / "state.txt").read_text() == "0.1 6"
    assert '"steps_completed": 6' in (one / "metadata.json").read_text()


def test_living_experiments(upstream: UpstreamClient, submitted: Submitted, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLEEPER)
    override = ("--config", "searcher={name: single, metric: x}", "--config", "name=sleeper")
    number = upstream.create(submitted.config, str(tmp_path), *override)
    held = until(
        "a slot for the trial",
        lambda: [s for s in upstream.json("slot", "list") if s["allocation_id"] != "FREE"],
    )
    assert held[0]["allocation_id"].startswith(f"{number}.")
    assert "sleeper" in held[0]["task_name"]
    job = described(upstream, number)["jobId"]
    upstream.det("job", "update", job, "-p", "7")
    upstream.det("job", "update-batch", f"{job}.weight=2")
    upstream.det("e", "set", "priority", str(number), "8")
    upstream.det("e", "set", "max-slots", str(number), "1")
    (row,) = [row for row in table(upstream.det("job", "list", "--csv").stdout) if row["ID"] == job]
    assert (row["Priority"], row["Slots (acquired/needed)"]) == ("8", "1/1")
    assert (row["State"], row["Job Name"]) == ("STATE_SCHEDULED", f"sleeper ({number})")
    upstream.det("e", "kill", str(number))
    upstream.wait(number, code=1)
    assert described(upstream, number)["state"] == "STATE_CANCELED"
    paused = upstream.create(submitted.config, str(tmp_path), *override, "--paused")
    assert described(upstream, paused)["state"] == "STATE_PAUSED"
    upstream.det("e", "cancel", str(paused))
    upstream.wait(paused, code=1)


def test_following_and_trying_out(upstream: UpstreamClient, submitted: Submitted) -> None:
    config, model = str(submitted.config), str(submitted.model)
    followed = upstream.det("e", "create", config, model, "-f").stdout
    assert "|| step 6" in followed
    assert "resources exited successfully with a zero exit code" in followed
    tried = upstream.det("e", "create", config, model, "-t", "--config", "searcher.max_length=6")
    assert "Model definition test succeeded" in tried.stdout


def test_changing_an_experiment(upstream: UpstreamClient, submitted: Submitted) -> None:
    number = str(submitted.id)
    upstream.det("e", "label", "add", number, "later")
    upstream.det("e", "set", "description", number, "by the published client")
    upstream.det("e", "archive", number)
    found = described(upstream, submitted.id)
    assert found["labels"] == ["compat", "later"]
    assert found["description"] == "by the published client"
    assert found["archived"] is True
    upstream.det("e", "unarchive", number)
    upstream.det("e", "label", "remove", number, "later")
    refused = upstream.det("e", "set", "priority", number, "3", code=1).stderr
    assert "only one that has not ended is in a queue" in refused


def test_accounting(upstream: UpstreamClient, submitted: Submitted) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    times = (f"{today}T00:00:00Z", f"{today + datetime.timedelta(days=1)}T00:00:00Z")
    for verb in ("raw", "allocations"):
        rows = list(csv.DictReader(io.StringIO(upstream.det("res", verb, *times).stdout)))
        mine = [row for row in rows if row["experiment_id"] == str(submitted.id)]
        assert len(mine) >= 2 and {row["username"] for row in mine} == {"determined"}
        assert all(float(row["seconds"]) > 0 for row in mine)
        if verb == "allocations":
            assert {row["workspace_name"] for row in mine} == {"Uncategorized"}
    entries = json.loads(upstream.det("res", "raw", *times, "--json").stdout)["resourceEntries"]
    assert submitted.id in [entry["experimentId"] for entry in entries]
    months = upstream.det("res", "agg", f"{today:%Y-%m}", f"{today:%Y-%m}", "--monthly").stdout
    assert months.startswith("aggregation_type,aggregation_key,date,seconds\n")
    assert f",{today:%Y-%m}," in months
    days = upstream.det("res", "agg", str(today), str(today), "--json").stdout
    (day,) = json.loads(days)["resourceEntries"]
    assert day["byUsername"]["determined"] > 0


def test_templates(upstream: UpstreamClient, submitted: Submitted, tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    file.write_text("debug: false\nlabels: [of-template]\n")
    upstream.det("template", "create", "shared", str(file))
    assert "exists already" in upstream.det("tpl", "create", "shared", str(file), code=1).stderr
    assert yaml.safe_load(upstream.det("tpl", "describe", "shared").stdout)["debug"] is False
    file.write_text("debug: true\nlabels: [of-template]\n")
    upstream.det("tpl", "set-value", "config", "shared", str(file))
    upstream.det("tpl", "set", "another", str(file))
    listed = upstream.det("tpl", "list").stdout
    assert "shared" in listed and "another" in listed and "Uncategorized" in listed
    assert "debug: true" in upstream.det("tpl", "ls", "-d").stdout
    words = (str(submitted.config), str(submitted.model), "--paused", "--template", "shared")
    number = upstream.det("e", "create", *words).stdout.split()[-1]
    config = described(upstream, int(number))["config"]
    assert config["debug"] is True
    assert "of-template" in config["labels"]
    upstream.det("e", "kill", number)
    preview = upstream.det("notebook", "start", "--preview", "--template", "shared").stdout
    assert "environment" in preview
    for name in ("shared", "another"):
        upstream.det("tpl", "remove", name)
    assert "not found" in upstream.det("tpl", "describe", "shared", code=1).stderr


def test_config_policies(upstream: UpstreamClient, submitted: Submitted, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("invariant_config: {debug: true}\nconstraints: {resources: {max_slots: 1}}\n")
    upstream.det("workspace", "create", "policed")
    upstream.det("project", "create", "policed", "one")
    place = ("-w", "policed")
    said = upstream.det("config-policies", "set", "experiment", str(file), *place).stdout
    assert "Set experiment config policies for workspace policed" in said
    assert "max_slots: 1" in said
    found = upstream.det("cp", "describe", "experiment", *place, "--json").stdout
    assert json.loads(found)["constraints"] == {"resources": {"max_slots": 1}}
    assert upstream.det("cp", "describe", "tasks", *place).stdout.strip() == "{}"
    words = (str(submitted.config), str(submitted.model), "--paused")
    words += ("--config", "workspace=policed", "--config", "project=one")
    refused = upstream.det("e", "create", *words, "--config", "resources.slots_per_trial=2", code=1)
    assert "at most 1 are allowed: the config policy of workspace policed" in refused.stderr
    assert "only an administrator" in upstream.det("cp", "set", "tasks", str(file), code=1).stderr
    upstream.det("cp", "delete", "experiment", *place)
    assert upstream.det("cp", "describe", "experiment", *place).stdout.strip() == "{}"
    upstream.det("workspace", "delete", "policed", "--yes")


def test_access_tokens(upstream: UpstreamClient) -> None:
    made = json.loads(
        upstream.det("tkn", "create", "-e", "3", "-d", "of upstream", "--json").stdout
    )
    number = str(made["tokenId"])
    (row,) = json.loads(upstream.det("token", "describe", number, "--json").stdout)
    assert (row["description"], row["tokenType"]) == ("of upstream", "TOKEN_TYPE_ACCESS_TOKEN")
    assert "of upstream" in upstream.det("token", "list").stdout
    assert "renamed" in upstream.det("token", "edit", number, "-d", "renamed").stdout
    assert "30 days at most" in upstream.det("token", "create", "-e", "31", code=1).stderr
    assert f"revoked token {number}" in upstream.det("token", "revoke", number).stdout
    assert "renamed" not in upstream.det("token", "ls").stdout
    assert "renamed" in upstream.det("token", "ls", "--show-inactive").stdout
    another = json.loads(upstream.det("token", "create", "--json").stdout)
    upstream.det("token", "login", another["token"])
    assert "determined" in upstream.det("user", "whoami").stdout


def test_mistakes_are_explained(
    upstream: UpstreamClient, submitted: Submitted, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(submitted.config.read_text().replace("smaller_is_better", "smaler_is_better"))
    said = upstream.det("e", "create", str(wrong), str(submitted.model), code=1).stderr
    assert "did you mean 'smaller_is_better'?" in said
    assert "Traceback" not in said
    missing = upstream.det("t", "describe", "999999", code=1).stderr
    assert "trial 999999 does not exist" in missing
