"""The decisions of the processes of notebooks and TensorBoards."""

from __future__ import annotations

import datetime
import gc
import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from determined.exec import _jupyterlab, tensorboard
from determined.exec.notebook import is_used
from determined.exec.tensorboard import FileFollower, Room
from determined.storage import build
from tests.processes import is_alive
from tests.waiting import until

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def one(state: str = "idle", connections: int = 0, seconds_ago: int = 60) -> dict[str, Any]:
    moment = NOW - datetime.timedelta(seconds=seconds_ago)
    return {
        "execution_state": state,
        "connections": connections,
        "last_activity": moment.isoformat().replace("+00:00", "Z"),
    }


@pytest.mark.parametrize(
    ("kernels", "terminals", "used"),
    [
        ([], [], (False, False, False)),
        ([one()], [], (True, False, False)),
        ([], [one()], (True, False, False)),
        ([one(connections=1)], [], (True, True, False)),
        ([one("busy")], [], (True, False, True)),
        ([one()], [one(seconds_ago=3)], (True, False, True)),
    ],
)
def test_the_kinds_of_use(kernels: Any, terminals: Any, used: tuple[bool, ...]) -> None:
    kinds = ("kernels_or_terminals", "kernel_connections", "activity")
    assert tuple(is_used(kind, kernels, terminals, NOW) for kind in kinds) == used


def test_a_tensorboard_follows_forgets_and_stays_within_its_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "INTERVAL_S", 0.0)
    section = {"type": "directory", "container_path": str(tmp_path / "storage")}
    (tmp_path / "storage").mkdir()
    (tmp_path / "copies").mkdir()
    manager, event = build(section), tmp_path / "event"
    room = Room(tmp_path / "copies", limit=10)
    follower = FileFollower(tmp_path / "copies", room)
    source = {
        "name": "experiment 7",
        "path": "experiment/7",
        "key": "c/tensorboard/experiment/7",
        "storage": section,
        "ended": False,
    }
    copy = tmp_path / "copies/experiment/7/trial/1/events"
    for text, there in (("12345", "12345"), ("1234567890", "1234567890"), ("x" * 30, "1234567890")):
        event.write_text(text)
        manager.put("c/tensorboard/experiment/7/trial/1/events", event)
        room.measure()
        follower.look([source])
        assert copy.read_text() == there
    assert "are not shown" in capsys.readouterr().err
    follower.look([{**source, "path": "experiment/8", "storage": {"type": "tape"}}])
    assert not (tmp_path / "copies/experiment/7").exists()
    assert "the files of experiment 7 cannot be read now" in capsys.readouterr().err


def test_tensorboards_server_ends_with_its_parent() -> None:
    """After any end: no process outlives a killed task."""
    script = (
        "from determined.exec.tensorboard import TensorBoardServer\n"
        "print(TensorBoardServer(['sleep', '600'])._process.pid, flush=True)\ninput()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    until("the server's end", lambda: not is_alive(child))


def test_jupyterlab_starts_without_compiling_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rfc3987_syntax` takes longer to import than all other modules."""
    seen: list[bool] = []

    def serve() -> None:
        with pytest.raises(ImportError):
            importlib.import_module("rfc3987_syntax")
        seen.append(gc.isenabled())

    monkeypatch.delitem(sys.modules, "rfc3987_syntax", raising=False)
    monkeypatch.setitem(sys.modules, "jupyterlab.labapp", SimpleNamespace(main=serve))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    try:
        _jupyterlab.main()
    finally:
        sys.modules.pop("rfc3987_syntax", None)
    assert seen == [True]
