"""Classifies scikit-learn's handwritten digits: a DeepSpeedTrial, read from top to bottom."""

from pathlib import Path

import deepspeed
import sklearn.datasets
import sklearn.model_selection
import torch
from torch.utils.data import TensorDataset

from determined import pytorch
from determined.pytorch.deepspeed import DeepSpeedTrial, overwrite_deepspeed_config


def load_data():
    """1,437 training and 360 validation images (8 x 8 pixels, values 0..1), always the same split."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    train, valid = sklearn.model_selection.train_test_split(
        torch.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[valid], labels[valid])


class DigitsTrial(DeepSpeedTrial):
    def __init__(self, context):
        self.context = context
        self.training_data, self.validation_data = load_data()
        hidden = int(context.get_hparam("hidden_size"))
        model = torch.nn.Sequential(
            torch.nn.Linear(64, hidden),
            torch.nn.ReLU(),
            torch.nn.Dropout(context.get_hparam("dropout")),
            torch.nn.Linear(hidden, 10),
        )
        # What is searched over takes the place of what the file says.
        config = overwrite_deepspeed_config(
            str(Path(__file__).with_name("ds_config.json")),
            context.get_hparams().get("overwrite_deepspeed_args", {}),
        )
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        self.engine = context.wrap_model_engine(engine)

    def build_training_data_loader(self):
        # Micro-batches; shuffled by the trial's seed, so that a resumed training sees the same ones.
        size = self.context.get_train_micro_batch_size_per_gpu()
        return pytorch.DataLoader(self.training_data, batch_size=size, shuffle=True)

    def build_validation_data_loader(self):
        # As many batches for each of 1, 2, 3, 4, 6 or 12 processes.
        return pytorch.DataLoader(self.validation_data, batch_size=30)

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        images, labels = self.context.to_device(next(dataloader_iter))
        loss = torch.nn.functional.cross_entropy(self.engine(images), labels)
        self.engine.backward(loss)
        self.engine.step()  # steps the optimizer with the last micro-batch of a batch
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter, batch_idx):
        images, labels = self.context.to_device(next(dataloader_iter))
        scores = self.engine(images)
        return {
            "validation_loss": torch.nn.functional.cross_entropy(scores, labels),
            "accuracy": (scores.argmax(dim=1) == labels).float().mean(),
        }
