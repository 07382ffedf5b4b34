"""model.fit() of Keras on torch in two processes, with an optimizer that averages their gradients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import torch
import torch.distributed
from test_keras import SINGLE, train

from determined import errors
from tests.integration.gangs.gang_trial import GangTrial, tell


class Averaging(keras.optimizers.Adam):  # type: ignore[misc,name-defined,unused-ignore]
    """Adam on the mean of all processes' gradients."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        for grad in grads:
            torch.distributed.all_reduce(grad)
            grad /= torch.distributed.get_world_size()
        return super().apply(grads, trainable_variables)


def leg(trial: GangTrial, stop: int | None, **options: Any) -> dict[str, Any]:
    """One leg, preempted in epoch ``stop`` (from 0): where it ended, and its weights."""
    with trial.leg(SINGLE) as context:
        context.preempt.should_preempt()
        epochs = []

        def watch(epoch: int) -> None:
            epochs.append(epoch)
            if epoch == stop:
                trial.preempt(context)

        model = train(context, watch, **options)
        weights = [weight.tolist() for weight in model.get_weights()]
        return {
            "epochs": context.distributed.allgather(epochs),
            "weights": context.distributed.allgather(weights),
        }


def refused(trial: GangTrial) -> list[str]:
    """The error of each process whose optimizer averages nothing."""
    with trial.leg(SINGLE) as context:
        try:
            train(context)
        except errors.InvalidModelException as error:
            return context.distributed.allgather(str(error))
    return []


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    results: dict[str, Any] = {"refused": refused(GangTrial(folder / "refused"))}
    for name, stops in {"unbroken": [], "preempted": [1]}.items():
        trial = GangTrial(folder / name)
        legs = [leg(trial, stop, optimizer=Averaging) for stop in [*stops, None]]
        results[name] = {"legs": legs, **trial.summary()}
    tell(folder, results)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
