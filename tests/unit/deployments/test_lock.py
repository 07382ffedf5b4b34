"""One cluster command at a time."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from determined_deployments.local import lock
from determined_deployments.local.errors import ClusterError
from tests.waiting import TIMEOUT_S


def nobody(text: str) -> None:
    raise AssertionError(f"it waits: {text}")


def hold(path: Path, held: Event, enough: Event) -> None:
    with lock.held(path, nobody):
        held.set()
        enough.wait(TIMEOUT_S)


class Holder:
    """Another process that holds the lock."""

    def __init__(self, path: Path) -> None:
        spawn = multiprocessing.get_context("spawn")
        held, self.enough = spawn.Event(), spawn.Event()
        self.process = spawn.Process(target=hold, args=(path, held, self.enough))
        self.process.start()
        assert held.wait(TIMEOUT_S)


def test_the_second_hears_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    other = Holder(path)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        other.enough.set()

    with lock.held(path, tell):
        assert (tmp_path / "run" / "lock.pid").read_text() == str(os.getpid())
    other.process.join(TIMEOUT_S)
    pid = other.process.pid
    assert told == [
        f"another cluster command (pid {pid}) is running for this data directory; waiting for it to end"
    ]


def test_patience_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = Holder(path)
    with (
        pytest.raises(ClusterError, match=rf"pid {other.process.pid} has held .*lock for 0 s"),
        lock.held(path, lambda text: None, timeout=0.2),
    ):
        raise AssertionError("two hold it")
    other.enough.set()
    other.process.join(TIMEOUT_S)


def test_a_killed_holder_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = Holder(path)
    other.process.kill()
    other.process.join(TIMEOUT_S)
    with lock.held(path, nobody):
        pass
    with pytest.raises(RuntimeError, match="of the command"), lock.held(path, nobody):
        raise RuntimeError("of the command")
    with lock.held(path, nobody):
        pass
