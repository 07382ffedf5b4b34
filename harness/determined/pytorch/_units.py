"""Lengths and periods of training, in batches, epochs or records."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from determined import core


class TrainUnit:
    """A number of batches, epochs or records: use :class:`Batch`, :class:`Epoch` or :class:`Record`.

    As a period, ``value`` may also be a container of numbers: ``Batch([10, 100, 1000])``,
    ``Epoch(range(0, 100, 5))``.
    """

    def __init__(self, value: int | Container[int]) -> None:
        if isinstance(value, bool) or not isinstance(value, int | Container):
            raise TypeError(
                f"{self._name()} takes an integer or a container of integers, found {value!r}"
            )
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{self._name()} takes a positive integer, found {value}")
        self.value = value

    @classmethod
    def _name(cls) -> str:
        return cls.__name__

    def __repr__(self) -> str:
        return f"{self._name()}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.value == getattr(other, "value", None)

    def __hash__(self) -> int:
        return hash((type(self), repr(self.value)))

    def should_stop(self, step_num: int) -> bool:
        """True if the period ends after ``step_num`` units, counted from 1."""
        if isinstance(self.value, int):
            return step_num % self.value == 0
        return step_num in self.value


class Batch(TrainUnit):
    """Batches of the training data, each of ``global_batch_size`` records."""


class Epoch(TrainUnit):
    """Passes over the training data."""


class Record(TrainUnit):
    """Records of the training data. A number of records is rounded down to whole batches, at least one.
    Each number in a container stands for the batch that holds the record.
    """


_UNITS: dict[core.Unit, type[TrainUnit]] = {
    core.Unit.BATCHES: Batch,
    core.Unit.EPOCHS: Epoch,
    core.Unit.RECORDS: Record,
}


def from_config(length: dict[str, Any] | None) -> TrainUnit | None:
    """The unit of ``{"epochs": 2}``; None for nothing and for 0, which means "not periodic"."""
    for name, value in (length or {}).items():
        if value:
            return _UNITS[core.Unit(name.upper())](int(value))
    return None


def from_searcher(unit: core.Unit, length: int) -> TrainUnit:
    """The unit for the ``length`` of a searcher's operation; at least one."""
    return _UNITS[unit](max(int(length), 1))


@dataclass(frozen=True)
class Scale:
    """Converts units to batches.

    ``batches_per_epoch`` is None for data without a length, ``records_per_batch`` is None without the
    hyperparameter global_batch_size. Without the value that it needs, a unit raises ValueError.
    """

    batches_per_epoch: int | None
    records_per_batch: int | None

    def batches(self, unit: TrainUnit) -> int:
        """A length in batches, at least 1. Raises TypeError for a container."""
        if not isinstance(unit.value, int):
            raise TypeError(f"a length is one number, found {unit}")
        if isinstance(unit, Epoch):
            return unit.value * self._epoch(unit)
        if isinstance(unit, Record):
            return max(unit.value // self._batch(unit), 1)
        return unit.value

    def units(self, kind: type[TrainUnit], batches: int) -> float:
        """``batches`` in that unit."""
        if kind is Epoch:
            return batches / self._epoch(kind)
        if kind is Record:
            return batches * self._batch(kind)
        return batches

    def next_end(self, period: TrainUnit | None, done: int, last: int) -> int | None:
        """The batch after ``done``, up to ``last``, that ends a period; None when there is none."""
        if period is None:
            return None
        if isinstance(period.value, int):
            step = self.batches(period)
            end = (done // step + 1) * step
            return end if end <= last else None
        return next((n for n in range(done + 1, last + 1) if self.ends(period, n)), None)

    def first_end(self, periods: Iterable[TrainUnit | None], done: int, last: int) -> int:
        """The batch after ``done`` that ends the first of ``periods``; ``last`` when none ends before."""
        given = [period for period in periods if period is not None]
        # Containers are asked batch by batch, and a training may be long: numbers first.
        for period in sorted(given, key=lambda period: not isinstance(period.value, int)):
            last = self.next_end(period, done, last) or last
        return last

    def ends(self, period: TrainUnit | None, batch: int) -> bool:
        """True if a period ends with the ``batch``-th batch, counted from 1."""
        if period is None:
            return False
        if isinstance(period.value, int):
            return batch % self.batches(period) == 0
        if isinstance(period, Epoch):
            epoch, within = divmod(batch, self._epoch(period))
            return within == 0 and period.should_stop(epoch)
        if isinstance(period, Record):
            size = self._batch(period)
            return any(map(period.should_stop, range((batch - 1) * size + 1, batch * size + 1)))
        return period.should_stop(batch)

    def _epoch(self, unit: TrainUnit | type[TrainUnit]) -> int:
        if self.batches_per_epoch is None:
            raise ValueError(
                f"{_shown(unit)} needs the length of an epoch, but the training data has no length: "
                "give lengths and periods in batches, or set records_per_epoch in the experiment "
                "configuration"
            )
        return self.batches_per_epoch

    def _batch(self, unit: TrainUnit | type[TrainUnit]) -> int:
        if self.records_per_batch is None:
            raise ValueError(
                f"{_shown(unit)} needs the number of records in a batch: set the integer "
                "hyperparameter global_batch_size"
            )
        return self.records_per_batch


def _shown(unit: TrainUnit | type[TrainUnit]) -> str:
    return unit.__name__ if isinstance(unit, type) else repr(unit)
