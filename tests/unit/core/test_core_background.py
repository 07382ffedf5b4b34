"""Checkpoints that are stored while the training goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from core_service import FakeService

from determined import errors
from determined.core._context import Context
from tests.waiting import TIMEOUT_S

Make = Callable[..., Context]


class Gate:
    """Holds the storage's ``upload`` until it is opened."""

    def __init__(self, context: Context) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.error: Exception | None = None
        self._upload = context.checkpoint._storage.upload
        context.checkpoint._storage.upload = self.upload  # type: ignore[method-assign]

    def upload(self, *args: Any) -> Any:
        self.reached.set()
        assert self.open.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        return self._upload(*args)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setenv("DET_RUN_DIR", str(path))
    return path


@pytest.fixture
def context(make_context: Make, scratch: Path) -> Context:
    return make_context()


@pytest.fixture
def gate(context: Context) -> Iterator[Gate]:
    gate = Gate(context)
    yield gate
    gate.open.set()


@pytest.mark.parametrize("overwrite", ["in place", "replace", "remove"])
def test_the_files_at_the_call_are_stored(
    service: FakeService,
    context: Context,
    gate: Gate,
    tmp_path: Path,
    scratch: Path,
    overwrite: str,
) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    weights = source / "sub" / "weights"
    weights.write_text("first")
    (source / "log").write_text("x")
    uuid = context.checkpoint.upload(
        source, {"steps_completed": 1}, selector=lambda path: path != "log", wait=False
    )
    assert gate.reached.wait(TIMEOUT_S)
    if overwrite == "in place":
        weights.write_text("other")
    elif overwrite == "replace":
        (source / "new").write_text("other")
        (source / "new").replace(weights)
    else:
        weights.unlink()
    # The service gets the report only when the checkpoint is stored.
    assert service.checkpoints == {}
    gate.open.set()
    context.checkpoint.wait()
    resources = service.checkpoints[uuid]["resources"]
    assert resources == {"sub/": "0", "sub/weights": "5", "metadata.json": "26"}
    with context.checkpoint.restore_path(uuid) as path:
        assert (path / "sub" / "weights").read_text() == "first"
    assert list(scratch.glob("determined-*")) == []


def test_store_path_in_the_background(service: FakeService, context: Context, gate: Gate) -> None:
    metadata: dict[str, Any] = {"steps_completed": 1}
    with context.checkpoint.store_path(metadata, wait=False) as (path, uuid):
        (path / "w").write_text("w")
        metadata["late"] = True
    assert gate.reached.wait(TIMEOUT_S)
    assert service.checkpoints == {}
    gate.open.set()
    # Asking for it waits for it.
    assert context.checkpoint.get_metadata(uuid) == metadata
    with (
        pytest.raises(ZeroDivisionError),
        context.checkpoint.store_path(metadata, wait=False) as (path, _),
    ):
        1 / 0
    context.checkpoint.wait()
    assert list(service.checkpoints) == [uuid]


def test_close_waits(service: FakeService, context: Context, gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    uuid = context.checkpoint.upload(tmp_path / "source", {"steps_completed": 1}, wait=False)
    context.train.report_validation_metrics(1, {"loss": 0.5})
    assert gate.reached.wait(TIMEOUT_S)
    closing = threading.Thread(target=context.close)
    closing.start()
    gate.open.set()
    closing.join(TIMEOUT_S)
    assert list(service.checkpoints) == [uuid]
    assert len(service.reports) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda checkpoint: checkpoint.wait(),
        lambda checkpoint: checkpoint.upload(".", {"steps_completed": 2}),
        lambda checkpoint: checkpoint.upload(None, {"steps_completed": 2}, shard=True),
        lambda checkpoint: checkpoint.store_path({"steps_completed": 2}).__enter__(),
        lambda checkpoint: checkpoint.download("x", "y"),
        lambda checkpoint: checkpoint.delete("x"),
    ],
)
def test_the_next_call_raises_the_error(
    service: FakeService,
    context: Context,
    gate: Gate,
    tmp_path: Path,
    scratch: Path,
    call: Callable[[Any], Any],
) -> None:
    (tmp_path / "source").mkdir()
    context.checkpoint.upload(tmp_path / "source", {"steps_completed": 1}, wait=False)
    gate.error = errors.StorageError("no space")
    gate.open.set()
    with pytest.raises(errors.StorageError, match="no space"):
        call(context.checkpoint)
    # Once.
    context.checkpoint.wait()
    assert service.checkpoints == {}
    assert list(scratch.glob("determined-*")) == []


def test_close_raises_the_error(
    service: FakeService, context: Context, gate: Gate, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    context.checkpoint.upload(tmp_path / "source", {"steps_completed": 1}, wait=False)
    context.train.report_validation_metrics(1, {"loss": 0.5})
    gate.error = errors.StorageError("no space")
    gate.open.set()
    with pytest.raises(errors.StorageError, match="no space"):
        context.close()
    # And the reports are still sent.
    assert len(service.reports) == 1


def test_wrong_calls_are_refused_at_once(context: Context, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps_completed"):
        context.checkpoint.upload(tmp_path, {}, wait=False)
    with pytest.raises(errors.StorageError, match="nowhere"):
        context.checkpoint.upload(tmp_path / "nowhere", {"steps_completed": 1}, wait=False)
    with pytest.raises(ValueError, match="one of the two, not both"):
        context.checkpoint.upload(tmp_path, {"steps_completed": 1}, shard=True, wait=False)


NEVER_CLOSED = """
import shutil, sys
from pathlib import Path
from determined import core

Path("source").mkdir()
Path("source/w").write_text("w")
context = core.init(checkpoint_storage="checkpoints")
uuid = context.checkpoint.upload("source", wait=False)
if sys.argv[1] == "full":
    context.checkpoint.wait()
    shutil.rmtree("checkpoints")
    Path("checkpoints").touch()
    context.checkpoint.upload("source", wait=False)
"""


@pytest.mark.parametrize(("storage", "code"), [("good", 0), ("full", 1)])
def test_the_end_of_a_script_that_closes_nothing(tmp_path: Path, storage: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEVER_CLOSED, storage],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == code, done.stderr
    if code:
        assert "cannot write" in done.stderr
        assert "Traceback" not in done.stderr
    else:
        assert [path.read_text() for path in tmp_path.glob("checkpoints/*/w")] == ["w"]
