"""Classifies scikit-learn's handwritten digits: a PyTorchTrial, read from top to bottom."""

import sklearn.datasets
import sklearn.model_selection
import torch
from torch.utils.data import TensorDataset

from determined import pytorch


def load_data():
    """1,437 training and 360 validation images (8 x 8 pixels, values 0..1), always the same split."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    train, valid = sklearn.model_selection.train_test_split(
        torch.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[valid], labels[valid])


class DigitsTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.training_data, self.validation_data = load_data()
        hidden = int(context.get_hparam("hidden_size"))
        # What is wrapped is moved to the device and kept in checkpoints.
        self.model = context.wrap_model(
            torch.nn.Sequential(
                torch.nn.Linear(64, hidden),
                torch.nn.ReLU(),
                torch.nn.Dropout(context.get_hparam("dropout")),
                torch.nn.Linear(hidden, hidden),
                torch.nn.ReLU(),
                torch.nn.Linear(hidden, 10),
            )
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )
        # The Trainer steps it at the end of each epoch.
        self.scheduler = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.9),
            pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )

    def build_training_data_loader(self):
        # Shuffled by the trial's seed, so that a resumed training sees the same batches.
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(self.training_data, batch_size=size, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(self.validation_data, batch_size=360)

    def train_batch(self, batch, epoch_idx, batch_idx):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        images, labels = batch
        scores = self.model(images)
        return {
            "validation_loss": torch.nn.functional.cross_entropy(scores, labels),
            "accuracy": (scores.argmax(dim=1) == labels).float().mean(),
        }
