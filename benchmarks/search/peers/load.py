"""The trials that every engine is given: report at 1, 2 .. 9 until stopped, one after the other."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator

MAX_EPOCHS = 9
DIVISOR = 3


def curve(chance: random.Random) -> Iterator[float]:
    """A trial's accuracies, epoch by epoch: its quality and some noise."""
    quality = chance.random()
    for _ in range(MAX_EPOCHS):
        yield quality + 0.05 * chance.random()


def measure(run_trial: Callable[[int, Iterator[float]], int]) -> None:
    """Calls ``run_trial(number, accuracies)``, which returns how many it reported, for as many trials
    as the command line says; prints the figures as JSON."""
    trials = int(sys.argv[1])
    chance = random.Random(0)
    start = time.process_time()
    decisions = sum(run_trial(number, curve(chance)) for number in range(trials))
    seconds = time.process_time() - start
    print(json.dumps({"trials": trials, "cpu_s": seconds, "decisions": decisions}))
