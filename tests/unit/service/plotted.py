"""Searches to draw, made without a database."""

from __future__ import annotations

import datetime
import math
import random
from typing import Any

from determined_service.plots.model import PlottedOutcome, PlottedTrial, Point, Search
from determined_service.plots.occupancy import ladders

BEGIN = datetime.datetime(2026, 5, 1, 12, 0, tzinfo=datetime.UTC)
SECOND = datetime.timedelta(seconds=1)

SPACE: dict[str, Any] = {
    "optimizer": {
        "learning_rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
        "name": {"type": "categorical", "vals": ["adam", "sgd"]},
    },
    "hidden": {"type": "int", "minval": 16, "maxval": 256},
    "nesterov": {"type": "categorical", "vals": [True, False]},
    "seed": {"type": "const", "val": 3},
}


def config(**searcher: Any) -> dict[str, Any]:
    """A complete configuration as far as plots look."""
    section = {
        "name": "adaptive_asha",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_trials": 24,
        "max_length": {"epochs": 9},
        "divisor": 3,
        "mode": "standard",
        "max_rungs": 5,
        "max_concurrent_trials": 4,
    }
    return {
        "searcher": {**section, **searcher},
        "hyperparameters": SPACE,
        "reproducibility": {"experiment_seed": 1},
    }


def search(**values: Any) -> Search:
    """A search without trials."""
    given = {"name": "digits", "state": "ACTIVE", "config": config(), "owner": "ann", **values}
    made = Search(1, start=BEGIN, now=BEGIN + datetime.timedelta(minutes=9), **given)
    made.ladders = ladders(made.config)
    return made


def asha(trials: int = 24, seed: int = 1, **values: Any) -> Search:
    """A search of the space above under adaptive ASHA, whose metric is best near a rate of 0.01."""
    made = search(**values)
    stream = random.Random(seed)
    made.curve_points = 400
    for number in range(1, trials + 1):
        bracket = number % len(made.ladders)
        lengths = made.ladders[bracket]
        rate = 10 ** stream.uniform(-4, -1)
        hparams = {
            "optimizer": {"learning_rate": rate, "name": stream.choice(["adam", "sgd"])},
            "hidden": stream.randint(16, 256),
            "nesterov": stream.random() < 0.5,
            "seed": 3,
        }
        quality = 0.98 - 0.05 * (math.log10(rate) + 2) ** 2
        place = len(lengths) - 1 if quality > 0.96 else 0
        end = BEGIN + 20 * number * SECOND
        points = [
            Point(
                epoch, quality - 0.5 * math.exp(-epoch / 2), end - (lengths[place] - epoch) * SECOND
            )
            for epoch in range(1, lengths[place] + 1)
        ]
        full = lengths[place] == 9
        trial = PlottedTrial(
            number,
            f"request-{number}",
            PlottedOutcome.COMPLETED if full else PlottedOutcome.STOPPED,
            hparams,
            metric=points[-1].y,
            best_steps=lengths[place],
            best_time=end,
            steps=lengths[place],
            validations=len(points),
            target=lengths[place],
            targets=place + 1,
            reached=lengths[place],
            bracket=bracket,
        )
        made.trials.append(trial)
        made.curves[number] = points
    return made
