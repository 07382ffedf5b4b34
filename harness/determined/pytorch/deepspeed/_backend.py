"""DeepSpeed's setup for a process group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch.distributed

from determined import core
from determined.pytorch import _parallel

# An extension that DeepSpeed compiles where it first communicates on a CPU, for a minute of all
# processes. It makes inference's all-reduce faster; training does without.
SHARED_MEMORY_OP = "deepspeed_shm_comm"


@contextlib.contextmanager
def process_group(dist: core.DistributedContext) -> Iterator[None]:
    """Torch's process group for the block, known to DeepSpeed; also for a single process.

    With ``DET_MANUAL_INIT_DISTRIBUTED`` in the environment the training code makes it.
    """
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        _compile_nothing()
    if os.environ.get("DET_MANUAL_INIT_DISTRIBUTED"):
        yield
        return
    backend = accelerator.communication_backend_name()
    ours = not torch.distributed.is_initialized()
    with _local_rank(dist), _parallel.process_group(dist, backend, alone=True):
        deepspeed.init_distributed(auto_mpi_discovery=False)
        try:
            yield
        finally:
            if ours:
                # DeepSpeed's own process groups must not outlive it.
                deepspeed.comm.destroy_process_group()


def _compile_nothing() -> None:
    import deepspeed
    from deepspeed.git_version_info import installed_ops

    # Users who compiled the operator when they installed DeepSpeed get it.
    if not installed_ops.get(SHARED_MEMORY_OP):
        deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False


@contextlib.contextmanager
def _local_rank(dist: core.DistributedContext) -> Iterator[None]:
    """Set the environment that DeepSpeed reads: for a single process no launcher has set it."""
    if "LOCAL_RANK" in os.environ:
        yield
        return
    os.environ["LOCAL_RANK"] = str(dist.local_rank)
    try:
        yield
    finally:
        del os.environ["LOCAL_RANK"]


def gpus() -> int:
    """The GPUs that DeepSpeed trains on; none if its accelerator is the CPU."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    return int(accelerator.device_count()) if accelerator.device_name() == "cuda" else 0
