"""``torch_batch_process``: the loop of batch inference."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import uuid
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from determined import core
from determined._info import get_cluster_info
from determined.pytorch import _data, _parallel
from determined.pytorch.experimental._processor import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
)

logger = logging.getLogger("determined.pytorch")

OWN = ("sampler", "batch_sampler")


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: Dataset[Any],
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: dict[str, Any] | None = None,
    distributed_context: core.DistributedContext | None = None,
) -> None:
    """Give every batch of ``dataset`` to an object of ``batch_processor_cls``, once.

    In a trial of several slots (under ``determined.launch.torch_distributed``) the batches are dealt out to
    the processes one by one. If they cannot be divided evenly, some processes have one batch less; no batch
    is given twice. A trial goes on from its last checkpoint; off the cluster there is nothing to go on
    from.

    Args:
        dataset: a dataset with a length and indices. batch_size: records per batch; default 1, or the value
        in ``dataloader_kwargs``. max_batches: the most batches per process. checkpoint_interval: batches of
        each process between checkpoints. At a checkpoint all processes wait for each other and check for
        preemption. dataloader_kwargs: further arguments of ``torch.utils.data.DataLoader``, except those
        that change the order. distributed_context: by default the context of torch's launcher, if it
        started this process (torch's process group is then made, too).

    Raises TypeError and ValueError for invalid arguments.
    """
    loader = _loader(dataset, batch_size, dataloader_kwargs or {})
    _check_positive("checkpoint_interval", checkpoint_interval)
    if max_batches is not None:
        _check_positive("max_batches", max_batches)
    with _contexts(distributed_context) as core_context:
        dist = core_context.distributed
        steps = -(-len(loader) // dist.size)
        if max_batches is not None:
            steps = min(steps, max_batches)
        done, output_id = _position(core_context)
        context = TorchBatchProcessorContext(core_context, f"{output_id}/rank_{dist.rank}")
        processor = batch_processor_cls(context=context)
        with _data.iterating(loader.get_data_loader(False, done, dist.size, dist.rank)) as batches:
            finished = _process(
                core_context,
                context,
                processor,
                batches,
                (done, steps),
                checkpoint_interval,
                output_id,
            )
        if finished:
            processor.on_finish()
            stored = dist.gather(context._uploaded)
            if stored is not None and any(stored):
                logger.info(
                    "the files of upload_path() are in %s of the checkpoint storage", output_id
                )


def _process(
    core_context: core.Context,
    context: TorchBatchProcessorContext,
    processor: TorchBatchProcessor,
    batches: Iterator[Any],
    span: tuple[int, int],
    interval: int,
    output_id: str,
) -> bool:
    """Process the batches from ``span[0]`` to ``span[1]``; False when preempted before the end."""
    begin, end = span
    preempted = False
    done = begin
    while done < end and not preempted:
        batch = next(batches, None)
        # The last one may be another process' only; the checkpoint is everybody's.
        if batch is not None:
            processor.process_batch(batch=batch, batch_idx=done)
        done += 1
        if done % interval == 0 or done == end:
            processor.on_checkpoint_start()
            _save(core_context, done, output_id)
            if core_context.distributed.rank == 0:
                core_context.train.report_progress(done / end)
            preempted = done < end and core_context.preempt.should_preempt()
    # Reducers are not saved at a stop: their values are reported now.
    metrics = context._reducers.reduce(for_training=False)
    if metrics and core_context.distributed.rank == 0:
        core_context.train.report_validation_metrics(done, metrics)
    if preempted:
        logger.info("preempted after %d of %d batches", done, end)
    return not preempted


def _save(core_context: core.Context, done: int, output_id: str) -> None:
    """Write a checkpoint with the progress of all processes; called when all of them have reached it."""
    everybody = core_context.distributed.gather(done)
    if everybody is None:
        return
    steps = min(everybody)
    metadata = {
        "steps_completed": steps,
        "workers": len(everybody),
        "default_output_uuid": output_id,
    }
    with core_context.checkpoint.store_path(metadata) as (path, _):
        (Path(path) / "batch_completed.json").write_text(json.dumps({"batch_completed": steps}))


def _position(core_context: core.Context) -> tuple[int, str]:
    """(batches that each process has processed, the id of the output in the checkpoint storage)."""
    info = core_context.info
    metadata: dict[str, Any] = {}
    if info is not None and info.latest_checkpoint is not None:
        metadata = core_context.checkpoint.get_metadata(info.latest_checkpoint)
        logger.info("going on after batch %d", metadata["steps_completed"])
    dist = core_context.distributed
    output_id = dist.broadcast(str(uuid.uuid4()))
    # Of as many batches in all as were processed; some anew rather than some never.
    done = metadata.get("steps_completed", 0) * metadata.get("workers", dist.size) // dist.size
    return done, metadata.get("default_output_uuid", output_id)


@contextlib.contextmanager
def _contexts(dist: core.DistributedContext | None) -> Iterator[core.Context]:
    own = None
    if dist is None and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        dist = own = core.DistributedContext.from_torch_distributed()
    info = get_cluster_info()
    if dist is None and info is not None and len(info.slot_ids) > 1:
        raise ValueError(
            f"this trial has {len(info.slot_ids)} slots but only one process: start the script by "
            "python3 -m determined.launch.torch_distributed -- python3 ..."
        )
    with core.init(distributed=dist) as core_context, _parallel.process_group(own):
        yield core_context


def _loader(
    dataset: Dataset[Any], batch_size: int | None, options: dict[str, Any]
) -> _data.DataLoader:
    if isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__"):
        raise TypeError(
            "the dataset must have indices, because processes divide it and resume in the "
            "middle; found an IterableDataset"
        )
    if not isinstance(dataset, Sized):
        raise TypeError(
            f"the dataset must have a length; {type(dataset).__name__} has no __len__()"
        )
    for name in OWN:
        if name in options:
            raise ValueError(
                f"leave {name} out of dataloader_kwargs: torch_batch_process() decides which "
                "batches a process takes"
            )
    if options.get("shuffle"):
        raise ValueError(
            "leave shuffle out of dataloader_kwargs: the progress is counted in the dataset's order"
        )
    if batch_size is not None and "batch_size" in options:
        raise ValueError(
            "batch_size is given twice, as an argument and in dataloader_kwargs: give it once"
        )
    size = options.get("batch_size", 1) if batch_size is None else batch_size
    _check_positive("batch_size", size)
    return _data.DataLoader(dataset, **{**options, "batch_size": size, "shuffle": False})


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, found {value!r}")
