"""One of two processes that train by DeepSpeedTrials; it writes its results as JSON. Arguments: the folder of
the example, the folder to write to."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from determined import pytorch
from determined.pytorch import deepspeed as ds

EXAMPLE, FOLDER = map(Path, sys.argv[1:])
sys.path.insert(0, str(EXAMPLE))
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed  # noqa: E402
from deepspeed.pipe import LayerSpec, PipelineModule  # noqa: E402
from model_def import DigitsTrial  # noqa: E402

SEED = {"reproducibility": {"experiment_seed": 3}}


class Notes(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.batches: list[float] = []

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        self.batches += [batch["loss"] for batch in batch_metrics]

    def on_validation_end(self, metrics: Any) -> None:
        self.validation = {name: float(value) for name, value in metrics.items()}

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.uuid = uuid


class Digits(DigitsTrial):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.losses: list[float] = []

    def train_batch(self, *args: Any) -> Any:
        metrics = super().train_batch(*args)
        self.losses.append(metrics["loss"].item())
        return metrics


class OneReports(Digits):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        rank = context.distributed.rank
        context.set_mpu(ds.ModelParallelUnit(rank, 2, rank == 0, True))

    def evaluate_batch(self, *args: Any) -> Any:
        super().evaluate_batch(*args)
        return {"rank": self.context.distributed.rank}


class Pipeline(Digits):
    """Two layers in each process."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.losses = []
        self.training_data, self.validation_data = sys.modules["model_def"].load_data()
        model = PipelineModule(
            layers=[
                *(LayerSpec(torch.nn.Linear, 64, 8), LayerSpec(torch.nn.ReLU)),
                *(LayerSpec(torch.nn.Linear, 8, 8), LayerSpec(torch.nn.Linear, 8, 10)),
            ],
            num_stages=2,
            loss_fn=torch.nn.functional.cross_entropy,
            partition_method="uniform",
        )
        config = {
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        }
        parameters = [one for one in model.parameters() if one.requires_grad]
        engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
        self.engine = context.wrap_model_engine(engine)
        assert context.use_pipeline_parallel

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.engine.train_batch(dataloader_iter)
        self.losses.append(loss.item())
        return loss

    def build_validation_data_loader(self) -> Any:
        # A pipeline's micro-batches are all of one size.
        return pytorch.DataLoader(self.validation_data, batch_size=8)

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> Any:
        return {"loss": self.engine.eval_batch(dataloader_iter)}


def train(kind: type[Any], batches: int, latest: str | None = None) -> dict[str, Any]:
    with ds.init(hparams={"hidden_size": 8, "dropout": 0.2}, exp_conf=SEED) as context:
        trial = kind(context)
        notes = Notes()
        trial.build_callbacks = lambda: {"notes": notes}
        ds.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), latest_checkpoint=latest)
        with context._core.checkpoint.restore_path(notes.uuid) as path:
            files = [file.name for file in path.rglob("*")]
    return {"losses": trial.losses, "files": files, **vars(notes)}


def resumed(kind: type[Any]) -> list[dict[str, Any]]:
    """An unbroken training, a training of four batches, and its continuation."""
    half = train(kind, 4)
    return [train(kind, 6), half, train(kind, 6, half["uuid"])]


# One process group for all trainings.
torch.distributed.init_process_group("gloo")
found = {
    "stage 1": resumed(Digits),
    "one reports": train(OneReports, 2),
    # Last: DeepSpeed keeps the pipeline's topology as long as the process group.
    "pipeline": resumed(Pipeline),
}
(FOLDER / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
torch.distributed.destroy_process_group()
