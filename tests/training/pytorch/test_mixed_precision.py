"""Mixed precision: by a switch, and by hand with a scaler."""

from __future__ import annotations

import collections
import copy
from typing import Any

import pytest
import torch
from trials import SmallTrial, World

from determined import pytorch

Pair = collections.namedtuple("Pair", ["scores", "rest"])


class Outputs(collections.OrderedDict[str, Any]):
    """Has its keys as attributes, like Hugging Face's."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        setattr(self, key, value)


class Structured(torch.nn.Module):
    """Notes in which types it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
        self.types: list[torch.dtype] = []

    def forward(self, inputs: torch.Tensor) -> Any:
        scores = self.linear(inputs)
        self.types.append(scores.dtype)
        return Outputs(logits=scores, pair=Pair(scores, [scores, "text"]), count=torch.tensor(3))


@pytest.mark.parametrize("models_first", [False, True])
def test_the_switch(world: World, models_first: bool) -> None:
    with world.context() as context:
        if not models_first:
            context.experimental.use_amp()
        model = context.wrap_model(Structured())
        if models_first:
            context.experimental.use_amp()
        outputs = model(torch.ones(2, 4))
    assert model.types == [torch.bfloat16]
    floats = [outputs.logits, outputs["logits"], outputs.pair.scores, outputs.pair.rest[0]]
    assert {value.dtype for value in floats} == {torch.float32}
    assert outputs.pair.rest[1] == "text"
    assert outputs.count.dtype == torch.int64
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(torch.ones(2, 4)).logits.any()
    assert model(torch.ones(2, 4)).logits.any()


def test_losses_are_in_full_precision(world: World) -> None:
    class Mixed(SmallTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.experimental.use_amp()

        def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            assert not torch.is_autocast_enabled("cpu")
            return {"largest": self.model(batch[0]).cpu().numpy().max()}

    assert len(world.train(Mixed).seen) == 10


@pytest.mark.parametrize("unscaled_before", [False, True])
def test_clipping_with_a_scaler(world: World, unscaled_before: bool) -> None:
    class ByHand(SmallTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=64.0))
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.sgd = context.wrap_optimizer(torch.optim.SGD([self.weight], lr=1.0))

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.backward(self.scaler.scale(self.weight * 3))
            if unscaled_before:
                self.scaler.unscale_(self.sgd)
            self.context.step_optimizer(self.sgd, clip_grads=self.clip, scaler=self.scaler)
            self.scaler.update()
            return {"weight": self.weight}

        def clip(self, parameters: Any) -> None:
            torch.nn.utils.clip_grad_value_(parameters, 2.0)

    trial = world.train(ByHand, max_length=pytorch.Batch(3))
    assert trial.weight.item() == -6
