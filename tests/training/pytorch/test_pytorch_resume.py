"""A training that was interrupted anywhere has the losses of one that was not, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, WeightedRandomSampler
from trials import SIZE, SmallTrial, World, data

from determined import pytorch
from determined.pytorch import _checkpoint
from determined.pytorch._callback import Callbacks

LENGTH = pytorch.Batch(18)


class Augmented(torch.utils.data.Dataset[Any]):
    """Draws a random number for each record."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        return torch.rand(4), float(index)

    def __len__(self) -> int:
        return 20


def loader(**options: Any) -> Callable[[], Any]:
    def build() -> Any:
        return pytorch.DataLoader(options.get("dataset") or data(), batch_size=SIZE, **{
            key: value for key, value in options.items() if key != "dataset"
        })  # fmt: skip

    return build


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": loader(shuffle=True),
    "in order": loader(),
    "last batch short": loader(shuffle=True, dataset=data(19)),
    "random numbers in the data": loader(shuffle=True, dataset=Augmented()),
    "the global generator's order": lambda: loader(sampler=RandomSampler(data()))(),
    "weights": lambda: loader(sampler=WeightedRandomSampler([1.0] * 20, 20))(),
    "a generator of its own": lambda: loader(
        sampler=RandomSampler(data(), generator=torch.Generator().manual_seed(5))
    )(),
    "workers": loader(shuffle=True, num_workers=1),
}


def prepare(build: Callable[[], Any], stop_after: int | None) -> Callable[[Any], None]:
    def prepare(trial: Any) -> None:
        trial.build_training_data_loader = build
        trial.stop_after = stop_after

    return prepare


# Processes take their time.
STOPS = {"workers": [13]}


@pytest.mark.parametrize(
    ("name", "stop_after"),
    [(name, stop) for name in LOADERS for stop in STOPS.get(name, [1, 4, 5, 13])],
)
def test_the_losses_are_the_same(world: World, name: str, stop_after: int) -> None:
    build = LOADERS[name]
    whole = world.train(prepare=prepare(build, None), max_length=LENGTH)
    fit: dict[str, Any] = {"max_length": LENGTH, "reporting_period": pytorch.Batch(1)}
    first = world.train(prepare=prepare(build, stop_after), **fit)
    assert len(first.seen) == stop_after
    uuid = first.stored[stop_after]
    rest = world.train(prepare=prepare(build, None), latest_checkpoint=uuid, **fit)
    assert first.seen + rest.seen == whole.seen
    for one, other in zip(rest.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_validations_do_not_change_the_training(world: World) -> None:
    plain = world.train()
    often = world.train(validation_period=pytorch.Batch(1), step_zero_validation=True)
    assert often.seen == plain.seen


def test_in_the_middle_of_an_aggregation(world: World) -> None:
    options = {"aggregation_frequency": 4}
    fit: dict[str, Any] = {"max_length": LENGTH, "reporting_period": pytorch.Batch(1)}
    whole = world.train(context_options=options, **fit)
    build = LOADERS["shuffled"]
    first = world.train(prepare=prepare(build, 7), context_options=options, **fit)
    rest = world.train(context_options=options, latest_checkpoint=first.stored[7], **fit)
    assert first.seen + rest.seen == whole.seen


class ByHand(SmallTrial):
    """Steps after every third batch, without the context's aggregation."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.model(batch[0]).sum()
        self.context.backward(loss)
        if batch_idx % 3 == 2:
            self.context.step_optimizer(self.optimizer)
        self.seen.append((loss.item(), []))
        return loss


def test_gradients_that_the_trial_adds_up_itself(world: World) -> None:
    whole = world.train(ByHand, max_length=LENGTH)
    first = world.train(ByHand, max_length=pytorch.Batch(7))
    rest = world.train(ByHand, max_length=LENGTH, latest_checkpoint=first.stored[7])
    assert first.seen + rest.seen == whole.seen


def test_another_trials_gradients_are_not_taken(world: World) -> None:
    first = world.train(ByHand, max_length=pytorch.Batch(7))
    with world.context() as context:
        trial = ByHand(context)
        folder = world.folder / first.stored[7]
        state = _checkpoint.read_state(folder)
        _checkpoint.load(state, context, Callbacks({}), going_on=False)
    assert torch.equal(trial.model[0].weight, first.model[0].weight)
    assert all(parameter.grad is None for parameter in trial.model.parameters())


class Scheduled(SmallTrial):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.rates: list[float] = []
        self.scheduler = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5),
            pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.rates += self.scheduler.get_last_lr()
        return super().train_batch(batch, epoch_idx, batch_idx)


def test_schedulers_and_callbacks_go_on(world: World) -> None:
    class Counter(pytorch.PyTorchCallback):
        count = 0

        def on_training_epoch_end(self, epoch_idx: int) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.count = state_dict["count"]

    def count(trial: Any) -> None:
        trial.callbacks = {"counter": Counter()}

    whole = world.train(Scheduled, count, max_length=LENGTH)
    first = world.train(Scheduled, count, max_length=pytorch.Batch(8))
    rest = world.train(Scheduled, count, max_length=LENGTH, latest_checkpoint=first.stored[8])
    assert first.rates + rest.rates == whole.rates
    assert rest.callbacks["counter"].count == whole.callbacks["counter"].count == 3


def test_a_finished_training_has_nothing_to_do(world: World) -> None:
    first = world.train(max_length=LENGTH)
    again = world.train(max_length=LENGTH, latest_checkpoint=first.stored[18])
    assert again.seen == []
    assert again.reports.reports == []


def test_a_longer_one_goes_on(world: World) -> None:
    first = world.train(max_length=pytorch.Batch(6))
    longer = world.train(max_length=LENGTH, latest_checkpoint=first.stored[6])
    assert len(longer.seen) == 12


def test_other_models_are_refused(world: World) -> None:
    from determined.errors import InvalidCheckpointException

    class Two(SmallTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.wrap_model(torch.nn.Linear(1, 1))

    first = world.train()
    with pytest.raises(
        InvalidCheckpointException, match="has 1 models, but the trial has wrapped 2"
    ):
        world.train(Two, latest_checkpoint=first.stored[10])
