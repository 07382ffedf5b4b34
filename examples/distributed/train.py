"""Handwritten digits in several processes: torch's DistributedDataParallel under the Core API.

The launch layer (distributed.yaml) starts this script once per slot. Each process trains on its share of
every batch, torch averages their gradients, and the chief (rank 0) reports, validates and stores
checkpoints. Off the cluster, in two processes or in one:

    python3 -m determined.launch.torch_distributed --nproc_per_node=2 -- train.py
    python3 train.py
"""

import logging
import os
import pathlib

import sklearn.datasets
import sklearn.model_selection
import torch
from torch.nn.parallel import DistributedDataParallel

import determined as det

DEFAULTS = {"learning_rate": 0.01, "hidden_size": 64, "global_batch_size": 32}


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
        torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    )


def train_epoch(model, optimizer, images, labels, batch_size, dist, seed):
    """One pass over the data, in an order that all processes agree on; this process' mean loss."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    losses = []
    # Without the last batch, if it is smaller: every process needs its share.
    for batch in order.split(batch_size)[: len(labels) // batch_size]:
        mine = batch[dist.rank :: dist.size]
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


@torch.no_grad()
def validate(model, images, labels):
    """Loss and accuracy on the validation images."""
    scores = model(images)
    return {
        "validation_loss": torch.nn.functional.cross_entropy(scores, labels).item(),
        "accuracy": (scores.argmax(dim=1) == labels).float().mean().item(),
    }


def save(core_context, model, optimizer, epoch):
    """Store a checkpoint; only the chief does, because all processes have the same weights."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    with core_context.checkpoint.store_path({"steps_completed": epoch}) as (path, _):
        torch.save(state, pathlib.Path(path) / "state.pt")


def main(core_context, hparams, seed, latest_checkpoint):
    dist = core_context.distributed
    is_chief = dist.rank == 0
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
        epoch = state["epoch"]
        logging.info("going on after epoch %d", epoch)
    parallel = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    batch_size = int(hparams["global_batch_size"])

    for op in core_context.searcher.operations():
        while epoch < op.length:
            loss = train_epoch(parallel, optimizer, images, labels, batch_size, dist, seed + epoch)
            epoch += 1
            losses = dist.gather(loss)
            if is_chief:
                core_context.train.report_training_metrics(epoch, {"loss": sum(losses) / dist.size})
                metrics = validate(model, *validation)
                core_context.train.report_validation_metrics(epoch, metrics)
                op.report_progress(epoch)
                logging.info("epoch %d: accuracy %.3f", epoch, metrics["accuracy"])
            # Every process asks: they learn from the chief.
            if core_context.preempt.should_preempt():
                if is_chief:
                    save(core_context, model, optimizer, epoch)
                return
        if is_chief:
            save(core_context, model, optimizer, epoch)
            op.report_completed(validate(model, *validation)["accuracy"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    on_cluster = info is not None and info.task_type == "TRIAL"
    workers = None
    if "RANK" in os.environ:  # a launcher has started this process, and maybe others
        torch.distributed.init_process_group("gloo")
        workers = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=workers) as context:
        main(
            context,
            {**DEFAULTS, **(info.trial.hparams if on_cluster else {})},
            info.trial.trial_seed if on_cluster else 0,
            info.latest_checkpoint if on_cluster else None,
        )
    if workers is not None:
        torch.distributed.destroy_process_group()
