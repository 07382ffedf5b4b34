"""How long a trial trains, for the training loops of Hugging Face, Lightning and Keras.

The callbacks ask this module for the next length and tell it when that length is reached. The loop is given
the longest length of the configuration, so that learning rate schedules span the whole training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from determined import core, errors
from determined.core._searcher import configured_length, has_operations


class Lengths:
    """The lengths that the searcher gives this trial, one after the other.

    ``longest``: the most units (``unit``: epochs or batches) that the configuration lets a trial train,
    None when the training code decides. ``current``: the total of units at which the current length ends,
    None when nothing waits for the end of a length. ``over``: there are no more lengths and the training
    must end. In a trial of several processes all processes make the same calls.

    Raises errors.InvalidConfigurationException when ``searcher`` counts in a unit that ``loop`` (its
    name, for the message) cannot count.
    """

    def __init__(
        self,
        core_context: core.Context,
        loop: str,
        units: tuple[core.Unit, ...] = (core.Unit.EPOCHS, core.Unit.BATCHES),
    ) -> None:
        self._core = core_context
        self._is_chief = core_context.distributed.rank == 0
        info = core_context.info
        searcher: dict[str, Any] = {}
        if info is not None and info.task_type == "TRIAL":
            searcher = info.trial._config.get("searcher") or {}
        self.metric: str | None = searcher.get("metric")
        self.time_metric: str | None = searcher.get("time_metric")
        self.longest: int | None = None
        self.unit: core.Unit | None = None
        self.over = False
        self._operation: core.SearcherOperation | None = None
        self._operations: Iterator[core.SearcherOperation] | None = None
        if not has_operations(searcher):
            return
        max_time, self.unit = configured_length(searcher)
        if max_time is not None:
            # The searcher follows the reports and stops the trial by preemption.
            self.longest = max_time if self.unit in units else None
            self.unit = self.unit if self.unit in units else None
            return
        if self.unit not in units:
            allowed = " or ".join(f"{{{unit.name.lower()}: 10}}" for unit in units)
            raise errors.InvalidConfigurationException(
                {"searcher": searcher},
                f"searcher.max_length must be in a unit that {loop} counts, e.g. {allowed}; "
                f"found {searcher.get('max_length') or searcher.get('unit')!r}",
            )
        length = searcher.get("max_length")
        self.longest = length[self.unit.name.lower()] if isinstance(length, Mapping) else None
        self._operations = iter(core_context.searcher.operations())
        self._next()

    def _next(self) -> None:
        assert self._operations is not None
        self._operation = next(self._operations, None)
        self.over = self._operation is None

    @property
    def current(self) -> int | None:
        return None if self._operation is None else self._operation.length

    def reached(self, units: float) -> bool:
        """True if ``units`` trained in all are the current length or more."""
        return self.current is not None and units >= self.current

    def progress(self, units: float, fraction: float) -> None:
        """Note that ``units`` in all are trained: the ``fraction`` (0 to 1) of the loop's length."""
        if not self._is_chief:
            return
        if self._operation is not None:
            self._operation.report_progress(units)
        else:
            self._core.train.report_progress(min(max(fraction, 0.0), 1.0))

    def complete(self, metrics: Mapping[str, Any]) -> None:
        """Note that the current length is trained, validated with ``metrics`` and stored in a checkpoint.

        Waits for the searcher's next length. Raises errors.InvalidModelException when the searcher's
        metric is not among ``metrics``.
        """
        self.check(metrics)
        if self._is_chief and self._operation is not None:
            self._operation.report_completed(metrics[self.metric or ""])
        self._next()

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Raises errors.InvalidModelException when ``metrics`` lacks a metric that the searcher needs."""
        for key, name in (("metric", self.metric), ("time_metric", self.time_metric)):
            if name is not None and name not in metrics:
                raise errors.InvalidModelException(
                    f"searcher.{key} is {name!r}, but the validation has no such metric; it has "
                    f"{', '.join(map(str, metrics)) or 'none'}"
                )
