"""What the callbacks of Transformers and Lightning cost: ``python -m benchmarks.training.callbacks``.

The trainings of the examples, turn by turn with our callback, which reports to a service in this process and
stores a checkpoint after each epoch, and bare, with the framework's own checkpoint after each epoch. CPU time
of this process (the service's share included) and wall time of a whole training, as ratios to bare.
``--epochs`` and ``--rounds`` say how much; a framework that is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from determined import core
from tests.training.frameworks.one_trial import OneTrial

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH_SIZE = 32
REPORTS_EVERY = 20
"""Batches."""
Way = Callable[[core.Context | None, int, Path], int]
"""Trains for a number of epochs, bare without a context; the number of checkpoints below the folder."""


def _example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def transformers() -> Way:
    from transformers import PrinterCallback, Trainer, TrainingArguments
    from transformers.utils.logging import disable_progress_bar

    from determined.transformers import DetCallback

    example = _example("huggingface")
    disable_progress_bar()
    data, valid = example.load_data()

    def train(context: core.Context | None, epochs: int, folder: Path) -> int:
        args = TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH_SIZE,
            per_device_eval_batch_size=len(valid),
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_steps=REPORTS_EVERY,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
        )
        torch.manual_seed(0)
        trainer = Trainer(
            model=example.build_model(example.HPARAMS),
            args=args,
            train_dataset=data,
            eval_dataset=valid,
            compute_metrics=example.accuracy,
            callbacks=[] if context is None else [DetCallback(context, args)],
        )
        trainer.remove_callback(PrinterCallback)  # on both sides: it prints each report
        trainer.train()
        return len(list(folder.glob("checkpoint-*")))

    return train


def lightning() -> Way:
    from lightning import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader

    from determined.lightning import DeterminedCallback

    example = _example("lightning")
    data, valid = example.load_data()

    def train(context: core.Context | None, epochs: int, folder: Path) -> int:
        torch.manual_seed(0)
        callback = ModelCheckpoint(dirpath=folder, save_top_k=-1, every_n_epochs=1)
        trainer = Trainer(
            max_epochs=epochs,
            callbacks=[DeterminedCallback(context, 1) if context is not None else callback],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=REPORTS_EVERY,
        )
        loader = DataLoader(data, batch_size=BATCH_SIZE, shuffle=True)
        trainer.fit(example.Digits(example.HPARAMS), loader, DataLoader(valid, batch_size=360))
        return len(list(folder.glob("*.ckpt")))

    return train


FRAMEWORKS = {"transformers": transformers, "lightning": lightning}


def _bare(way: Way, epochs: int, folder: Path) -> int:
    return way(None, epochs, folder / "own")


def _ours(way: Way, epochs: int, folder: Path) -> int:
    trial = OneTrial(folder / "storage")
    # Without a length and a metric: those of the frameworks count.
    with trial.leg({"name": "single"}) as context:
        way(context, epochs, folder / "own")
    return len(trial.checkpoints())


def measure(way: Way, epochs: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(CPU, wall) seconds of each round, for "bare" and "ours". Raises SystemExit when one of them stored
    another number of checkpoints than epochs.
    """
    sides = {"bare": _bare, "ours": _ours}
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side in list(sides)[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory() as name:
                cpu, wall = time.process_time(), time.perf_counter()
                stored = sides[side](way, epochs, Path(name))
                took = time.process_time() - cpu, time.perf_counter() - wall
            if stored != epochs:
                raise SystemExit(f"{side}: {stored} checkpoints in {epochs} epochs")
            if number:  # the first round imports
                found[side].append(took)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for name, make in FRAMEWORKS.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed")
            continue
        found = measure(make(), options.epochs, options.rounds)
        for column, what in enumerate(("CPU", "wall")):
            pairs = zip(found["ours"], found["bare"], strict=True)
            ratios = [ours[column] / bare[column] for ours, bare in pairs]
            bare = statistics.median(one[column] for one in found["bare"])
            print(
                f"{name}: {what} {statistics.median(ratios):.3f} of bare ({min(ratios):.3f} to "
                f"{max(ratios):.3f} in {options.rounds} rounds; bare {bare:.2f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
