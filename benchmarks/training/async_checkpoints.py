"""How long a training stands still for a checkpoint, and when that one is durable, beside others, in one run.

``python -m benchmarks.training.async_checkpoints [--gigabytes 1] [--rounds 5] [--device cpu]``

A network and its Adam of that size are trained; after a step each way stores the state, and the next step
follows. "stands still": the time of the call and of that step, without the time that a step takes otherwise.
"durable": from the call until the bytes are on the disk (others are synced by hand where they do not do it).
"first": the call that also makes the memory for its copies. The ways take turns; medians, and ratios to
torch.save and fsync.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.distributed import checkpoint as dcp

from determined.core._checkpoint import DummyCheckpointContext
from determined.core._distributed import DummyDistributedContext
from determined.storage import build

WIDTH = 4096
Way = Callable[[Any, Path], Callable[[], object]]
"""Begins to store a state below a folder; returns a function that returns when it is durable."""


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def by_hand(state: Any, folder: Path) -> Callable[[], object]:
    torch.save(state, folder / "state.pt")
    _sync(folder)
    return lambda: None


def _ours() -> tuple[Way, Way, Callable[[], None]]:
    contexts: dict[Path, DummyCheckpointContext] = {}

    def context(folder: Path) -> DummyCheckpointContext:
        place = folder.parent / "storage"
        if place not in contexts:
            section = {"type": "directory", "container_path": str(place)}
            contexts[place] = DummyCheckpointContext(DummyDistributedContext(), build(section))
        return contexts[place]

    def store_path(state: Any, folder: Path) -> Callable[[], object]:
        with context(folder).store_path() as (path, _):
            torch.save(state, path / "state.pt")
        return lambda: None

    def save_state(state: Any, folder: Path) -> Callable[[], object]:
        context(folder).save_state(state)
        return context(folder).wait

    def close() -> None:
        for one in contexts.values():
            one._close()

    return store_path, save_state, close


def _dcp(on_gpu: bool) -> Way:
    stagers: list[Any] = []

    def dcp_async_save(state: Any, folder: Path) -> Callable[[], object]:
        options: dict[str, Any] = {}
        if on_gpu:
            from torch.distributed.checkpoint import staging

            if not stagers:
                given = staging.StagingOptions(
                    use_pinned_memory=True, use_shared_memory=False, use_async_staging=False
                )
                stagers.append(staging.DefaultStager(given))
            options["async_stager"] = stagers[0]
        future: Any = dcp.async_save(state, checkpoint_id=folder, **options)
        return lambda: getattr(future, "upload_completion", future).result()

    return dcp_async_save


def _lightning() -> Way:
    from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

    def lightning_async(state: Any, folder: Path) -> Callable[[], object]:
        plugin = AsyncCheckpointIO(TorchCheckpointIO())
        plugin.save_checkpoint(state, str(folder / "state.pt"))

        def durable() -> None:
            plugin.teardown()
            _sync(folder)

        return durable

    return lightning_async


class Training:
    def __init__(self, gigabytes: float, device: str) -> None:
        torch.manual_seed(1)
        # A weight and its two moments.
        layers = max(1, round(gigabytes * 1e9 / (3 * 4 * WIDTH * WIDTH)))
        modules = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)]
        self.device = torch.device(device)
        self.model = torch.nn.Sequential(*modules).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(1, WIDTH, device=self.device)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(gigabytes: float, rounds: int, device: str, folder: Path) -> dict[str, dict[str, Any]]:
    """By way: "still" and "durable" seconds of each round but the first, and the "first" call's."""
    training = Training(gigabytes, device)
    for _ in range(2):
        training.step()
    size = sum(
        one.nbytes
        for part in ([*training.model.parameters()], *training.optimizer.state.values())
        for one in (part.values() if isinstance(part, dict) else part)
    )
    print(f"state: {size / 1e9:.2f} GB on {device}; {os.cpu_count()} cores", flush=True)
    store_path, save_state, close = _ours()
    ways: dict[str, Way] = {
        "torch.save + fsync": by_hand,
        "store_path": store_path,
        "save_state": save_state,
        "DCP async_save": _dcp(device == "cuda"),
    }
    with contextlib.suppress(ImportError):
        ways["Lightning AsyncCheckpointIO"] = _lightning()
    found: dict[str, dict[str, Any]] = {name: {"still": [], "durable": []} for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            usual = statistics.median(_seconds(training.step) for _ in range(3))
            place = folder / "written"
            place.mkdir()
            state = training.state()
            start = time.perf_counter()
            durable = ways[name](state, place)
            training.step()
            still = max(time.perf_counter() - start - usual, 0.0)
            durable()
            took = time.perf_counter() - start
            for left in folder.iterdir():
                shutil.rmtree(left)
            if number == 0:
                found[name]["first"] = still
            else:
                found[name]["still"].append(still)
                found[name]["durable"].append(took)
    close()
    return found


def report(found: dict[str, dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Prints a line for each way; returns its medians (still, durable)."""
    medians = {
        name: (statistics.median(one["still"]), statistics.median(one["durable"]))
        for name, one in found.items()
    }
    still_by_hand, durable_by_hand = medians["torch.save + fsync"]
    print(f"{'':28} stands still          first    durable")
    for name, (still, durable) in medians.items():
        print(
            f"{name:28} {still:7.3f} s ({still / still_by_hand:5.2f})  {found[name]['first']:7.3f} s"
            f"  {durable:7.3f} s ({durable / durable_by_hand:.2f})",
            flush=True,
        )
    return medians


@contextlib.contextmanager
def process_group() -> Any:
    """DCP's async_save needs one, of a backend for CPUs."""
    with tempfile.TemporaryDirectory() as name:
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.FileStore(f"{name}/store", 1), rank=0, world_size=1
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--folder", help="on the disk to measure; default: the temporary one")
    options = parser.parse_args()
    with process_group(), tempfile.TemporaryDirectory(dir=options.folder) as name:
        report(measure(options.gigabytes, options.rounds, options.device, Path(name)))


if __name__ == "__main__":
    main()
