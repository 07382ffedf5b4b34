"""Classifies scikit-learn's handwritten digits with a small network, through the Core API.

One file, top to bottom: data, network, training loop. On a cluster the searcher decides how many epochs to
train, metrics are reported, and after a pause or a crash the trial goes on from its latest checkpoint. Run
it by itself (`python train.py`) and it trains one epoch with the defaults below.
"""

import logging
import pathlib

import sklearn.datasets
import sklearn.model_selection
import torch

import determined as det

# What a trial uses where the configuration's `hyperparameters` say nothing.
DEFAULTS = {"learning_rate": 0.01, "hidden_size": 64, "batch_size": 32, "dropout": 0.1}


def load_data():
    """1,437 training and 360 validation images (8 x 8 pixels, values 0..1), always the same split."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    train, valid = sklearn.model_selection.train_test_split(
        torch.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    return (images[train], labels[train]), (images[valid], labels[valid])


def build_model(hparams):
    """64 pixels in, 10 class scores out."""
    hidden = int(hparams["hidden_size"])
    return torch.nn.Sequential(
        torch.nn.Linear(64, hidden),
        torch.nn.ReLU(),
        torch.nn.Dropout(hparams["dropout"]),
        torch.nn.Linear(hidden, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, 10),
    )


def train_epoch(model, optimizer, images, labels, batch_size):
    """One pass in random order; the mean training loss."""
    model.train()
    total = 0.0
    for batch in torch.randperm(len(labels)).split(batch_size):
        loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    return total / len(labels)


@torch.no_grad()
def validate(model, images, labels):
    """Loss and accuracy on the validation images."""
    model.eval()
    scores = model(images)
    return {
        "validation_loss": torch.nn.functional.cross_entropy(scores, labels).item(),
        "accuracy": (scores.argmax(dim=1) == labels).float().mean().item(),
    }


def save(core_context, model, optimizer, epoch):
    """Everything needed to go on exactly here: weights, optimizer, random state, position."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state |= {"rng": torch.get_rng_state(), "epoch": epoch}
    with core_context.checkpoint.store_path({"steps_completed": epoch}) as (path, _):
        torch.save(state, pathlib.Path(path) / "state.pt")


def main(core_context, hparams, seed, latest_checkpoint):
    torch.manual_seed(seed)
    (images, labels), validation = load_data()
    model = build_model(hparams)
    optimizer = torch.optim.Adam(model.parameters(), lr=hparams["learning_rate"])
    epoch = 0
    if latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(latest_checkpoint) as path:
            state = torch.load(pathlib.Path(path) / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        # The checkpoint may be another trial's (pbt.yaml), which had a rate of its own.
        for group in optimizer.param_groups:
            group["lr"] = hparams["learning_rate"]
        torch.set_rng_state(state["rng"])
        epoch = state["epoch"]
        logging.info("going on after epoch %d", epoch)

    for op in core_context.searcher.operations():
        metrics = validate(model, *validation)
        while epoch < op.length:
            loss = train_epoch(model, optimizer, images, labels, int(hparams["batch_size"]))
            epoch += 1
            metrics = validate(model, *validation)
            core_context.train.report_training_metrics(epoch, {"loss": loss})
            # `epochs` is what a searcher with `time_metric: epochs` goes by (adaptive-time.yaml).
            core_context.train.report_validation_metrics(epoch, {**metrics, "epochs": epoch})
            op.report_progress(epoch)
            logging.info("epoch %d: accuracy %.3f", epoch, metrics["accuracy"])
            if core_context.preempt.should_preempt():
                save(core_context, model, optimizer, epoch)
                return
        save(core_context, model, optimizer, epoch)
        op.report_completed(metrics["accuracy"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    on_cluster = info is not None and info.task_type == "TRIAL"
    with det.core.init() as context:
        main(
            context,
            {**DEFAULTS, **(info.trial.hparams if on_cluster else {})},
            info.trial.trial_seed if on_cluster else 0,
            info.latest_checkpoint if on_cluster else None,
        )
