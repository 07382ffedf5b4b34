"""CPU and wall time per step of a PyTorchTrial under its Trainer, as ratios to the bare loop.

`python -m benchmarks training`; Lightning's Trainer beside it where lightning is installed. With
UPSTREAM set to a directory that holds Determined's published client
(`pip install --target DIR determined==0.38.1 tensorboard`), that beside it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = {"small": (1000, 15), "conv": (200, 5)}


def run(kind: str, python_path: str, *others: str) -> dict[str, list[list[float]]]:
    """The figures of a process of its own, in an empty directory."""
    batches, rounds = CASES[kind]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "work").mkdir()
        env = {**os.environ, "HOME": folder, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.training.measure"]
        done = subprocess.run(
            [*command, kind, str(batches), str(rounds), *others],
            env=env,
            cwd=Path(folder) / "work",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    figures: dict[str, list[list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def report(name: str, way: str, kind: str, figures: dict[str, list[list[float]]]) -> None:
    for column, what in enumerate(("CPU", "wall")):
        pairs = zip(figures[way], figures["bare"], strict=True)
        ratios = [trial[column] / bare[column] for trial, bare in pairs]
        step = 1e6 * statistics.median(bare[column] for bare in figures["bare"])
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{kind}, {name}: {what} per step {middle:.3f} of bare (quartiles {low:.3f}-{high:.3f}; "
            f"bare {step:.0f} us)",
            flush=True,
        )


def main() -> None:
    others = ["lightning"] if importlib.util.find_spec("lightning") else []
    for kind in CASES:
        figures = run(kind, f"{ROOT}", *others)
        report("ours", "trial", kind, figures)
        for name in others:
            report(name, name, kind, figures)
        if os.environ.get("UPSTREAM"):
            figures = run(kind, f"{os.environ['UPSTREAM']}:{ROOT}")
            report("upstream 0.38.1", "trial", kind, figures)


if __name__ == "__main__":
    main()
