"""A user names a place in a storage, and the service, which has more rights, reads or writes there."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from determined import storage
from tests.integration.mlflow.conftest import Cluster

SECRET = "of the service's account"
FILES = "/mlflow/api/2.0/mlflow-artifacts/artifacts"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    found = tmp_path / "secret"
    found.write_text(SECRET)
    return found


def experiment(api: httpx.Client, **more: Any) -> dict[str, Any]:
    """A user's experiment with a trial for which the user may report."""
    config = {"name": "mallory", "searcher": {"name": "single", "metric": "loss"}, **more}
    body = {"config": json.dumps(config), "unmanaged": True}
    made: dict[str, Any] = api.post("/api/v1/experiments", json=body).raise_for_status().json()
    trial = api.post(
        "/api/v1/trials", json={"experimentId": made["experiment"]["id"], "unmanaged": True}
    )
    return {"config": made["config"], **trial.raise_for_status().json()["trial"]}


def report(api: httpx.Client, trial: dict[str, Any], name: str, **more: Any) -> httpx.Response:
    given = {
        "uuid": name,
        "taskId": trial["taskId"],
        "metadata": {"steps_completed": 1},
        "state": "STATE_COMPLETED",
        **more,
    }
    return api.post("/api/v1/checkpoints", json=given)


def stored(section: dict[str, Any], secret: Path) -> tuple[str, dict[str, str]]:
    """A checkpoint with a file that was exchanged for a link to another account's file."""
    name = str(uuid.uuid4())
    folder = secret.parent / "source"
    folder.mkdir()
    (folder / "linked").write_text("x" * len(SECRET))
    (folder / "own").write_text("the user's")
    manifest = storage.build(section).upload(folder, name)
    path = Path(section["host_path"]) / name / "linked"
    path.unlink()
    path.symlink_to(secret)
    return name, {path: str(size) for path, size in manifest.resources.items()}


def test_the_pages_of_mlflow_read_no_file_in_a_directory_that_a_user_names(
    mlflow_cluster: Cluster, secret: Path, tmp_path: Path
) -> None:
    """Gains: every file that the service's account may read."""
    section = {"type": "shared_fs", "host_path": str(tmp_path / "mallorys")}
    name, resources = stored(section, secret)
    with mlflow_cluster.api() as api:
        trial = experiment(api, checkpoint_storage=section)
        report(api, trial, name, resources=resources).raise_for_status()
        for folder in (f"checkpoints/{name}", f"trials/{trial['id']}/checkpoints/{name}"):
            for path in ("linked", "own"):
                answer = api.get(f"{FILES}/{folder}/{path}")
                assert SECRET not in answer.text
                assert (answer.status_code, "--mode direct" in answer.text) == (403, True)


def test_the_pages_of_mlflow_follow_no_link_in_the_clusters_storage(
    mlflow_cluster: Cluster, secret: Path
) -> None:
    """Gains: as before, by a checkpoint where everybody's are."""
    with mlflow_cluster.api() as api:
        trial = experiment(api)
        section = trial["config"]["checkpoint_storage"]
        name, resources = stored(section, secret)
        report(api, trial, name, resources=resources).raise_for_status()
        answer = api.get(f"{FILES}/checkpoints/{name}/linked")
        assert SECRET not in answer.text
        assert answer.status_code >= 400
        assert api.get(f"{FILES}/checkpoints/{name}/own").text == "the user's"


