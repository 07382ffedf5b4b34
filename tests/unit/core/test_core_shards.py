"""One checkpoint of several workers: threads that play them, and processes where one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from core_workers import together

from determined import errors
from determined.core._checkpoint import DownloadMode, DummyCheckpointContext
from determined.core._distributed import DistributedContext, DummyDistributedContext
from determined.core._shards import Shard, merge_metadata
from determined.storage import build
from tests.waiting import TIMEOUT_S


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run at the same time do not meet."""
    monkeypatch.setenv("DET_SESSION_TOKEN", f"{os.getpid()}-{time.monotonic_ns()}")


class Context(DummyCheckpointContext):
    """Keeps its reports."""

    def __init__(self, dist: DistributedContext, folder: Path) -> None:
        storage = {"type": "shared_fs", "host_path": str(folder / "storage")}
        super().__init__(dist, build(storage))
        self.reported: list[Any] = []

    def _report_checkpoint(self, storage_id: str, manifest: Any, metadata: Any) -> None:
        self.reported.append((storage_id, set(manifest.resources), metadata))


def stored(folder: Path) -> list[str]:
    root = folder / "storage"
    return sorted(path.name for path in root.iterdir()) if root.exists() else []


def write(root: Path, **contents: str) -> Path:
    for name, content in contents.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize("machines", [1, 2])
