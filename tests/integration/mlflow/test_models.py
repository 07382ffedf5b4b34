"""Artifacts, logged models, registered models, and models loaded again."""

from __future__ import annotations

import json
import pickle
import uuid
from pathlib import Path

import mlflow
import numpy as np
import pytest
import torch
from mlflow.exceptions import MlflowException

from determined import storage
from tests.integration.mlflow.conftest import Cluster

CODE = """
import torch
from determined import pytorch

class Doubling(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.model = context.wrap_model(torch.nn.Linear(2, 1, bias=False))
    def train_batch(self, batch, epoch_idx, batch_idx): ...
    def build_training_data_loader(self): ...
    def build_validation_data_loader(self): ...
"""


def test_artifacts_of_a_run(tracking: Cluster, tmp_path: Path) -> None:
    mlflow.set_experiment("artifacts")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "b.txt").write_text("bee")
    (tmp_path / "a.txt").write_text("ay")
    with mlflow.start_run() as run:
        mlflow.log_artifact(str(tmp_path / "a.txt"))
        mlflow.log_artifacts(str(tmp_path / "deep"), "folder")
        mlflow.log_dict({"one": 1}, "said.json")
        mlflow.log_text("", "empty.txt")
    client = mlflow.MlflowClient()
    listed = {one.path: one.is_dir for one in client.list_artifacts(run.info.run_id)}
    assert listed == {"a.txt": False, "empty.txt": False, "folder": True, "said.json": False}
    assert [one.path for one in client.list_artifacts(run.info.run_id, "folder/er")] == [
        "folder/er/b.txt"
    ]
    assert mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/said.json") == {"one": 1}
    got = mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="folder")
    assert (Path(got) / "er" / "b.txt").read_text() == "bee"
    with pytest.raises(MlflowException, match="Failed to download"):
        mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="nothing.txt")


def test_a_model_is_logged_registered_and_loaded(tracking: Cluster) -> None:
    from sklearn.linear_model import LogisticRegression

    mlflow.set_experiment("models")
    x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
    with mlflow.start_run() as run:
        logged = mlflow.sklearn.log_model(
            LogisticRegression().fit(x, y), name="classifier", registered_model_name="Digits"
        )
    client = mlflow.MlflowClient()
    version = client.get_model_version("Digits", "1")
    assert version.run_id == run.info.run_id
    client.set_registered_model_alias("Digits", "champion", "1")
    assert client.get_model_version_by_alias("Digits", "champion").version == "1"
    for uri in ("models:/Digits@champion", "models:/Digits/1", logged.model_uri):
        assert list(mlflow.pyfunc.load_model(uri).predict(x)) == [0, 0, 1, 1]
    with tracking.api() as api:
        found = api.get("/api/v1/models/Digits/versions/1").json()["modelVersion"]
        assert found["checkpoint"]["state"] == "STATE_COMPLETED"
        assert "MLmodel" in found["checkpoint"]["resources"]
        assert found["checkpoint"]["training"]["trialId"] == int(run.info.run_id)
        moved = api.get("/api/v1/models/Digits/alias-history").json()["moves"]
        assert [(one["alias"], one["toVersion"]) for one in moved] == [("champion", 1)]
        # A registered checkpoint cannot go.
        gone = api.request(
            "DELETE", "/api/v1/checkpoints", json={"checkpointUuids": [found["checkpoint"]["uuid"]]}
        )
        assert gone.status_code == 409 and "Digits" in gone.json()["message"]
    client.set_model_version_tag("Digits", "1", "stage", "test")
    client.update_registered_model("Digits", description="ten digits")
    client.set_registered_model_tag("Digits", "team", "vision")
    found = client.get_registered_model("Digits")
    assert (found.description, found.tags["team"]) == ("ten digits", "vision")
    assert [one.name for one in client.search_registered_models("name = 'Digits'")] == ["Digits"]
    assert len(client.search_model_versions("name = 'Digits'")) == 1
    assert client.search_logged_models([run.info.experiment_id])[0].name == "classifier"
    with pytest.raises(MlflowException, match="alias instead"):
        client.transition_model_version_stage("Digits", "1", "Staging")
    with pytest.raises(MlflowException, match="only checkpoints are registered"):
        client.create_model_version("Digits", "s3://elsewhere/model")
    client.delete_registered_model("Digits")
    with pytest.raises(MlflowException, match="does not exist"):
        client.get_registered_model("Digits")


