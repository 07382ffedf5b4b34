"""A model predicts all of scikit-learn's handwritten digits, in as many processes as there are slots.

    python predict.py                                                                  # on a laptop
    python3 -m determined.launch.torch_distributed --nproc_per_node=2 -- predict.py    # in two processes
    det flow run distributed.yaml .                                                    # on the cluster

After a pause or a kill the trial goes on from its last checkpoint. The predictions are files in the
checkpoint storage, in one directory per process, which the log names.
"""

import csv
import logging

import sklearn.datasets
import torch
from torch.utils.data import TensorDataset

import determined as det
from determined.pytorch.experimental import TorchBatchProcessor, torch_batch_process


def load_data():
    """1,797 images (8 x 8 pixels, values 0..1), each with its number and its digit."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    return TensorDataset(torch.arange(len(images)), images, torch.tensor(digits.target))


def load_model():
    """A small network, trained here in a second so that this example needs nothing else.

    In practice use determined.experimental.client.get_checkpoint(uuid).download(), then
    determined.pytorch.load_trial_from_checkpoint_path().
    """
    torch.manual_seed(0)
    _, images, labels = load_data().tensors
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(model(images[:1000]), labels[:1000])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


class Predictor(TorchBatchProcessor):
    def __init__(self, context):
        self.context = context
        self.model = context.prepare_model_for_inference(load_model())
        self.rows = []
        self.last_batch = 0
        # Of all processes together, reported at the end.
        self.accuracy = context.wrap_reducer(lambda hits: sum(hits) / len(hits), name="accuracy")

    @torch.no_grad()
    def process_batch(self, batch, batch_idx):
        numbers, images, labels = self.context.to_device(batch)
        predicted = self.model(images).argmax(dim=1)
        for hit in (predicted == labels).tolist():
            self.accuracy.update(hit)
        self.rows += zip(numbers.tolist(), predicted.tolist(), strict=True)
        self.last_batch = batch_idx

    def on_checkpoint_start(self):
        # What is processed by now is not processed again. The name is the batch's: after a crash the
        # same file is written once more, not another one beside it.
        if self.rows:
            with (
                self.context.upload_path() as path,
                (path / f"{self.last_batch}.csv").open("w") as file,
            ):
                csv.writer(file).writerows([("image", "digit"), *self.rows])
        self.rows = []


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    torch_batch_process(Predictor, load_data(), batch_size=64, checkpoint_interval=5)
