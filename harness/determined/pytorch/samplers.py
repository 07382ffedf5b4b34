"""Samplers that wrap other samplers, so that training data can be repeated, shared out and skipped.

Each has a form for samplers of indices and one for samplers of batches. Wrap in this order: shuffle, then
repeat, then share out, then skip.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sized
from typing import Any, TypeVar, cast

import numpy as np
from torch.utils.data import Sampler

T = TypeVar("T")


def _length(sampler: Any) -> int:
    return len(cast(Sized, sampler))


class _Repeat(Sampler[T]):
    """One pass over ``sampler`` after the other, without end; ``len()`` is that of one pass."""

    def __init__(self, sampler: Sampler[T]) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return _length(self._sampler)

    def __iter__(self) -> Iterator[T]:
        while True:
            empty = True
            for item in self._sampler:
                empty = False
                yield item
            if empty:
                return


class _Share(Sampler[T]):
    """Every ``num_workers``-th item of ``sampler``, beginning with the ``rank``-th.

    Nothing is dropped or doubled: some ranks may have one item more than others.
    """

    def __init__(self, sampler: Sampler[T], num_workers: int, rank: int) -> None:
        if not 0 <= rank < num_workers:
            raise ValueError(f"rank must be between 0 and {num_workers - 1}, found {rank}")
        self._sampler = sampler
        self._num_workers = num_workers
        self._rank = rank

    def __len__(self) -> int:
        whole, rest = divmod(_length(self._sampler), self._num_workers)
        return whole + (self._rank < rest)

    def __iter__(self) -> Iterator[T]:
        for number, item in enumerate(self._sampler):
            if number % self._num_workers == self._rank:
                yield item


class _Skip(Sampler[T]):
    """``sampler`` without its first ``skip`` items; ``len()`` is that of a whole pass.

    Only the first pass is shortened, in which an interrupted training goes on.
    """

    def __init__(self, sampler: Sampler[T], skip: int) -> None:
        self._sampler = sampler
        self._skip = skip

    def __len__(self) -> int:
        return _length(self._sampler)

    def __iter__(self) -> Iterator[T]:
        skip, self._skip = self._skip, 0
        for number, item in enumerate(self._sampler):
            if number >= skip:
                yield item


class _Shuffle(Sampler[T]):
    """The items of ``sampler`` in random order, which differs in each pass.

    Pass ``n`` has the order of permutation ``n`` that ``numpy.random.RandomState(seed)`` draws: Determined's
    order, so that a seed gives what it gave there. Raises ValueError for a seed that is not in
    0..2**32 - 1.
    """

    def __init__(self, sampler: Sampler[T], seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self._random = np.random.RandomState(seed)
        self._drawn = 0
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Make pass ``epoch`` (from 0) the next one. The permutations before it are drawn, too."""
        self._epoch = epoch

    def __len__(self) -> int:
        return _length(self._sampler)

    def __iter__(self) -> Iterator[T]:
        items = list(self._sampler)
        order = self._order(len(items))
        self._epoch += 1
        for index in order:
            yield items[index]

    def _order(self, count: int) -> list[int]:
        if self._drawn > self._epoch:
            self._random = np.random.RandomState(self._seed)
            self._drawn = 0
        while self._drawn < self._epoch:
            self._random.permutation(count)
            self._drawn += 1
        self._drawn += 1
        order: list[int] = self._random.permutation(count).tolist()
        return order


class RepeatSampler(_Repeat[int]):
    """One pass over ``sampler`` after the other, without end; ``len()`` is that of one pass."""


class RepeatBatchSampler(_Repeat[list[int]]):
    """:class:`RepeatSampler` for batches."""

    def __init__(self, batch_sampler: Sampler[list[int]]) -> None:
        super().__init__(batch_sampler)


class DistributedSampler(_Share[int]):
    """Every ``num_workers``-th index of ``sampler``, beginning with the ``rank``-th."""


class DistributedBatchSampler(_Share[list[int]]):
    """Every ``num_workers``-th batch of ``batch_sampler``, beginning with the ``rank``-th."""

    def __init__(self, batch_sampler: Sampler[list[int]], num_workers: int, rank: int) -> None:
        super().__init__(batch_sampler, num_workers, rank)


class SkipSampler(_Skip[int]):
    """``sampler`` without the first ``skip`` indices of its first pass."""


class SkipBatchSampler(_Skip[list[int]]):
    """``batch_sampler`` without the first ``skip`` batches of its first pass."""

    def __init__(self, batch_sampler: Sampler[list[int]], skip: int) -> None:
        super().__init__(batch_sampler, skip)


class ReproducibleShuffleSampler(_Shuffle[int]):
    """The indices of ``sampler`` in an order that ``seed`` and the number of the pass decide, as in
    Determined: pass ``n`` is permutation ``n`` of ``numpy.random.RandomState(seed)``.
    """


class ReproducibleShuffleBatchSampler(_Shuffle[list[int]]):
    """:class:`ReproducibleShuffleSampler` for batches."""

    def __init__(self, batch_sampler: Sampler[list[int]], seed: int) -> None:
        super().__init__(batch_sampler, seed)


def mix(seed: int, number: int) -> int:
    """A seed that is unrelated to the seeds of the neighbouring numbers (32 bits)."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")
