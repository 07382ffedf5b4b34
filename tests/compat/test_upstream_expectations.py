"""Assumptions of published scripts, tested with the published client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compat.conftest import Submitted
from tests.compat.upstream_client import UpstreamClient

pytestmark = pytest.mark.timeout(900)

SINGLE: dict[str, Any] = {
    "name": "looked-at-once",
    "hyperparameters": {"x": 1},
    "searcher": {"name": "single", "metric": "loss"},
}


def test_trials_exist_at_once(upstream: UpstreamClient, tmp_path: Path) -> None:
    config = tmp_path / "paused.yaml"
    search = {"name": "random", "metric": "loss", "max_trials": 3, "max_concurrent_trials": 2}
    config.write_text(yaml.safe_dump({**SINGLE, "entrypoint": "true", "searcher": search}))
    paused = upstream.create(config, "--paused")
    script = """
config = json.loads(args[0])
created = client.create_experiment(config)  # no model directory
at_once = [trial.hparams for trial in created.list_trials()]
paused = client.get_experiment(int(args[1]))
waiting = [trial.state.value for trial in paused.list_trials()]
paused.kill()
show({
    "at_once": at_once,
    "waiting": waiting,
    "image": created.config["environment"]["image"]["cpu"],
    "ends": [created.wait(interval=0.2).value, paused.wait(interval=0.2).value],
    "killed": [trial.state.value for trial in paused.list_trials()],
})
"""
    found = upstream.sdk(script, json.dumps({**SINGLE, "entrypoint": "true"}), paused)
    assert found["at_once"] == [{"x": 1}]
    assert found["waiting"] == ["STATE_PAUSED"] * 2
    assert found["image"].startswith("determinedai/environments:")
    assert found["ends"] == ["STATE_COMPLETED", "STATE_CANCELED"]
    assert found["killed"] == ["STATE_CANCELED"] * 2


def test_restarts_and_log_policies(upstream: UpstreamClient) -> None:
    script = """
from determined.common.api import bindings

def run(config):
    experiment = client.create_experiment(config)
    state = experiment.wait(interval=0.2).value
    (trial,) = experiment.list_trials()
    restarts = bindings.get_GetTrial(trial._session, trialId=trial.id).trial.restarts
    return {"state": state, "restarts": restarts, "logs": "".join(trial.logs()),
            "unranked": "".join(trial.logs(rank_ids=[-1]))}

show([run(json.loads(config)) for config in args])
"""
    policy = {"name": "fatal", "pattern": "it is fatal", "action": "cancel_retries"}
    failing = {**SINGLE, "entrypoint": "exit 3"}
    cases = [
        {**failing, "max_restarts": 0},
        {**failing, "max_restarts": 1},
        {
            **SINGLE,
            "entrypoint": "echo it is fatal; exit 1",
            "max_restarts": 2,
            "log_policies": [policy],
        },
    ]
    none, one, canceled = upstream.sdk(script, *map(json.dumps, cases), timeout=180)
    assert [each["state"] for each in (none, one, canceled)] == ["STATE_ERROR"] * 3
    assert [each["restarts"] for each in (none, one, canceled)] == [0, 1, 0]
    said = "log policy 'fatal' matched: it is fatal; the failure"
    # Lines of the service itself have no rank.
    for text in (canceled["logs"], canceled["unranked"]):
        assert said in text
        assert "trial failed and matched logs to a don't retry policy" in text
        assert "therefore will not be retried" in text
    assert said not in none["logs"]
    assert "resources failed with non-zero exit code: process exited with code 3" in none["logs"]


def test_checkpoints_and_storages(
    upstream: UpstreamClient, submitted: Submitted, tmp_path: Path
) -> None:
    # All checkpoints are kept, so none is deleted while the script reads.
    storage = {"type": "shared_fs", "host_path": str(tmp_path / "kept"), "save_trial_latest": 9}
    config = yaml.safe_load(submitted.config.read_text()) | {"checkpoint_storage": storage}
    file = tmp_path / "kept.yaml"
    file.write_text(yaml.safe_dump(config))
    experiment_id = upstream.create(file, str(submitted.model))
    upstream.wait(experiment_id)
    script = """
import pathlib, time
from determined.common.api import bindings

experiment = client.get_experiment(int(args[0]))
checkpoints = experiment.list_checkpoints()
session = checkpoints[0]._session
def fetch(uuid):
    return bindings.get_GetCheckpoint(session, checkpointUuid=uuid).checkpoint

damaged, whole = (fetch(one.uuid) for one in checkpoints[:2])
storage = experiment.config["checkpoint_storage"]
(lost,) = pathlib.Path(storage["host_path"]).rglob(f"{damaged.uuid}/state.txt")
lost.unlink()
body = bindings.v1CheckpointsRemoveFilesRequest(
    checkpointGlobs=[], checkpointUuids=[damaged.uuid, whole.uuid])
bindings.post_CheckpointsRemoveFiles(session, body=body)
while fetch(damaged.uuid).state == damaged.state:
    time.sleep(0.1)
show({
    "storages": sorted({fetch(one.uuid).storageId for one in checkpoints}),
    "damaged": [fetch(damaged.uuid).state.value, sorted(fetch(damaged.uuid).resources)],
    "whole": [fetch(whole.uuid).state.value, fetch(whole.uuid).resources == whole.resources],
    "files": sorted(damaged.resources),
})
"""
    found = upstream.sdk(script, experiment_id)
    (number,) = found["storages"]
    assert isinstance(number, int)
    left = [name for name in found["files"] if name != "state.txt"]
    state = "STATE_PARTIALLY_DELETED" if any(not one.endswith("/") for one in left) else None
    assert found["damaged"] == [state or "STATE_DELETED", left if state else []]
    assert found["whole"] == ["STATE_COMPLETED", True]
    cluster_id = yaml.safe_load(upstream.det("master", "info").stdout)["clusterId"]
    charts = tmp_path / "kept" / cluster_id / "tensorboard" / "experiment" / str(experiment_id)
    charts.mkdir(parents=True, exist_ok=True)
    (charts / "events").write_text("of TensorBoard")
    upstream.det("e", "delete-tb-files", str(experiment_id))
    assert not charts.exists()


def test_users(upstream: UpstreamClient) -> None:
    script = """
from determined.common.api import errors

def refusal(act):
    try:
        act()
    except (errors.APIException, errors.BadRequestException) as error:
        return f"{type(error).__name__}: {error}"

admin = client.Determined(os.environ["DET_MASTER"], "admin", args[0])
ada = admin.create_user("ada", False, "Correct-horse-1")
ada.link_with_agent(agent_uid=1001, agent_gid=100, agent_user="ada", agent_group="users")
again = admin.get_user_by_name("ada")
me = client.whoami()
found = {
    "linked": [again.agent_uid, again.agent_gid, again.agent_user, again.agent_group],
    "imitates": refusal(lambda: me.change_display_name("Admin")),
    "missing": refusal(lambda: client.get_user_by_name("nobody")),
}
ada.deactivate()
show(found)
"""
    found = upstream.sdk(script, upstream.passwords["admin"])
    assert found["linked"] == [1001, 100, "ada", "users"]
    assert "displayName 'Admin'" in found["imitates"]
    assert "not found" in found["missing"]
    assert "user is not active" in upstream.login("ada", "Correct-horse-1", code=1)