def test_every_workers_files_are_in_one_checkpoint(tmp_path: Path, machines: int) -> None:
    def work(dist: DistributedContext) -> Any:
        context = Context(dist, tmp_path)
        source = tmp_path / f"source-{dist.rank}"
        write(source, **{f"part-{dist.rank}": str(dist.rank), "sub__same": "the same", "skip": "x"})
        write(source, **{f"sub__own-{dist.rank}": "y", "metadata.json": "another's"})
        uuid = context.upload(
            None if dist.rank == 1 else source,
            {"steps_completed": 5, "ranks": {str(dist.rank): True}},
            shard=True,
            selector=lambda path: path != "skip",
        )
        with context.store_path({"steps_completed": 6}, shard=True) as (path, second):
            write(path, **{f"w-{dist.rank}": str(dist.rank)})
        context._storage.verify(second)
        return uuid, second, context.reported

    (uuid, second, reported), *others = together(work, 4 // machines, machines)
    assert all(other == (uuid, second, []) for other in others), others
    parts = {f"part-{rank}" for rank in (0, 2, 3)} | {f"sub/own-{rank}" for rank in (0, 2, 3)}
    ranks = {str(rank): True for rank in range(4)}
    assert reported == [
        (
            uuid,
            {*parts, "sub/", "sub/same", "metadata.json"},
            {"steps_completed": 5, "ranks": ranks},
        ),
        (second, {"w-0", "w-1", "w-2", "w-3", "metadata.json"}, {"steps_completed": 6}),
    ]
    root = tmp_path / "storage" / uuid
    assert json.loads((root / "metadata.json").read_text())["ranks"] == ranks
    assert (root / "part-3").read_text() == "3"
    assert stored(tmp_path) == sorted([uuid, second])


def test_one_directory_for_all(tmp_path: Path) -> None:
    write(tmp_path / "source", a="a", b="b")

    def work(dist: DistributedContext) -> Any:
        context = Context(dist, tmp_path)
        context.upload(tmp_path / "source", shard=True)
        context.upload(
            tmp_path / "source", shard=True, selector=lambda path: path == "ab"[dist.rank]
        )
        return [sorted(paths) for _, paths, _ in context.reported]

    assert together(work, 2) == [[["a", "b", "metadata.json"]] * 2, []]


@pytest.mark.parametrize("method", ["upload", "store_path"])
@pytest.mark.parametrize(
    ("files", "metadata", "message"),
    [
        (["w", "w"], [{}, {}], r"different contents: w \(ranks 0, 1\)"),
        (["w", "w__deep"], [{}, {}], r"directories of other workers: w \(ranks 0, 1\)"),
        (["a", "b"], [{"k": {"x": 1}}, {"k": {"x": 2}}], r"different values: k\.x \(ranks 0, 1\)"),
        (["a", "b"], [{"k": 1}, {"k": {}}], r"different values: k \(ranks 0, 1\)"),
    ],
)
def test_parts_that_do_not_fit_together(
    tmp_path: Path, method: str, files: list[str], metadata: list[Any], message: str
) -> None:
    def work(dist: DistributedContext) -> Any:
        context = Context(dist, tmp_path)
        contents = {files[dist.rank]: f"of {dist.rank}", "fine": "alike"}
        with pytest.raises(errors.CheckpointConflict, match=message):
            if method == "upload":
                source = write(tmp_path / str(dist.rank), **contents)
                context.upload(source, metadata[dist.rank], shard=True)
            else:
                with context.store_path(metadata[dist.rank], shard=True) as (path, _):
                    write(path, **contents)
        dist.allgather("nobody lags behind")
        return context.reported

    assert together(work, 2) == [[], []]
    assert stored(tmp_path) == []


def test_the_error_of_one_is_the_error_of_all(tmp_path: Path) -> None:
    class Boom(Exception):
        pass

    def work(dist: DistributedContext) -> Any:
        context = Context(dist, tmp_path)
        said = []
        for kind in (Boom, errors.StorageError):
            try:
                with context.store_path(shard=True) as (path, _):
                    write(path, **{f"w-{dist.rank}": "w"})
                    if dist.rank == 1:
                        raise kind("on purpose")
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        try:
            context.upload(tmp_path / "nowhere" if dist.rank else None, shard=True)
        except errors.StorageError as error:
            said.append(str(error).partition(": cannot read")[0])
        dist.allgather("nobody lags behind")
        return said, context.reported

    chief, other = together(work, 2)
    said = ["WorkerError: rank 1: Boom: on purpose", "StorageError: rank 1: on purpose"]
    assert chief == ([*said, "rank 1: checkpoint storage"], [])
    assert other == (
        ["Boom: on purpose", "StorageError: on purpose", "checkpoint storage"],
        [],
    )
    assert stored(tmp_path) == []


def test_machines_that_do_not_share_the_storage(tmp_path: Path) -> None:
    def work(dist: DistributedContext) -> Any:
        context = Context(dist, tmp_path / f"machine-{dist.rank}")
        if dist.rank:
            context._storage.begin = lambda _: None  # type: ignore[method-assign]
        with (
            pytest.raises(errors.StorageError, match="same directory for all"),
            context.store_path(shard=True) as (path, _),
        ):
            write(path, **{f"w-{dist.rank}": "w"})
        return context.reported

    assert together(work, 1, 2) == [[], []]
    assert stored(tmp_path / "machine-0") == []


def test_a_shared_download_has_the_selections_of_all_workers(tmp_path: Path) -> None:
    def work(dist: DistributedContext) -> Any:
        context = Context(dist, tmp_path)
        with context.store_path(shard=True) as (path, uuid):
            write(path, **{f"w-{dist.rank}": "w"})
        folder = tmp_path / "some"
        context.download(uuid, folder, selector=lambda path: path == f"w-{dist.rank}")
        some = sorted(path.name for path in folder.iterdir())
        folder = tmp_path / "all"
        selector = None if dist.rank else (lambda path: False)
        context.download(uuid, folder, selector=selector)
        own = tmp_path / f"own-{dist.rank}"
        context.download(
            uuid, own, DownloadMode.NoSharedDownload, selector=lambda path: path == "w-0"
        )

        def broken(path: str) -> bool:
            raise ZeroDivisionError("selector")

        with pytest.raises((ZeroDivisionError, errors.WorkerError), match="selector"):
            context.download(
                uuid, folder, selector=broken if dist.rank == 1 else (lambda path: True)
            )
        return some, len(list(folder.iterdir())), [path.name for path in own.iterdir()]

    assert together(work, 2) == [(["w-0", "w-1"], 3, ["w-0"])] * 2


def test_metadata_of_several_workers() -> None:
    parts = [{"a": 1, "d": {"x": [1]}}, {}, {"a": 1, "d": {"y": None, "x": [1]}}]
    shards = [Shard({}, part, None) for part in parts]
    assert merge_metadata(shards) == {"a": 1, "d": {"x": [1], "y": None}}


WORKER = """
import os, sys
from pathlib import Path
from determined.core._checkpoint import DummyCheckpointContext
from determined.core._distributed import DistributedContext, DummyDistributedContext
from determined.storage import build
rank, folder = int(sys.argv[1]), sys.argv[2]
dist = DistributedContext(
    rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1
)
context = DummyCheckpointContext(dist, build({"type": "directory", "container_path": folder}))
context._storage.owner = "c.7"
if rank == 1:
    add = context._storage.add
    def die(*args):
        add(*args)
        os.kill(os.getpid(), 9)
    context._storage.add = die
try:
    with context.store_path({}, shard=True) as (path, uuid):
        (path / f"w-{rank}").write_text("w")
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()])
def test_one_worker_that_ends_in_the_block_leaves_nothing(
    tmp_path: Path, ending: BaseException
) -> None:
    context = Context(DummyDistributedContext(), tmp_path)
    with (
        pytest.raises(type(ending)) as raised,
        context.store_path({"steps_completed": 1}, shard=True) as (path, _),
    ):
        write(path, weights="w")
        raise ending
    assert raised.value is ending
    assert (stored(tmp_path), context.reported) == ([], [])


@pytest.mark.parametrize("who", [{0}, {1}, {0, 1}])
def test_workers_that_exit_in_the_block_leave_nothing(tmp_path: Path, who: set[int]) -> None:
    def work(dist: DistributedContext) -> Any:
        context = Context(dist, tmp_path)
        with context.store_path({"steps_completed": 1}, shard=True) as (path, _):
            write(path, **{f"w-{dist.rank}": "w"})
            if dist.rank in who:
                sys.exit(3)

    for rank, found in enumerate(together(work, local=2)):
        if rank in who:
            assert isinstance(found, SystemExit)
            assert found.code == 3
        else:
            assert isinstance(found, errors.WorkerError)
            assert "SystemExit: 3" in str(found)
    assert stored(tmp_path) == []


def test_a_worker_that_is_killed_leaves_no_checkpoint(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [worker.communicate(timeout=TIMEOUT_S)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert said == ["WorkerLost\n", ""]
    assert workers[1].returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".incomplete-")
    manager = build({"type": "directory", "container_path": str(tmp_path)})
    assert manager.sweep("c.7", lambda found: []) == [left.name]
    assert list(tmp_path.iterdir()) == []
