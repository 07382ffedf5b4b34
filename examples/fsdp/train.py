"""Handwritten digits with FSDP under the Core API: each process of a trial has its part of a small
transformer's weights, gradients and optimizer.

The launch layer (const.yaml) starts this script once per slot. The processes store each checkpoint
together, every one its part, while the training goes on. On GPUs they talk by NCCL, on CPUs by gloo. Off the
cluster, in two processes or in one:

    python3 -m determined.launch.torch_distributed --nproc_per_node=2 -- train.py
    python3 train.py
"""

import logging
import os

import sklearn.datasets
import sklearn.model_selection
import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import determined as det

DEFAULTS = {"learning_rate": 0.003, "width": 32, "blocks": 2, "heads": 4, "dropout": 0.1}
BATCH_SIZE = 32  # of all processes together


def load_data(device):
    """1,437 training and 360 validation images (8 rows of 8 pixels, values 0..1), always the same split."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32, device=device)
    labels = torch.tensor(digits.target, device=device)
    train, valid = sklearn.model_selection.train_test_split(
        torch.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels.cpu()
    )
    return (images[train], labels[train]), (images[valid], labels[valid])


class Block(torch.nn.Module):
    """Attention between the rows of an image, then a small network for each row."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.before_attention = torch.nn.LayerNorm(width)
        self.attention = torch.nn.Linear(width, 3 * width)
        self.mixed = torch.nn.Linear(width, width)
        self.before_network = torch.nn.LayerNorm(width)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, rows):
        parts = self.attention(self.before_attention(rows)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value)
        rows = rows + self.dropout(self.mixed(seen.transpose(1, 2).flatten(2)))
        return rows + self.dropout(self.network(self.before_network(rows)))


class Transformer(torch.nn.Module):
    """8 rows of 8 pixels in, 10 class scores out."""

    def __init__(self, hparams):
        super().__init__()
        width = int(hparams["width"])
        self.rows = torch.nn.Linear(8, width)
        self.places = torch.nn.Parameter(0.02 * torch.randn(8, width))
        self.blocks = torch.nn.ModuleList(
            Block(width, int(hparams["heads"]), hparams["dropout"])
            for _ in range(int(hparams["blocks"]))
        )
        self.scores = torch.nn.Linear(width, 10)

    def forward(self, images):
        rows = self.rows(images) + self.places
        for block in self.blocks:
            rows = block(rows)
        return self.scores(rows.mean(dim=1))


def build_model(hparams, device, size, seed):
    """The model in parts. Every process makes the same weights and keeps its part of them."""
    torch.manual_seed(seed)
    model = Transformer(hparams).to(device)
    mesh = init_device_mesh(device.type, (size,))
    # A block's weights are gathered before it runs, and given up after it.
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_epoch(model, optimizer, images, labels, dist, seed, epoch):
    """One pass over the data; this process' mean loss.

    All random numbers of an epoch follow from its number. A checkpoint at an epoch's end therefore needs no
    state of generators, and a trial may go on with another number of processes.
    """
    model.train()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed + epoch))
    torch.manual_seed(
        (seed + epoch) * dist.size + dist.rank
    )  # dropout: other zeros in each process
    losses = []
    # Without the last batch, if it is smaller: every process needs its share.
    for batch in order.split(BATCH_SIZE)[: len(labels) // BATCH_SIZE]:
        mine = batch[dist.rank :: dist.size]
        loss = functional.cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


@torch.no_grad()
def validate(model, images, labels, dist):
    """Loss and accuracy on the validation images, of which every process takes a share."""
    model.eval()
    mine = slice(dist.rank, None, dist.size)
    scores = model(images[mine])
    loss = functional.cross_entropy(scores, labels[mine], reduction="sum").item()
    right = (scores.argmax(dim=1) == labels[mine]).sum().item()
    shares = dist.allgather((loss, right))
    return {
        "validation_loss": sum(loss for loss, _ in shares) / len(labels),
        "accuracy": sum(right for _, right in shares) / len(labels),
    }


def state_of(model, optimizer, epoch):
    """What a checkpoint has: this process' parts, as DTensors, and the number of epochs."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "epoch": epoch}


def load(core_context, uuid, model, optimizer):
    """Read this process' parts; the number of epochs."""
    state = state_of(model, optimizer, 0)
    with core_context.checkpoint.restore_path(uuid) as path:
        torch.distributed.checkpoint.load(state, checkpoint_id=path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    return state["epoch"]


def main(core_context, hparams, device, seed, latest_checkpoint):
    dist = core_context.distributed
    is_chief = dist.rank == 0
    (images, labels), validation = load_data(device)
    model = build_model(hparams, device, dist.size, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=hparams["learning_rate"])
    epoch = 0
    if latest_checkpoint is not None:
        epoch = load(core_context, latest_checkpoint, model, optimizer)
        logging.info("going on after epoch %d", epoch)

    for op in core_context.searcher.operations():
        metrics = None
        while epoch < op.length:
            loss = train_epoch(model, optimizer, images, labels, dist, seed, epoch)
            epoch += 1
            losses = dist.allgather(loss)
            metrics = validate(model, *validation, dist)
            if is_chief:
                core_context.train.report_training_metrics(epoch, {"loss": sum(losses) / dist.size})
                core_context.train.report_validation_metrics(epoch, metrics)
                op.report_progress(epoch)
                logging.info("epoch %d: accuracy %.3f", epoch, metrics["accuracy"])
            # Every process gives its part and goes on; a thread stores a copy of it.
            core_context.checkpoint.save_state(
                state_of(model, optimizer, epoch), {"steps_completed": epoch}, shard=True
            )
            # Every process asks: they learn from the chief. The context's end waits for the checkpoint.
            if core_context.preempt.should_preempt():
                return
        metrics = metrics or validate(model, *validation, dist)
        if is_chief:
            op.report_completed(metrics["accuracy"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    # A trial that went on from a checkpoint has the losses of one that was never stopped, bit for bit. It
    # costs some speed on GPUs.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    workers = None
    if "RANK" in os.environ:  # a launcher has started this process, and maybe others
        torch.distributed.init_process_group(backend)
        workers = det.core.DistributedContext.from_torch_distributed()
    else:  # FSDP needs a group, also of one
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    info = det.get_cluster_info()
    on_cluster = info is not None and info.task_type == "TRIAL"
    with det.core.init(distributed=workers) as context:
        main(
            context,
            {**DEFAULTS, **(info.trial.hparams if on_cluster else {})},
            device,
            info.trial.trial_seed if on_cluster else 0,
            info.latest_checkpoint if on_cluster else None,
        )
    torch.distributed.destroy_process_group()
