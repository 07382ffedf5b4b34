"""The data loader whose position in the training data survives a resume."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

from determined import errors
from determined.pytorch import _rng, samplers

TorchData: TypeAlias = dict[str, Any] | list[Any] | tuple[Any, ...] | torch.Tensor | np.ndarray


class DataLoader:
    """Takes the arguments of ``torch.utils.data.DataLoader`` and reads the same batches.

    This is a description rather than a loader. The Trainer makes a torch loader from it that repeats the
    data, takes this process' share of the batches and begins where a checkpoint was written. With ``shuffle``
    each epoch has a different order, decided by the trial's seed (or the seed of ``generator``) and the
    number of the epoch.

    Raises TypeError for an IterableDataset, which has no position: give the Trainer torch's own
    DataLoader for those (``context.experimental.disable_dataset_reproducibility_checks()``).
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Sampler[Any] | None = None,
        batch_sampler: Sampler[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError(
                "pytorch.DataLoader takes datasets with indices, found an IterableDataset; return a "
                "torch.utils.data.DataLoader and call "
                "context.experimental.disable_dataset_reproducibility_checks()"
            )
        if batch_size is None and batch_sampler is None:
            raise ValueError(
                "batch_size=None (no batching) is not supported: give a batch_size or a batch_sampler"
            )
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise ValueError(f"batch_size must be a positive integer, found {batch_size!r}")
        if batch_sampler is not None and (
            batch_size not in (None, 1) or shuffle or sampler is not None or drop_last
        ):
            raise ValueError(
                "batch_sampler decides the batches: leave out batch_size, shuffle, sampler and drop_last"
            )
        if sampler is not None and shuffle:
            raise ValueError("a sampler decides the order: leave out shuffle")
        self.dataset = dataset
        self.batch_size = batch_size
        self._seed: int | None = generator.initial_seed() if generator is not None else None
        self._shuffle = shuffle
        self.sampler: Sampler[Any] = SequentialSampler(dataset) if sampler is None else sampler  # type: ignore[arg-type]
        self.batch_sampler = batch_sampler
        self._drop_last = drop_last
        # Counts the passes of a reader without a Trainer: each pass has a different order.
        self._own_batches: Sampler[list[int]] | None = None
        self._options: dict[str, Any] = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }

    def __len__(self) -> int:
        """The number of batches in one pass over the data."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        records, size = len(self.sampler), self.batch_size or 1  # type: ignore[arg-type]
        return records // size if self._drop_last else -(-records // size)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get_data_loader())

    def get_data_loader(
        self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> TorchDataLoader[Any]:
        """Torch's loader of this data.

        ``repeat``: repeat the data without end. ``num_replicas`` and ``rank``: take only every
        ``num_replicas``-th batch, beginning with batch ``rank``. ``skip``: leave out that many of the
        remaining batches.
        """
        if self._own_batches is None:
            self._own_batches = self._batches(0)
        return self._loader(
            adapt_batch_sampler(self._own_batches, repeat, skip, num_replicas, rank)
        )

    def _training_loader(
        self, seed: int, skip: int, num_replicas: int, rank: int
    ) -> TorchDataLoader[Any]:
        """An endless loader that begins with batch ``skip`` of this rank, in the order that ``seed``
        decides.
        """
        return self._loader(EndlessBatches(self._batches(seed), seed, skip, num_replicas, rank))

    def _loader(self, batch_sampler: Sampler[list[int]]) -> TorchDataLoader[Any]:
        return TorchDataLoader(self.dataset, batch_sampler=batch_sampler, **self._options)

    def _batches(self, seed: int) -> Sampler[list[int]]:
        if self.batch_sampler is not None:
            return self.batch_sampler
        sampler = self.sampler
        if self._shuffle:
            own = self._seed if self._seed is not None else seed
            # A generator of torch that was not seeded has a seed of 64 bits.
            sampler = samplers.ReproducibleShuffleSampler(sampler, own % 2**32)
        return BatchSampler(sampler, self.batch_size or 1, self._drop_last)


def adapt_batch_sampler(
    batch_sampler: Any, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
) -> Any:
    """``batch_sampler`` repeated without end, then shared out, then without its first ``skip`` batches."""
    if repeat:
        batch_sampler = samplers.RepeatBatchSampler(batch_sampler)
    if num_replicas > 1:
        batch_sampler = samplers.DistributedBatchSampler(batch_sampler, num_replicas, rank)
    if skip > 0:
        batch_sampler = samplers.SkipBatchSampler(batch_sampler, skip)
    return batch_sampler


class EndlessBatches(Sampler[list[int]]):
    """Epoch after epoch of ``batch_sampler``, this rank's share, beginning anywhere.

    The batches are the same wherever the iteration begins. A sampler with ``set_epoch`` jumps to the epoch at
    once. While a sampler draws from the global random generators, these are seeded by the epoch: so the
    model's randomness and prefetching do not change the order, and the sampler does not change the model's
    randomness. A sampler with its own generator is replayed from the first epoch on.
    """

    def __init__(
        self, batch_sampler: Any, seed: int, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> None:
        self._batch_sampler = batch_sampler
        self._seed = seed
        self._begin = skip * num_replicas + rank
        self._stride = num_replicas
        inner = batch_sampler
        if type(batch_sampler) is BatchSampler:
            inner = batch_sampler.sampler
        self._inner = inner
        self._seekable = hasattr(inner, "set_epoch")
        # These neither draw from the global generators nor remember anything.
        self._quiet = isinstance(inner, SequentialSampler | samplers._Shuffle)
        stateless = isinstance(inner, RandomSampler) and inner.generator is None
        self._replay = not (self._seekable or self._quiet or stateless)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, within = divmod(self._begin, len(self._batch_sampler))
        if self._replay:
            for past in range(epoch):
                for _ in self._epoch(past):
                    pass
        while True:
            count = 0
            for batch in self._epoch(epoch):
                if count == within:
                    within += self._stride
                    yield batch
                count += 1
            if count == 0:
                raise ValueError(
                    "the training data loader gives no batch: check that the dataset is not empty"
                )
            within -= count
            epoch += 1

    def _epoch(self, epoch: int) -> Iterator[list[int]]:
        if self._seekable:
            self._inner.set_epoch(epoch)
        if self._quiet:
            return iter(self._batch_sampler)
        return self._drawn(epoch)

    def _drawn(self, epoch: int) -> Iterator[list[int]]:
        with _rng.seeded(samplers.mix(self._seed, epoch)):
            iterator = iter(self._batch_sampler)
            # Most samplers draw a whole epoch's order with the first index.
            first = next(iterator, None)
        if first is not None:
            yield first
            yield from iterator


def training_batches(
    loader: Any, seed: int, skip: int, num_replicas: int, rank: int
) -> tuple[int | None, contextlib.AbstractContextManager[Iterator[Any]]]:
    """This rank's endless batches, and how many of them are an epoch (None if unknown).

    A loader other than :class:`DataLoader` gives every rank all of its batches, from its beginning on.
    """
    if not isinstance(loader, DataLoader):
        return length_of(loader), contextlib.nullcontext(forever(loader))
    torch_loader = loader._training_loader(seed, skip, num_replicas, rank)
    return -(-len(loader) // num_replicas), iterating(torch_loader)


def not_reproducible(loader: Any, permission: str) -> errors.InvalidModelException:
    """The error for a loader without a position; ``permission``: the call that allows such loaders."""
    return errors.InvalidModelException(
        "build_training_data_loader() must return a determined.pytorch.DataLoader, found "
        f"{type(loader).__module__}.{type(loader).__name__}; to use it as it is, without an "
        f"exact position after a resume, call {permission}"
    )


def length_of(loader: Any) -> int | None:
    """The number of batches in one pass over ``loader``, None if unknown."""
    try:
        return len(loader)
    except TypeError:
        return None


@contextlib.contextmanager
def iterating(loader: Any) -> Iterator[Iterator[Any]]:
    """``iter(loader)``; its worker processes end with the block."""
    iterator = iter(loader)
    try:
        yield iterator
    finally:
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None and not getattr(loader, "persistent_workers", False):
            shutdown()
        del iterator


def forever(loader: Any) -> Iterator[Any]:
    """The batches of a loader of unknown order, pass after pass."""
    given = 0
    while True:
        before = given
        for batch in loader:
            given += 1
            yield batch
        if given == before:
            why = f"can be read only once ({given} batches)" if given else "gives no batch"
            raise ValueError(
                f"the training data loader {why}: several epochs need a loader that gives its "
                "data again in each epoch"
            )
