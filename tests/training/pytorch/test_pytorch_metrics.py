"""Units, reducers, averages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from trials import SmallTrial, World

from determined import errors, pytorch
from determined.pytorch import _metrics
from determined.pytorch._units import Scale, from_config

SCALE = Scale(batches_per_epoch=5, records_per_batch=4)


@pytest.mark.parametrize(
    ("period", "ends"),
    [
        (pytorch.Batch(4), [4, 8, 12, 16]),
        (pytorch.Batch([3, 11]), [3, 11]),
        (pytorch.Epoch(2), [10]),
        (pytorch.Epoch(range(1, 9, 2)), [5, 15]),
        (pytorch.Record(22), [5, 10, 15]),
        (pytorch.Record([1, 9, 64]), [1, 3, 16]),
        (None, []),
    ],
)
def test_ends_of_periods(period: Any, ends: list[int]) -> None:
    assert [batch for batch in range(1, 17) if SCALE.ends(period, batch)] == ends
    found, done = [], 0
    while (end := SCALE.next_end(period, done, 16)) is not None:
        found.append(end)
        done = end
    assert found == ends


def test_the_first_end_of_several_periods() -> None:
    periods = (pytorch.Batch([3, 11]), None, pytorch.Epoch(1), pytorch.Record([1000]))
    # Looking through all batches of so long a training would not end.
    assert [SCALE.first_end(periods, done, 10**15) for done in (0, 3, 5, 10)] == [3, 5, 10, 11]
    assert SCALE.first_end(periods, 11, 14) == 14
    assert SCALE.first_end([None], 0, 7) == 7


def test_lengths() -> None:
    units = (pytorch.Batch(7), pytorch.Epoch(2), pytorch.Record(39), pytorch.Record(1))
    assert [SCALE.batches(unit) for unit in units] == [7, 10, 9, 1]
    assert SCALE.units(pytorch.Epoch, 7) == 1.4
    assert SCALE.units(pytorch.Record, 7) == 28
    assert pytorch.Batch(3) == pytorch.Batch(3) != pytorch.Epoch(3)
    assert repr(pytorch.Epoch(3)) == "Epoch(3)"
    assert from_config({"epochs": 2}) == pytorch.Epoch(2)
    assert from_config({"batches": 0}) is from_config({}) is from_config(None) is None


def test_units_without_a_scale() -> None:
    unknown = Scale(None, None)
    with pytest.raises(ValueError, match="records_per_epoch"):
        unknown.batches(pytorch.Epoch(1))
    with pytest.raises(ValueError, match="global_batch_size"):
        unknown.batches(pytorch.Record(1))
    with pytest.raises(ValueError, match="found 0"):
        pytorch.Batch(0)
    with pytest.raises(TypeError, match=r"found 1\.5"):
        pytorch.Batch(1.5)  # type: ignore[arg-type]


def test_reducers() -> None:
    values = [1.0, 2.0, 6.0]
    found = {reducer.name: reducer(values, [1, 1, 2]) for reducer in pytorch.Reducer}
    assert found == {"AVG": 3.75, "SUM": 9.0, "MAX": 6.0, "MIN": 1.0}
    rows = [np.array([1.0, 2.0]), np.array([3.0, 6.0])]
    assert pytorch.Reducer.AVG(rows, [1, 1]).tolist() == [2.0, 4.0]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_arrays_of_one_number_are_numbers(shape: tuple[int, ...]) -> None:
    values = [np.full(shape, 1.0), np.full(shape, 3.0)]
    for reducer, number in zip(pytorch.Reducer, [2.5, 4, 3, 1], strict=True):
        assert reducer(values, [1, 3]).shape == ()
        assert reducer(values, [1, 3]) == number
    average = _metrics.Averager()([{"a": value} for value in values])["a"]
    assert type(average) is float and average == 2


def test_the_searchers_metric_is_one_number() -> None:
    fine = [1.5, np.float32(1.5), np.array([1.5]), torch.tensor([[1.5]], dtype=torch.bfloat16)]
    assert [_metrics.one_number(value, "x") for value in fine] == [1.5] * 4
    for value in ("1.5", None, [1.0, 2.0], {"a": 1.0}, np.ones(0)):
        with pytest.raises(errors.InvalidModelException, match="'x', which must be one number"):
            _metrics.one_number(value, "x")


class Area(pytorch.MetricReducer):
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total = 0.0

    def per_slot_reduce(self) -> Any:
        return self.total

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return {"area": torch.tensor(sum(per_slot_metrics)), "slots": len(per_slot_metrics)}


class Reduced(SmallTrial):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.area = context.wrap_reducer(Area())
        self.count = context.wrap_reducer(len, "count", for_validation=False)
        self.largest = context.wrap_reducer(max, "largest", for_training=False)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.area.total += 1
        self.count.update(0)
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.area.total += 10
        self.largest.update(batch[1].max().item())
        return super().evaluate_batch(batch, batch_idx)

    def evaluation_reducer(self) -> Any:
        return {"first": pytorch.Reducer.MAX}


def test_reducers_of_a_trial(world: World) -> None:
    trial = world.train(Reduced, max_length=pytorch.Batch(5), reporting_period=pytorch.Batch(3))
    one, two, validation = [metrics for _, _, metrics in trial.reports.reports]
    assert [one["area"], one["count"], one["slots"]] == [3, 3, 1]
    assert isinstance(one["area"], np.ndarray)
    assert [two["area"], two["count"]] == [2, 2]
    assert "largest" not in one and "count" not in validation
    assert [validation["area"], validation["largest"], validation["first"]] == [20, 6, 4]
    assert [one["batches"], two["batches"], validation["epochs"]] == [3, 5, 1]


def test_averages_weigh_records(world: World) -> None:
    trial = world.train(max_length=pytorch.Batch(1))
    metrics = trial.reports.reports[-1][2]
    assert metrics["first"] == pytest.approx((0 * 4 + 4 * 3) / 7)


def test_reducers_that_are_none(world: World) -> None:
    with world.context() as context:
        with pytest.raises(TypeError, match="found 3"):
            context.wrap_reducer(3)
        with pytest.raises(ValueError, match="needs the metric's name"):
            context.wrap_reducer(sum)
        context.wrap_reducer(sum, "x", for_training=False)
        context.wrap_reducer(sum, "x", for_validation=False)
        with pytest.raises(ValueError, match="already"):
            context.wrap_reducer(sum, "x")


def test_results_of_train_batch_are_kept_unchanged() -> None:
    for device in ("cpu", "meta"):
        snapshot = _metrics.snapshotter(torch.device(device))
        total = torch.zeros(())
        kept = []
        for _ in range(3):
            total += 1
            kept.append(snapshot({"total": total, "name": "x", "row": torch.ones(2)}))
        settled = _metrics.settled(kept)
        assert [batch["total"] for batch in settled] == [1, 2, 3]
        averages = _metrics.Averager()(settled)
        assert averages["total"] == 2
        assert averages["row"].tolist() == [1, 1]
        assert "name" not in averages
    assert snapshot(torch.tensor(2.0))["loss"] == 2
    with pytest.raises(errors.InvalidModelException, match="found NoneType"):
        snapshot(None)


def test_batches_may_have_different_metrics() -> None:
    averages = _metrics.Averager()([{"a": 1, "b": True}, {"a": 3}])
    assert averages == {"a": 2, "b": 1}