def test_a_checkpoint_of_a_trial_class_is_a_model(tracking: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "doubling.py").write_text(CODE)
    state = {
        "models_state_dict": [{"weight": torch.tensor([[2.0, 0.0]])}],
        "optimizers_state_dict": [],
        "lr_schedulers_state_dict": [],
        "callbacks": {},
        "rng_state": {"cpu_rng_state": torch.get_rng_state()},
    }
    torch.save(state, folder / "state_dict.pth")
    (folder / "load_data.json").write_text(
        json.dumps(
            {
                "trial_type": "PyTorchTrial",
                "experiment_config": {"searcher": {"metric": "x"}},
                "hparams": {},
                "trial_cls_spec": "doubling:Doubling",
                "is_trainer": False,
            }
        )
    )
    position = {"trial_id": 1, "last_ckpt": 1, "step_id": 1, "last_val": 0}
    position |= {"batches_trained": 1, "epochs_trained": 0}
    (folder / "trial_state.pkl").write_bytes(pickle.dumps(position))
    with tracking.api() as api:
        config = {"name": "doubling", "searcher": {"name": "single", "metric": "loss"}}
        body = {"config": json.dumps(config), "unmanaged": True}
        made = api.post("/api/v1/experiments", json=body).json()
        trial = api.post(
            "/api/v1/trials", json={"experimentId": made["experiment"]["id"], "unmanaged": True}
        ).json()["trial"]
        checkpoint = str(uuid.uuid4())
        manager = storage.build(made["config"]["checkpoint_storage"])
        manifest = manager.upload(folder, checkpoint)
        api.post(
            "/api/v1/checkpoints",
            json={
                "uuid": checkpoint,
                "taskId": trial["taskId"],
                "resources": {name: str(size) for name, size in manifest.resources.items()},
                "checksums": dict(manifest.checksums),
                "metadata": {"steps_completed": 1},
                "state": "STATE_COMPLETED",
            },
        ).raise_for_status()
        api.post("/api/v1/models", json={"name": "doubler"}).raise_for_status()
        registered = api.post(
            "/api/v1/models/doubler/versions", json={"checkpointUuid": checkpoint}
        )
        registered.raise_for_status()
        moved = api.put("/api/v1/models/doubler/aliases/champion", json={"version": 1})
        moved.raise_for_status()
    given = np.array([[1.0, 5.0], [4.0, 5.0]], dtype=np.float32)
    for uri in ("models:/doubler@champion", f"runs:/{trial['id']}/checkpoints/{checkpoint}"):
        loaded = mlflow.pyfunc.load_model(uri)
        assert loaded.predict(given).tolist() == [[2.0], [8.0]]
    client = mlflow.MlflowClient()
    names = {
        one.path for one in client.list_artifacts(str(trial["id"]), f"checkpoints/{checkpoint}")
    }
    assert f"checkpoints/{checkpoint}/MLmodel" in names
    by_alias = client.get_model_version_by_alias("doubler", "champion")
    assert by_alias.run_id == str(trial["id"])
    # Its files never change.
    with pytest.raises(Exception, match="holds its checkpoints"):
        client.log_text(str(trial["id"]), "x", f"checkpoints/{checkpoint}/MLmodel")


def test_a_model_without_a_run_gets_one(tracking: Cluster) -> None:
    from sklearn.linear_model import LogisticRegression

    experiment = mlflow.set_experiment("without a run").experiment_id
    x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
    logged = mlflow.sklearn.log_model(LogisticRegression().fit(x, y), name="alone")
    assert mlflow.active_run() is None
    assert list(mlflow.pyfunc.load_model(logged.model_uri).predict(x)) == [0, 0, 1, 1]
    client = mlflow.MlflowClient()
    model = client.get_logged_model(logged.model_id)
    (run,) = client.search_runs([experiment])
    assert (run.info.run_id, run.info.run_name) == (model.source_run_id, "alone")
    assert run.info.status == "FINISHED"
    failed = client.create_logged_model(experiment, name="fails")
    assert client.get_run(str(failed.source_run_id)).info.status == "RUNNING"
    client.finalize_logged_model(failed.model_id, "FAILED")
    assert client.get_run(str(failed.source_run_id)).info.status == "FAILED"
