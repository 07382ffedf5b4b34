"""Trains a small network on handwritten digits. `fold` says which fifth of the images is held out."""

import logging
import pathlib

import sklearn.datasets
import torch

import determined as det


def load(fold):
    """(training, held-out) images and labels: 8 x 8 pixels, values 0..1."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == fold
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def build_model(hparams):
    """64 pixels in, 10 class scores out."""
    hidden = int(hparams["hidden_size"])
    return torch.nn.Sequential(
        torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    )


def main(core_context, info):
    hparams = info.trial.hparams
    torch.manual_seed(info.trial.trial_seed)
    (images, labels), (held_out, truth) = load(int(hparams["fold"]))
    model = build_model(hparams)
    if info.latest_checkpoint is not None:  # of the search, or of this trial before a pause
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            model.load_state_dict(torch.load(pathlib.Path(path) / "model.pt"))
    optimizer = torch.optim.Adam(model.parameters(), lr=hparams["learning_rate"])
    for operation in core_context.searcher.operations():
        for epoch in range(1, operation.length + 1):
            for batch in torch.randperm(len(labels)).split(32):
                loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                accuracy = (model(held_out).argmax(dim=1) == truth).float().mean().item()
            core_context.train.report_validation_metrics(epoch, {"accuracy": accuracy})
            logging.info("epoch %d: accuracy %.3f", epoch, accuracy)
        with core_context.checkpoint.store_path({"steps_completed": operation.length}) as (path, _):
            torch.save(model.state_dict(), pathlib.Path(path) / "model.pt")
        operation.report_completed(accuracy)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    with det.core.init() as context:
        main(context, det.get_cluster_info())
