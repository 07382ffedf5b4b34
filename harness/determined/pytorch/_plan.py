"""The plan of one call of ``Trainer.fit``: its checked arguments, and how long it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from determined import core, errors
from determined.core._searcher import configured_length, has_operations
from determined.pytorch._units import Batch, Epoch, Record, Scale, TrainUnit, from_searcher

POLICIES = ("best", "all", "none")
ASYNC = (None, True, False, "skip")


@dataclass(frozen=True)
class FitPlan:
    """The arguments of ``fit``, checked.

    ``searcher_metric`` is None off-cluster, where there is no search.
    """

    lengths: Callable[[], Iterator[Goal]]
    checkpoint_period: TrainUnit | None
    validation_period: TrainUnit | None
    reporting_period: TrainUnit
    checkpoint_policy: str
    latest_checkpoint: str | None
    step_zero_validation: bool
    test_mode: bool
    profiling_enabled: bool
    searcher_metric: str | None
    smaller_is_better: bool
    async_checkpoints: bool | Literal["skip"] | None


class Goal:
    """A goal: train until ``length`` in all. ``wants_metric``: the searcher waits for a validation."""

    wants_metric = False

    def __init__(self, length: TrainUnit) -> None:
        self.length = length

    def progress(self, scale: Scale, batches: int, train: core.TrainContext) -> None:
        done = batches / scale.batches(self.length)
        train.report_progress(min(done, 1.0))

    def completed(self, metric: Any) -> None:
        """Note that the goal is trained, validated and stored in a checkpoint."""


class SearcherGoal(Goal):
    """A goal that the searcher assigned; its end is reported."""

    wants_metric = True

    def __init__(self, length: TrainUnit, operation: core.SearcherOperation) -> None:
        super().__init__(length)
        self._operation = operation

    def progress(self, scale: Scale, batches: int, train: core.TrainContext) -> None:
        self._operation.report_progress(scale.units(type(self.length), batches))

    def completed(self, metric: Any) -> None:
        self._operation.report_completed(metric)


def lengths(
    core_context: core.Context,
    searcher: dict[str, Any] | None,
    max_length: TrainUnit | None,
    test_mode: bool,
) -> Callable[[], Iterator[Goal]]:
    """The lengths to train, as a function that starts an iteration over them. ``searcher`` is the section of
    the configuration, None off-cluster.

    The searcher's operations decide if the configuration makes some. Otherwise, or if the searcher stops
    trials by their reports, ``max_length`` decides.

    Raises errors.InvalidConfigurationException and ValueError when neither gives a length.
    """
    if max_length is not None and not isinstance(max_length, Batch | Epoch | Record):
        raise TypeError(
            "max_length must be pytorch.Batch(n), pytorch.Epoch(n) or pytorch.Record(n), "
            f"found {max_length!r}"
        )
    if max_length is not None and not isinstance(max_length.value, int):
        raise TypeError(f"max_length must be one number of units, found {max_length!r}")
    if test_mode:
        return lambda: iter([Goal(Batch(1))])
    if searcher is None:
        if max_length is None:
            raise ValueError(
                "fit() needs max_length off-cluster, e.g. max_length=pytorch.Epoch(10)"
            )
        wanted = max_length
        return lambda: iter([Goal(wanted)])
    max_time, unit = configured_length(searcher)
    if has_operations(searcher) and max_time is None:
        if unit is None:
            raise errors.InvalidConfigurationException(
                {"searcher": searcher},
                "searcher.max_length needs a unit for trial classes, e.g. max_length: {epochs: 10}; "
                f"found {searcher.get('max_length')!r}"
                + (
                    " (custom searchers: searcher.unit)" if searcher.get("name") == "custom" else ""
                ),
            )
        return lambda: (
            SearcherGoal(from_searcher(unit, operation.length), operation)
            for operation in core_context.searcher.operations()
        )
    if max_length is None and max_time is not None and unit is not None:
        max_length = from_searcher(unit, max_time)
    if max_length is None:
        raise errors.InvalidConfigurationException(
            {"searcher": searcher},
            "the length of the training is not set: set searcher.max_length (e.g. {epochs: 10}) or "
            "searcher.time_metric (batches, epochs or records) with max_time, or give fit() a max_length",
        )
    target = max_length
    return lambda: iter([Goal(target)])


def check_period(name: str, period: TrainUnit | None) -> None:
    """Raises TypeError."""
    if period is not None and not isinstance(period, Batch | Epoch | Record):
        raise TypeError(
            f"{name} must be pytorch.Batch(n), pytorch.Epoch(n), pytorch.Record(n) or None, "
            f"found {period!r}"
        )


def check_async(wanted: Any) -> None:
    """Raises ValueError."""
    # 1 and 0 are equal to True and False.
    if not any(wanted is allowed or (wanted == allowed == "skip") for allowed in ASYNC):
        raise ValueError(f'async_checkpoints must be True, False, "skip" or None, found {wanted!r}')


def check_policy(policy: str) -> None:
    """Raises ValueError."""
    if policy not in POLICIES:
        raise ValueError(
            f"checkpoint_policy must be one of {', '.join(POLICIES)}, found {policy!r}"
        )