def test_the_pages_of_mlflow_write_no_file_in_a_directory_that_a_user_names(
    mlflow_cluster: Cluster, tmp_path: Path
) -> None:
    """Gains: directories and files of any contents, written as the service's account."""
    there = tmp_path / "of-root"
    there.mkdir()
    section = {"type": "shared_fs", "host_path": str(there)}
    with mlflow_cluster.api() as api:
        trial = experiment(api, checkpoint_storage=section)
        answer = api.put(f"{FILES}/trials/{trial['id']}/job", content=b"* * * * * root id")
    assert answer.status_code == 403, answer.text
    assert list(there.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories to other accounts")
def test_a_directory_made_beforehand_gets_no_artifacts(
    mlflow_cluster: Cluster, tmp_path: Path
) -> None:
    """Gains: everybody's artifacts, to read and to change; files of the service's account by links."""
    with mlflow_cluster.api() as api:
        trial = experiment(api)
        root = Path(trial["config"]["checkpoint_storage"]["host_path"])
        cluster_id = api.get("/api/v1/master").json()["clusterId"]
        folder = root / cluster_id / "mlflow" / "experiment" / str(trial["experimentId"])
        folder.mkdir(parents=True)
        os.chown(folder, 4711, 4711)
        answer = api.put(f"{FILES}/trials/{trial['id']}/report.txt", content=b"alice's")
    assert "belongs to another account (uid 4711)" in answer.text
    assert list(folder.iterdir()) == []


def test_the_clusters_own_files_are_not_a_checkpoint(mlflow_cluster: Cluster, secret: Path) -> None:
    """Gains: the files of another user's notebook, whose id is in every list; and their deletion."""
    with mlflow_cluster.api() as api:
        trial = experiment(api)
        section = trial["config"]["checkpoint_storage"]
        cluster_id = api.get("/api/v1/master").json()["clusterId"]
        for inner in ("notebook", "mlflow/experiment", "."):
            kept = section | {"storage_path": f"{cluster_id}/{inner}"}
            answer = report(api, trial, str(uuid.uuid4()), resources={"a": "1"}, storage=kept)
            assert (answer.status_code, "the cluster keeps files" in answer.text) == (400, True)
            config = {"searcher": {"name": "single", "metric": "x"}, "checkpoint_storage": kept}
            body = {"config": json.dumps(config), "unmanaged": True}
            answer = api.post("/api/v1/experiments", json=body)
            assert (answer.status_code, "the cluster keeps files" in answer.text) == (400, True)


@pytest.mark.parametrize("path", ["../other", "/etc/passwd", "a/../../b", "", ".."])
def test_names_of_files_lead_out_of_no_checkpoint(mlflow_cluster: Cluster, path: str) -> None:
    """Gains: whatever a reader of such names opens."""
    with mlflow_cluster.api() as api:
        answer = report(api, experiment(api), str(uuid.uuid4()), resources={path: "1"})
    assert (answer.status_code, "within the checkpoint" in answer.text) == (400, True)


def test_another_objects_id_is_not_a_checkpoint(mlflow_cluster: Cluster) -> None:
    """Gains: reading and deleting everything in the cluster's storage: files of others' notebooks,
    TensorBoards, artifacts. The folder is named after the cluster's id, which is public."""
    with mlflow_cluster.api() as api:
        trial = experiment(api)
        cluster_id = api.get("/api/v1/master").json()["clusterId"]
        job = api.get(f"/api/v1/experiments/{trial['experimentId']}").json()["experiment"]["jobId"]
        names = {cluster_id: "this cluster", job: "the job of experiment"}
        for kind, own in (("command", {"entrypoint": ["true"]}), ("notebook", {})):
            given = {"config": {**own, "resources": {"slots": 0}}}
            made = api.post(f"/api/v1/{kind}s", json=given).raise_for_status().json()[kind]
            names |= {made["id"]: f"a {kind} task", made["jobId"]: "the job of a task"}
        for name, what in names.items():
            resources = {"notebook/x/files/secret.txt": "1"}
            answer = report(api, trial, name, resources=resources)
            assert answer.status_code == 409 and f"is the id of {what}" in answer.text, answer.text
            # In any spelling.
            bare = report(api, trial, name.replace("-", "").upper(), resources=resources)
            assert bare.status_code == 409
            assert api.get(f"/api/v1/checkpoints/{name}").status_code == 404
