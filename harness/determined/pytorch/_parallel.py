"""Training in several processes: torch's process group, and models whose gradients are averaged."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from determined import core


class ParallelModel(DistributedDataParallel):
    """Has the attributes of the model that it wraps, and the same names in its state dict.

    So a trial class need not know in how many processes it trains, and its checkpoints do not depend on it.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        found: Iterator[tuple[str, nn.Parameter]] = self.module.named_parameters(*args, **kwargs)
        return found


def parallel(model: nn.Module, device: torch.device) -> nn.Module:
    """``model`` wrapped for several processes, all with the weights of the first; unwrapped if it has
    nothing to train.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    return ParallelModel(model, device_ids=[device.index] if device.type == "cuda" else None)


# How many groups this process made before. Every process of the gang counts the same.
_group_numbers = itertools.count()


def _own_store() -> tuple[torch.distributed.Store, int, int]:
    """The store of the gang's launcher under a prefix that no earlier group used, the rank, and the number of
    processes.

    The launcher's store outlasts a group, and torch gives the next group the same keys: a process could read
    the addresses of the group before and wait for half an hour until somebody answers there.
    """
    store, rank, size = next(torch.distributed.rendezvous("env://"))
    return torch.distributed.PrefixStore(f"determined/{next(_group_numbers)}", store), rank, size


@contextlib.contextmanager
def process_group(
    dist: core.DistributedContext | None, backend: str | None = None, alone: bool = False
) -> Iterator[None]:
    """Torch's process group for the block, unless there is one already or there is only one process.

    ``backend``: by default NCCL where there are GPUs, else Gloo. ``alone``: make it for a single process,
    too.
    """
    size = 1 if dist is None else dist.size
    if (size == 1 and not alone) or torch.distributed.is_initialized():
        yield
        return
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    # One process meets nobody: it needs no address and no port.
    store, rank, size = (torch.distributed.HashStore(), 0, 1) if size == 1 else _own_store()
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
