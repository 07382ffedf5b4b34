"""What every contender runs: the training of ``examples/digits``, on the same list of points.

Imported in the interpreter of each contender, so it needs torch and scikit-learn only.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EPOCHS = 9
DIVISOR = 3
EXAMPLE = Path(__file__).parents[3] / "examples" / "digits"


def points() -> list[dict[str, Any]]:
    """The trials' hyperparameters and seeds, in the order in which they are to be tried."""
    found: list[dict[str, Any]] = json.loads(Path(os.environ["SEARCH_POINTS"]).read_text())
    return found


def epochs(point: dict[str, Any], count: int = EPOCHS) -> Iterator[tuple[int, float]]:
    """Trains one trial; yields (epoch, validation accuracy) after each epoch."""
    train = _example()
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(point["seed"])
    (images, labels), validation = train.load_data()
    model = train.build_model(point["hparams"])
    optimizer = torch.optim.Adam(model.parameters(), lr=point["hparams"]["learning_rate"])
    batch_size = int(point["hparams"]["batch_size"])
    for epoch in range(1, count + 1):
        train.train_epoch(model, optimizer, images, labels, batch_size)
        yield epoch, train.validate(model, *validation)["accuracy"]


def trial(index: int) -> Iterator[tuple[int, float]]:
    """:func:`epochs` of the point number ``index``, with its start and accuracies noted."""
    note("start", index)
    for epoch, accuracy in epochs(points()[index]):
        note("epoch", index, epoch=epoch, accuracy=accuracy)
        yield epoch, accuracy


def note(event: str, index: int, **values: Any) -> None:
    """One line for the comparison: appended whole, from any process."""
    line = json.dumps({"time": time.time(), "event": event, "trial": index, **values}) + "\n"
    fd = os.open(os.environ["SEARCH_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def _example() -> Any:
    # The training functions need nothing of Determined, and the other tools' interpreters lack it.
    try:
        import determined  # noqa: F401
    except ImportError:
        sys.modules["determined"] = types.ModuleType("determined")
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    import train  # type: ignore[import-not-found, unused-ignore]

    return train
