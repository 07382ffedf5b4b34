"""What storing a checkpoint costs, as ratios to doing the same by hand, in one run.

``python -m benchmarks.training.checkpoints [--megabytes 500] [--files 1000] [--rounds 5] [--only NAME …]``

- ``shared_fs``: ``store_path`` with ``torch.save`` in it, to torch.save and fsync
- ``s3``: the same into a bucket of moto, to torch.save and boto3's transfer manager at the best of some
  settings
- ``files``: a directory of files of 10 KB into the bucket, to one upload_file after the other; what of it is
  the processor time of moto, which uses one core; the same with ``pack_small_files``; and both with 20 ms
  between us and the server
- ``background``: for how long the training stands still, as a share of the time until the checkpoint is
  stored
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from boto3.s3.transfer import TransferConfig

from determined.core._checkpoint import DummyCheckpointContext
from determined.core._distributed import DummyDistributedContext
from determined.storage import build
from tests.object_servers import Server, moto, s3_client, s3_section

SMALL_BYTES = 10_000
FAR_SECONDS = 0.02
SETTINGS = [(1, 8), (2, 8), (4, 8), (10, 8), (4, 16), (10, 16), (4, 64), (10, 64), (1, 5000)]
"""Threads and megabytes per part of boto3's transfer manager; (10, 8) are its defaults."""


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(name: str, rounds: int, ours: Callable[[], float], theirs: Callable[[], float]) -> None:
    """Turn by turn, the order changing; the median of the ratios and its quartiles."""
    found: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        if number % 2:
            pair = ours(), theirs()
        else:
            pair = (theirs(), ours())[::-1]
        # The first round warms caches and connections.
        found += [pair] * (number > 0)
    ratios = [mine / other for mine, other in found]
    low, middle, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
    mine, other = (statistics.median(times) for times in zip(*found, strict=True))
    print(
        f"{name}: {middle:.3f} of by hand (quartiles {low:.3f}-{high:.3f}; "
        f"{mine:.3f} s, by hand {other:.3f} s)",
        flush=True,
    )


class Bench:
    """A state, a place for files, and a bucket."""

    def __init__(self, folder: Path, server: Server, options: argparse.Namespace) -> None:
        self.folder = folder
        self.rounds = options.rounds
        self.state = {"weights": torch.randn(options.megabytes * 250_000)}
        self.files = options.files
        self.use(server)
        self.shared_fs = self._context({"type": "shared_fs", "host_path": str(folder / "storage")})

    def use(self, server: Server) -> None:
        self.server = psutil.Process(server.pid)
        self.section = s3_section(server)
        self.client = s3_client(server)
        self.s3 = self._context(self.section)
        self.packed = self._context(self.section | {"pack_small_files": True})

    @staticmethod
    def _context(section: dict[str, Any]) -> DummyCheckpointContext:
        return DummyCheckpointContext(DummyDistributedContext(), build(section))

    def save(self, path: Path) -> None:
        torch.save(self.state, path)

    def store(self, context: DummyCheckpointContext) -> float:
        def work() -> None:
            nonlocal made
            with context.store_path() as (path, made):
                self.save(path / "state.pt")

        made = ""
        took = seconds(work)
        context.delete(made)
        return took

    def save_and_sync(self) -> float:
        path = self.folder / "state.pt"

        def work() -> None:
            self.save(path)
            with path.open("rb") as file:
                os.fsync(file.fileno())

        took = seconds(work)
        path.unlink()
        return took

    def save_and_upload(self, config: TransferConfig) -> float:
        path, bucket, key = self.folder / "state.pt", self.section["bucket"], str(uuid.uuid4())

        def work() -> None:
            self.save(path)
            self.client.upload_file(str(path), bucket, key, Config=config)
            path.unlink()

        took = seconds(work)
        self.client.delete_object(Bucket=bucket, Key=key)
        return took

    def bench_shared_fs(self) -> None:
        compare("shared_fs", self.rounds, lambda: self.store(self.shared_fs), self.save_and_sync)

    def bench_s3(self) -> None:
        times = {}
        for threads, megabytes in SETTINGS:
            size = megabytes << 20
            config = TransferConfig(
                multipart_threshold=size, multipart_chunksize=size, max_concurrency=threads
            )
            times[threads, megabytes] = min(self.save_and_upload(config) for _ in range(2)), config
        best = min(times, key=lambda setting: times[setting][0])
        print(f"boto3's best setting: {best[0]} threads, parts of {best[1]} MB", flush=True)
        config = times[best][1]
        compare(
            "s3", self.rounds, lambda: self.store(self.s3), lambda: self.save_and_upload(config)
        )

    def bench_files(self) -> None:
        source = self.folder / "many"
        source.mkdir()
        for number in range(self.files):
            (source / f"part-{number:05}").write_bytes(os.urandom(SMALL_BYTES))
        shares = self._compare_files(self.s3, source, f"{self.files} files")
        print(f"  moto itself computes for {statistics.median(shares):.0%} of our time", flush=True)
        self._compare_files(self.packed, source, f"{self.files} files, packed")
        (self.folder / "far").mkdir()
        with moto(self.folder / "far", FAR_SECONDS) as far:
            self.use(far)
            name = f"{self.files} files, {FAR_SECONDS * 1000:.0f} ms away"
            self._compare_files(self.s3, source, name)
            self._compare_files(self.packed, source, f"{name}, packed")

    def _compare_files(
        self, context: DummyCheckpointContext, source: Path, name: str
    ) -> list[float]:
        shares = []

        def ours() -> float:
            def work() -> None:
                nonlocal made
                made = context.upload(source)

            made = ""
            before = self.server.cpu_times()
            took = seconds(work)
            after = self.server.cpu_times()
            shares.append((after.user + after.system - before.user - before.system) / took)
            context.delete(made)
            return took

        def one_by_one() -> float:
            prefix = str(uuid.uuid4())

            def work() -> None:
                for path in sorted(source.iterdir()):
                    key = f"{prefix}/{path.name}"
                    self.client.upload_file(str(path), self.section["bucket"], key)

            took = seconds(work)
            self.s3.delete(prefix)
            return took

        compare(name, self.rounds, ours, one_by_one)
        return shares

    def bench_background(self) -> None:
        source = self.folder / "written"
        source.mkdir()
        self.save(source / "state.pt")
        for name in ("upload", "store_path"):
            shares = []
            for _ in range(self.rounds):
                start = time.perf_counter()
                if name == "upload":
                    made = self.s3.upload(source, wait=False)
                    stalled = time.perf_counter() - start
                else:
                    with self.s3.store_path(wait=False) as (path, made):
                        self.save(path / "state.pt")
                        start = time.perf_counter()
                    stalled = time.perf_counter() - start
                self.s3.wait()
                shares.append((stalled / (time.perf_counter() - start), stalled))
                self.s3.delete(made)
            share, stalled = statistics.median(shares)
            print(
                f"background, {name}: stalls for {share:.2%} of the time ({stalled:.3f} s)",
                flush=True,
            )


def main() -> None:
    names = ["shared_fs", "s3", "background", "files"]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, moto(Path(name)) as server:
        bench = Bench(Path(name), server, options)
        for only in options.only:
            getattr(bench, f"bench_{only}")()


if __name__ == "__main__":
    main()
