"""Lightning on scikit-learn's handwritten digits: `python train.py`, or `det flow run const.yaml`.

In two processes: distributed.yaml.
"""

import logging
import os

import lightning
import sklearn.datasets
import sklearn.model_selection
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import determined as det
from determined.lightning import DeterminedCallback

# What a training off the cluster uses.
HPARAMS = {"learning_rate": 0.01, "hidden_size": 64}


def load_data():
    """1,437 training and 360 validation images (8 x 8 pixels, values 0..1), always the same split."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    train, valid = sklearn.model_selection.train_test_split(
        torch.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[valid], labels[valid])


class Digits(lightning.LightningModule):
    def __init__(self, hparams):
        super().__init__()
        hidden = int(hparams["hidden_size"])
        self.learning_rate = hparams["learning_rate"]
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = cross_entropy(self.model(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.model(images)
        # Of all processes: each validates its share.
        self.log("validation_loss", cross_entropy(scores, labels), sync_dist=True)
        accuracy = (scores.argmax(dim=1) == labels).float().mean()
        self.log("accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def main(core_context, hparams, seed):
    lightning.seed_everything(seed)
    workers = core_context.distributed.size
    # Made before the Trainer: on the cluster it fetches the checkpoint to go on from.
    callback = DeterminedCallback(core_context)
    trainer = lightning.Trainer(
        max_epochs=5,  # off the cluster; there it is searcher.max_length that counts
        callbacks=[callback],
        accelerator="auto",
        devices=workers,
        strategy="ddp" if workers > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        log_every_n_steps=20,
    )
    train, valid = load_data()
    trainer.fit(
        Digits(hparams),
        DataLoader(train, batch_size=32 // workers, shuffle=True),
        DataLoader(valid, batch_size=360),
        ckpt_path=callback.ckpt_path,
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    on_cluster = info is not None and info.task_type == "TRIAL"
    several = int(os.environ.get("WORLD_SIZE", 1)) > 1
    workers = det.core.DistributedContext.from_torch_distributed() if several else None
    with det.core.init(distributed=workers) as context:
        main(
            context,
            {**HPARAMS, **(info.trial.hparams if on_cluster else {})},
            info.trial.trial_seed if on_cluster else 0,
        )
