"""Workers that talk to each other: threads that play them, and real processes where one is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from core_workers import free_port, together

from determined import core, errors
from determined.core import _collective
from determined.core._checkpoint import DownloadMode, DummyCheckpointContext
from determined.core._distributed import DistributedContext
from determined.storage import build
from tests.waiting import TIMEOUT_S, until


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run at the same time do not meet."""
    monkeypatch.setenv("DET_SESSION_TOKEN", f"{os.getpid()}-{time.monotonic_ns()}")


def everything(dist: DistributedContext) -> dict[str, Any]:
    return {
        "gather": dist.gather(dist.rank),
        "broadcast": dist.broadcast({"chief's": dist.rank}),
        "gather_local": dist.gather_local(dist.rank),
        "allgather": dist.allgather(f"of {dist.rank}"),
        "allgather_local": dist.allgather_local(dist.rank),
        "broadcast_local": dist.broadcast_local(dist.rank),
        "again": dist.gather(b"x" * 3_000_000 * dist.rank),
    }


@pytest.mark.parametrize("options", [{}, {"force_tcp": True}])
def test_one_machine(options: dict[str, Any]) -> None:
    if options:
        options["pub_port"] = free_port() - 7
        options["port_offset"] = 7
    found = together(everything, 3, **options)
    for rank, one in enumerate(found):
        assert one["gather"] == one["gather_local"] == ([0, 1, 2] if rank == 0 else None)
        assert one["broadcast"] == {"chief's": 0}
        assert one["allgather"] == ["of 0", "of 1", "of 2"]
        assert one["allgather_local"] == [0, 1, 2]
        assert one["broadcast_local"] == 0
    assert [len(part) for part in found[0]["again"]] == [0, 3_000_000, 6_000_000]


def test_two_machines() -> None:
    found = together(everything, 2, machines=2)
    for rank, one in enumerate(found):
        first = rank // 2 * 2
        assert one["gather"] == ([0, 1, 2, 3] if rank == 0 else None)
        assert one["allgather"] == [f"of {i}" for i in range(4)]
        assert one["gather_local"] == ([first, first + 1] if rank == first else None)
        assert one["allgather_local"] == [first, first + 1]
        assert one["broadcast_local"] == first


def test_machines_of_one_worker_each() -> None:
    found = together(everything, 1, machines=3)
    assert [one["gather_local"] for one in found] == [[0], [1], [2]]
    assert found[2]["allgather"] == ["of 0", "of 1", "of 2"]


def test_different_calls_are_told() -> None:
    def work(dist: DistributedContext) -> None:
        if dist.rank == 1:
            dist.gather(1)
        else:
            dist.allgather(1)

    chief, worker, _ = together(work, 3)
    assert str(chief).startswith("rank 1 called gather() while this worker called allgather()")
    assert worker is None


def test_an_unpicklable_object_is_the_callers_error() -> None:
    found = together(lambda dist: dist.allgather(lambda: 0 if dist.rank else None), 1, machines=2)
    assert all("pickle" in str(one) or isinstance(one, errors.WorkerLost) for one in found)


def test_numbers_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="rank must be between 0 and 1, found 2"):
        DistributedContext(rank=2, size=2, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    with pytest.raises(ValueError, match="need chief_ip"):
        DistributedContext(rank=0, size=2, local_rank=0, local_size=1, cross_rank=0, cross_size=2)


def test_a_closed_context() -> None:
    def work(dist: DistributedContext) -> None:
        dist.close()
        dist.close()
        dist.broadcast(1)

    for error in together(work, 2):
        assert "closed" in str(error)


def test_workers_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_collective, "RENDEZVOUS_S", 0.3)
    numbers = {"size": 3, "local_size": 3, "cross_rank": 0, "cross_size": 1}
    with pytest.raises(TimeoutError, match="workers of rank 1, 2 did not come within 0 s"):
        DistributedContext(rank=0, local_rank=0, **numbers)
    with pytest.raises(TimeoutError, match="the chief did not listen at the socket determined-"):
        DistributedContext(rank=1, local_rank=1, **numbers)


def test_a_meeting_place_that_is_taken() -> None:
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen(1)
        with pytest.raises(OSError, match=rf"127.0.0.1:{port}.*port_offset"):
            DistributedContext(
                rank=0,
                size=2,
                local_rank=0,
                local_size=2,
                cross_rank=0,
                cross_size=1,
                pub_port=port,
                force_tcp=True,
            )


