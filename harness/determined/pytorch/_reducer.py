"""Reduces many values to one: metrics of batches, and the user's own metrics."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from determined.pytorch import _metrics


class Reducer(enum.Enum):
    """The way in which a validation metric's values of all batches are combined.

    AVG weighs by the number of records in the batch.
    """

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4

    def __call__(self, values: Sequence[Any], weights: Sequence[int] | None = None) -> Any:
        """One value (a number, or an array of the values' shape when they have several elements).

        Raises TypeError and ValueError for values that cannot be added, and for values of several shapes.
        """
        array = np.array(values)
        if self is Reducer.AVG:
            reduced = np.average(array, axis=0, weights=weights)
        elif self is Reducer.SUM:
            reduced = np.sum(array, axis=0)
        else:
            reduced = np.max(array, axis=0) if self is Reducer.MAX else np.min(array, axis=0)
        return reduced.reshape(())[()] if np.size(reduced) == 1 else reduced


class MetricReducer(abc.ABC):
    """A metric that needs all batches at once, e.g. the area under a curve.

    Register an object with ``context.wrap_reducer()`` and feed it in ``train_batch`` or ``evaluate_batch``
    by methods of your own. ``reset()`` is called before each validation, and before each stretch of
    training that is reported as one. At the end every process calls ``per_slot_reduce()``, then
    ``cross_slot_reduce()`` with the list of their results, in the order of ranks.
    """

    @abc.abstractmethod
    def reset(self) -> None:
        """Drop the values that were fed."""

    @abc.abstractmethod
    def per_slot_reduce(self) -> Any:
        """The result of this process; must be picklable."""

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """The metric; a dict of metrics for a reducer that was registered without a name."""


class SimpleMetricReducer(MetricReducer):
    """Calls ``fn`` with the list of all values that ``update()`` was given, in all processes."""

    def __init__(self, fn: Callable[[list[Any]], Any]) -> None:
        self._fn = fn
        self._values: list[Any] = []

    def reset(self) -> None:
        self._values = []

    def update(self, value: Any) -> None:
        """Add ``value`` to the list."""
        self._values.append(value)

    def per_slot_reduce(self) -> list[Any]:
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        return self._fn([value for values in per_slot_metrics for value in values])


class Reducers:
    """The reducers of a trial."""

    def __init__(self, allgather: Callable[[Any], list[Any]]) -> None:
        self._allgather = allgather
        self._wrapped: list[tuple[MetricReducer, str | None, bool, bool]] = []

    def wrap(
        self,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        name: str | None,
        for_training: bool,
        for_validation: bool,
    ) -> MetricReducer:
        """Raises TypeError for an object that is not a reducer, ValueError for a name that is taken."""
        if not isinstance(reducer, MetricReducer):
            if isinstance(reducer, type) or not callable(reducer):
                raise TypeError(
                    "wrap_reducer() takes a MetricReducer object or a function of a list, "
                    f"found {reducer!r}"
                )
            if name is None:
                raise ValueError("wrap_reducer() of a function needs the metric's name")
            reducer = SimpleMetricReducer(reducer)
        for _, taken, training, validation in self._wrapped:
            overlap = (training and for_training) or (validation and for_validation)
            if name is not None and taken == name and overlap:
                raise ValueError(f"the metric {name!r} has a reducer already; give another name")
        self._wrapped.append((reducer, name, for_training, for_validation))
        return reducer

    def reset(self) -> None:
        for reducer, *_ in self._wrapped:
            reducer.reset()

    def reduce(self, for_training: bool) -> dict[str, Any]:
        """The metrics. Called by all processes together."""
        chosen = [
            (reducer, name)
            for reducer, name, training, validation in self._wrapped
            if (training if for_training else validation)
        ]
        if not chosen:
            return {}
        gathered = self._allgather([reducer.per_slot_reduce() for reducer, _ in chosen])
        metrics: dict[str, Any] = {}
        for (reducer, name), parts in zip(chosen, zip(*gathered, strict=True), strict=True):
            value = reducer.cross_slot_reduce(list(parts))
            if name is not None:
                metrics[name] = value
            elif isinstance(value, dict):
                metrics.update(value)
            else:
                raise TypeError(
                    f"{type(reducer).__name__} is registered without a name, so its "
                    f"cross_slot_reduce() must return a dict of metrics; found {value!r}"
                )
        return {name: _metrics.numpy_of(value) for name, value in metrics.items()}
