"""Bare loop, trial and Lightning in one process, turn by turn.

``python -m benchmarks.training.measure KIND BATCHES ROUNDS [lightning]``

Prints a JSON object: per way the CPU and wall seconds per step of each round.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import time

import torch

from benchmarks.training import bare, task, trial

WAYS = {"bare": bare.train, "trial": trial.train}


def read_clocks(marks: list[tuple[float, float]]) -> None:
    marks.append((time.process_time(), time.perf_counter()))


def main(kind: str, batches: int, rounds: int, others: list[str]) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    ways = dict(WAYS)
    if "lightning" in others:
        from benchmarks.training import lightning_module

        ways["lightning"] = lightning_module.train
    figures: dict[str, list[list[float]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in list(ways)[:: 1 if number % 2 else -1]:
            marks: list[tuple[float, float]] = []
            ways[way](kind, batches, functools.partial(read_clocks, marks))
            steps = batches - task.WARM_UP
            (cpu, wall), (cpu_end, wall_end) = marks
            figures[way].append([(cpu_end - cpu) / steps, (wall_end - wall) / steps])
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
