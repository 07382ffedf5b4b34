"""Training scripts that know only MLflow: automatic logging, models, runs that go on. Each takes seconds."""

from __future__ import annotations

from typing import Any

import mlflow
import numpy as np
import torch

from tests.integration.mlflow.calls.side import Call, Side

X = np.array([[0.0], [1.0], [2.0], [3.0]], dtype=np.float32)
Y = np.array([0, 0, 1, 1])


def _said(s: Side, run_id: str) -> Any:
    """The server's record of the run: names and numbers of everything."""
    run = s.client.get_run(run_id)
    metrics = {
        key: len(s.client.get_metric_history(run_id, key)) for key in sorted(run.data.metrics)
    }
    files = sorted(one.path for one in s.client.list_artifacts(run_id) if one.path != "checkpoints")
    return {
        "status": run.info.status,
        "metrics": metrics,
        "params": run.data.params,
        "tags": sorted(run.data.tags),
        "files": files,
        "inputs": sorted(one.dataset.name for one in run.inputs.dataset_inputs),
        "models": [one.step for one in run.outputs.model_outputs],
    }


def _sklearn(s: Side) -> Any:
    from sklearn.linear_model import LogisticRegression

    mlflow.sklearn.autolog(silent=True)
    try:
        with mlflow.start_run(run_name="sklearn") as run:
            LogisticRegression(max_iter=50).fit(X, Y)
    finally:
        mlflow.sklearn.autolog(disable=True, silent=True)
    found = mlflow.search_logged_models(
        [s.experiment], f"source_run_id = '{run.info.run_id}'", output_format="list"
    )
    loaded = mlflow.sklearn.load_model(found[0].model_uri)
    return _said(s, run.info.run_id), loaded.predict(X).tolist()


def _lightning(s: Side) -> Any:
    import lightning

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            loss = torch.nn.functional.mse_loss(self.layer(x), y)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            self.log("val_loss", torch.nn.functional.mse_loss(self.layer(x), y))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(2 * X))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    mlflow.pytorch.autolog(silent=True)
    try:
        with mlflow.start_run(run_name="lightning") as run:
            lightning.Trainer(
                max_epochs=3,
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=str(s.folder),
            ).fit(Line(), loader, loader)
    finally:
        mlflow.pytorch.autolog(disable=True, silent=True)
    return _said(s, run.info.run_id)


def _searching(s: Side) -> Any:
    """A parent with children; a search finds the best child."""
    with mlflow.start_run(run_name="parent") as parent:
        for place in range(3):
            with mlflow.start_run(run_name=f"child-{place}", nested=True):
                mlflow.log_param("lr", 10.0**-place)
                for step in range(3):
                    mlflow.log_metric("val_loss", place + 1 / (step + 1), step=step)
    frame = mlflow.search_runs(
        [s.experiment],
        f"tags.mlflow.parentRunId = '{parent.info.run_id}' AND metrics.val_loss < 2",
        order_by=["metrics.val_loss DESC"],
    )
    return (
        frame["tags.mlflow.runName"].tolist(),
        frame["metrics.val_loss"].tolist(),
        frame["params.lr"].tolist(),
        frame["status"].tolist(),
    )


def _failing(s: Side) -> Any:
    """A script that raises, and goes on with its run afterwards."""
    try:
        with mlflow.start_run(run_name="failing") as run:
            mlflow.log_metric("loss", 1.0, step=0)
            raise ArithmeticError
    except ArithmeticError:
        failed = s.client.get_run(run.info.run_id).info.status
    with mlflow.start_run(run_id=run.info.run_id):
        during = s.client.get_run(run.info.run_id).info.status
        mlflow.log_metric("loss", 0.5, step=1)
    return failed, during, _said(s, run.info.run_id)


def _asynchronous(s: Side) -> Any:
    with mlflow.start_run(run_name="asynchronous") as run:
        for step in range(50):
            mlflow.log_metric("loss", 1.0 / (step + 1), step=step, synchronous=False)
        mlflow.log_params({"a": 1}, synchronous=False)
        mlflow.set_tags({"b": "2"}, synchronous=False)
        mlflow.flush_async_logging()
    return _said(s, run.info.run_id)


CALLS: dict[str, Call] = {
    "sklearn.autolog": _sklearn,
    "pytorch.autolog with Lightning": _lightning,
    "runs in runs": _searching,
    "a script that fails and goes on": _failing,
    "synchronous=False": _asynchronous,
}