def test_strangers_do_not_get_in() -> None:
    port = free_port()
    key = _collective.secret()
    leading = ThreadPoolExecutor(1).submit(
        lambda: _collective.Group.lead(_collective.listen(("127.0.0.1", port)), 2, key)
    )
    until_listening(port)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"x" * 36)
        assert stranger.recv(1) == b""
    for rank, wrong in ((1, b"another key"), (7, key)):
        with pytest.raises(ConnectionError, match="does not accept this worker"):
            _collective.Group.join(("127.0.0.1", port), rank, wrong)
    group = _collective.Group.join(("127.0.0.1", port), 1, key)
    chief = leading.result(10)
    group.gather("gather", "hello")
    assert chief.gather("gather", None) == [None, "hello"]
    group.close()
    with pytest.raises(errors.WorkerLost, match="rank 1 is gone"):
        chief.gather("gather", None)
    chief.close()


def until_listening(port: int) -> None:
    def listening() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False

    until(f"a listener on port {port}", listening)


WORKER = """
import sys, time
from determined.core import DistributedContext
rank = int(sys.argv[1])
dist = DistributedContext(
    rank=rank, size=3, local_rank=rank, local_size=3, cross_rank=0, cross_size=1)
dist.allgather(rank)
print("ready", flush=True)
if rank != int(sys.argv[2]):
    time.sleep(60)
begin = time.monotonic()
try:
    dist.allgather(rank)
except Exception as error:
    print(type(error).__name__, error, "after", time.monotonic() - begin, flush=True)
"""


@pytest.mark.parametrize(("waits", "dies"), [(0, 2), (1, 0)])
def test_a_worker_that_is_killed_is_noticed_at_once(waits: int, dies: int) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(waits)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        time.sleep(0.2)
        workers[dies].send_signal(signal.SIGKILL)
        said = workers[waits].communicate(timeout=TIMEOUT_S)[0]
        assert said.startswith(f"WorkerLost the worker of rank {dies} is gone")
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


# Contexts of several workers.


def checkpoints(dist: DistributedContext, folder: Path) -> DummyCheckpointContext:
    return DummyCheckpointContext(dist, build({"type": "shared_fs", "host_path": str(folder)}))


def test_a_shared_download(tmp_path: Path) -> None:
    counted = []
    lock = threading.Lock()

    def work(dist: DistributedContext) -> Any:
        context = checkpoints(dist, tmp_path / "storage")
        real = context._storage.download

        def download(*args: Any) -> None:
            with lock:
                counted.append(dist.rank)
            real(*args)

        context._storage.download = download  # type: ignore[method-assign]
        uuid = None
        if dist.rank == 0:
            with context.store_path({"steps_completed": 1}) as (path, uuid):
                (path / "weights").write_text("w")
        else:
            with pytest.raises(RuntimeError, match="only the chief"):
                context.upload(tmp_path)
        uuid = dist.broadcast(uuid)
        context.download(uuid, tmp_path / "here")
        assert (tmp_path / "here" / "weights").read_text() == "w"
        with context.restore_path(uuid) as path:
            assert (path / "weights").read_text() == "w"
        own = tmp_path / f"own-{dist.rank}"
        context.download(uuid, own, DownloadMode.NoSharedDownload)
        assert (own / "weights").is_file()
        with pytest.raises(errors.CheckpointNotFound):
            context.download("00000000-0000-0000-0000-000000000000", tmp_path / "none")
        return dist.allgather("fine")

    assert together(work, 3) == [["fine"] * 3] * 3
    # One for all, one each, and one that does not exist.
    assert sorted(counted) == [0, 0, 0, 1, 2]


def test_a_core_context_of_two_workers_off_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core._context, "_dump_stacks_on_sigusr1", lambda: None)

    def work(dist: DistributedContext) -> Any:
        with core.init(distributed=dist, checkpoint_storage=str(tmp_path)) as context:
            lengths = []
            for operation in context.searcher.operations():
                lengths.append(operation.length)
                if dist.rank == 0:
                    operation.report_completed(0.5)
            preempt = context.preempt.should_preempt()
            return lengths, preempt, context.distributed.allgather(dist.rank)

    first, second = together(work, 2)
    assert first == second == ([1], False, [0, 1]), (first, second)
