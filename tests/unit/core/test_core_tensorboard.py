"""Event files as TensorBoard's own reader sees them, and when they are uploaded."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from determined import core, errors
from determined.common import installation
from determined.core import _events, _tensorboard
from determined.core._context import Context
from determined.core._events import EventFiles
from determined.core._tensorboard import TensorboardFiles, with_rank
from determined.storage import build
from tests.waiting import TIMEOUT_S

Make = Callable[..., Context]
Scalars = dict[str, list[tuple[int, float]]]


def scalars(directory: Path) -> Scalars:
    """{tag: [(step, value)]} as TensorBoard would show it."""
    found = EventAccumulator(str(directory)).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def stored(tmp_path: Path) -> Path:
    return tmp_path / "storage/cluster/tensorboard/experiment/3/trial/7"


def test_reports_become_charts(make_context: Make, tmp_path: Path) -> None:
    with make_context() as context:
        for step in range(1, 4):
            context.train.report_training_metrics(step, {"loss": np.float32(1 / step)})
        context.train.report_validation_metrics(3, {"accuracy": 0.5, "val_loss": 2, "text": "x"})
        context.train.report_metrics("inference", 3, {"rate": 7, "nested": {"a": 1}})
        path = context.train.get_tensorboard_path()
    assert scalars(stored(tmp_path)) == {
        "Determined/loss": [(1, 1.0), (2, 0.5), (3, float(np.float32(1 / 3)))],
        "Determined/val_accuracy": [(3, 0.5)],
        "Determined/val_loss": [(3, 2.0)],
        "inference/rate": [(3, 7.0)],
    }
    assert not path.exists()


def test_values_that_are_not_finite(make_context: Make, tmp_path: Path) -> None:
    with make_context() as context:
        for step, value in enumerate((math.nan, math.inf, -math.inf), 1):
            context.train.report_training_metrics(step, {"x": value})
    ((_, points),) = scalars(stored(tmp_path)).items()
    assert [step for step, _ in points] == [1, 2, 3]
    assert math.isnan(points[0][1])
    assert [value for _, value in points[1:]] == [math.inf, -math.inf]


def test_manual_mode_writes_nothing_by_itself(make_context: Make, tmp_path: Path) -> None:
    with make_context(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        context.train.report_training_metrics(1, {"x": 1.0})
        (context.train.get_tensorboard_path() / "mine").write_text("")
    assert not stored(tmp_path).exists()


def test_logging_can_be_switched_off(make_context: Make, tmp_path: Path) -> None:
    with make_context() as context:
        context.train._log_for_tensorboard(False)
        context.train.report_training_metrics(1, {"x": 1.0})
    assert not stored(tmp_path).exists()


def files(tmp_path: Path, **options: object) -> TensorboardFiles:
    storage = build({"type": "directory", "container_path": str(tmp_path / "storage")})
    return TensorboardFiles(tmp_path / "run", storage, "tb", automatic=True, **options)  # type: ignore[arg-type]


def test_growing_files_are_uploaded_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded = threading.Event()
    monkeypatch.setattr(_tensorboard, "FIRST_INTERVAL", 0.01)
    monkeypatch.setattr(_tensorboard, "INTERVAL", 0.01)
    tensorboard = files(tmp_path)
    put = tensorboard._storage.put

    def putting(key: str, source: Path) -> None:
        put(key, source)
        uploaded.set()

    monkeypatch.setattr(tensorboard._storage, "put", putting)
    for step in (1, 2):
        uploaded.clear()
        tensorboard.log("training", step, {"x": 1.0})
        assert uploaded.wait(TIMEOUT_S)
    assert scalars(tmp_path / "storage/tb") == {"Determined/x": [(1, 1.0), (2, 1.0)]}
    tensorboard.close()


def test_a_resumed_trial_continues_its_charts(tmp_path: Path) -> None:
    crashed = EventFiles(tmp_path)
    for step in range(1, 6):
        crashed.add("training", step, {"x": float(step)})
    crashed.close()
    # Its checkpoint was after step 3; the next leg's file has a later time in its name.
    (file,) = tmp_path.iterdir()
    file.rename(file.with_name("events.out.tfevents.0000000001.host.1.000000"))
    resumed = EventFiles(tmp_path, begin_after=3)
    resumed.add("training", 4, {"x": 40.0})
    resumed.close()
    assert scalars(tmp_path) == {"Determined/x": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]}


def test_files_are_uploaded_whole_so_they_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_events, "MAX_BYTES", 500)
    events = EventFiles(tmp_path)
    for step in range(100):
        events.add("training", step, {"x": 1.0})
    events.close()
    assert len(list(tmp_path.iterdir())) > 5
    assert [step for step, _ in scalars(tmp_path)["Determined/x"]] == list(range(100))


def test_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", None)
    tensorboard = files(tmp_path)
    tensorboard.log("training", 1, {"x": 1.0})
    (tensorboard.get_path() / "mine").write_text("uploaded all the same")
    tensorboard.close()
    assert installation.command("tensorboard") in caplog.text
    assert [path.name for path in (tmp_path / "storage/tb").iterdir()] == ["mine"]


def test_a_storage_that_is_away_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tensorboard = files(tmp_path)

    def refuse(key: str, source: Path) -> None:
        raise errors.StorageError("checkpoint storage: it is full")

    monkeypatch.setattr(tensorboard._storage, "put", refuse)
    tensorboard.log("training", 1, {"x": 1.0})
    tensorboard.upload()
    tensorboard.upload()
    tensorboard.close()
    assert caplog.text.count("it is full") == 1


def test_a_link_that_leads_nowhere_keeps_no_other_file(tmp_path: Path) -> None:
    tensorboard = files(tmp_path)
    path = tensorboard.get_path()
    (path / "a").symlink_to(path / "a")
    (path / "b").write_text("x")
    tensorboard.sync()
    assert [file.name for file in (tmp_path / "storage/tb").iterdir()] == ["b"]
    tensorboard.close()


def test_names_by_rank() -> None:
    assert with_rank(Path("a/events.out.tfevents.1.h.2"), 0) == Path("a/events.out.tfevents.1.h.2")
    assert with_rank(Path("a/events.out.tfevents.1.h.2"), 3).name == "events.out.tfevents.1.h.2#3"
    assert with_rank(Path("p/h.x_7.1619.pt.trace.json"), 3) == Path("p/h.x_7#3.1619.pt.trace.json")
    assert with_rank(Path("h_7.pt.trace.json.gz"), 1).name == "h_7#1.pt.trace.json.gz"
    assert with_rank(Path("host.xplane.pb"), 2).name == "host#2.xplane.pb"
    assert with_rank(Path("notes"), 2).name == "notes#2"


def test_files_of_a_run_that_has_ended_stay_where_they_are(tmp_path: Path) -> None:
    def ended() -> None:
        raise errors.AllocationEnded("run 1 has ended")

    made = files(tmp_path, check=ended)
    made.log("training", 1, {"loss": 0.5})
    made.close()
    with pytest.raises(errors.AllocationEnded):
        made.sync()
    assert list((tmp_path / "run").rglob("*tfevents*"))
    assert not (tmp_path / "storage").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_reports_of_a_forked_child_become_charts(make_context: Make, tmp_path: Path) -> None:
    with make_context() as context:
        context.train.report_training_metrics(1, {"loss": 0.5})
        context.train._tensorboard.upload()
        # As if the thread were uploading just then.
        with context.train._tensorboard._lock:
            child = os.fork()
            if child == 0:
                context.train.report_training_metrics(2, {"loss": 0.25})
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        context.train.report_training_metrics(3, {"loss": 0.125})
    charts = scalars(stored(tmp_path))["Determined/loss"]
    assert sorted(charts) == [(1, 0.5), (2, 0.25), (3, 0.125)]


def test_files_of_a_fork_are_read_after_the_start_of_the_leg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = EventFiles(tmp_path, begin_after=0)
    child = parent.in_fork()
    # The child writes first, and its process id is the smaller one as text.
    for files, pid, step in ((child, 100_001, 2), (parent, 99_999, 3)):
        monkeypatch.setattr(_events.os, "getpid", lambda pid=pid: pid)
        files.add("training", step, {"loss": step / 2})
        files.close()
    assert sorted(scalars(tmp_path)["Determined/loss"]) == [(2, 1.0), (3, 1.5)]


def test_two_contexts_of_a_process_in_one_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_events.time, "time", lambda: 1_800_000_000.0)
    first, second = EventFiles(tmp_path), EventFiles(tmp_path)
    for step, files in enumerate((first, second), 1):
        files.add("training", step, {"loss": step / 2})
        files.close()
    assert scalars(tmp_path) == {"Determined/loss": [(1, 0.5), (2, 1.0)]}
