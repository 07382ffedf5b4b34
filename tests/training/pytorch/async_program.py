"""A long training with a checkpoint after each batch, killed again and again: ``FOLDER MOMENTS``.

One process imports torch once and forks each training. It kills the training at a moment after its first
batch, looks at what it left, and goes on from the newest checkpoint. Prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by the first optimizer, in each fork otherwise

from determined import pytorch
from determined.storage import build

LENGTH = 4000
BATCHES = 2, 3, 4
"""That a training trains before its end, in turn."""
LONGEST = 0.1
"""Seconds from the last of them to the end: within the storing of a checkpoint, or between two."""


class Trial(pytorch.PyTorchTrial):
    """Draws from torch's generator and Python's; its state is 2 MB."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        layers = torch.nn.Linear(600, 300), torch.nn.Dropout(0.5), torch.nn.Linear(300, 1)
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))
        self.log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def build_training_data_loader(self) -> Any:
        data = torch.utils.data.TensorDataset(torch.arange(40.0))
        return pytorch.DataLoader(data, batch_size=4, shuffle=True)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs = torch.rand(len(batch[0]), 600) * batch[0][:, None] * random.random()
        loss = self.model(inputs).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        os.write(self.log, f"{batch_idx + 1} {loss.item().hex()}\n".encode())
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": batch[0].mean()}


def train(folder: Path, log: Path, length: int, latest: str | None, wanted: bool) -> None:
    os.environ["LOG"] = str(log)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    random.seed(3)
    import determined.core._context as contexts
    from determined import core

    # The storage of an experiment without a service: the trial's own.
    init = contexts.init
    core.init = lambda **given: init(**given, checkpoint_storage=str(folder))  # type: ignore[assignment]
    with pytorch.init(hparams={"global_batch_size": 4}) as context:
        pytorch.Trainer(Trial(context), context).fit(
            max_length=pytorch.Batch(length),
            checkpoint_period=pytorch.Batch(1),
            reporting_period=pytorch.Batch(1),
            latest_checkpoint=latest,
            async_checkpoints=wanted,
        )


def forked(*given: Any) -> int:
    child = os.fork()
    if child:
        return child
    try:
        train(*given)
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def losses(log: Path) -> dict[int, str]:
    """Raises AssertionError when a batch that was trained twice had another loss."""
    found: dict[int, str] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        number, _, loss = line.partition(" ")
        assert found.setdefault(int(number), loss) == loss, f"batch {number}"
    return found


def newest(folder: Path) -> tuple[int, str | None]:
    """Raises when something that is offered as a checkpoint is not a whole one."""
    storage = build({"type": "directory", "container_path": str(folder)})
    found: list[tuple[int, str | None]] = [(0, None)]
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        storage.verify(path.name)
        state = torch.load(path / "state_dict.pth", weights_only=False)
        assert set(state) >= {"models_state_dict", "optimizers_state_dict", "rng_state"}
        steps = json.loads((path / "metadata.json").read_text())["steps_completed"]
        found.append((steps, path.name))
    return max(found, key=lambda one: one[0])


def main() -> None:
    folder, moments = Path(sys.argv[1]).absolute(), int(sys.argv[2])
    storage, log = folder / "storage", folder / "log"
    storage.mkdir()
    (folder / "code").mkdir()
    os.chdir(folder / "code")  # with little in it for the checkpoints
    lost, left = [], 0
    for number in range(moments):
        steps, latest = newest(storage)
        before = len(log.read_text().splitlines()) if log.exists() else 0
        child = forked(storage, log, LENGTH, latest, True)
        wanted = before + BATCHES[number % len(BATCHES)]
        while not log.exists() or len(log.read_text().splitlines()) < wanted:
            assert os.waitpid(child, os.WNOHANG)[0] == 0, "the training ended by itself"
            time.sleep(0.002)
        time.sleep(LONGEST * number / moments)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        left += len([path for path in storage.iterdir() if path.name.startswith(".incomplete")])
        steps, latest = newest(storage)
        lost.append(max(losses(log)) - steps)
        for path in storage.iterdir():  # disk space, and what a sweep would remove
            if path.name != latest:
                shutil.rmtree(path)
    trained = losses(log)
    end = max(trained)
    whole = folder / "whole"
    child = forked(folder / "other", whole, end, None, False)
    assert os.waitpid(child, 0)[1] == 0
    same = losses(whole) == trained
    print(
        json.dumps({"moments": moments, "trained": end, "lost": lost, "left": left, "same": same})
    )


if __name__ == "__main__":
    main()
