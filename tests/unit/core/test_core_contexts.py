"""The contexts of a trial on the cluster, against a service in memory."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from core_service import FakeService, ended, refusal

import determined as det
from determined import core, errors
from determined.common.api.errors import BadRequestException
from determined.core import Context, _searcher
from determined.core._distributed import DummyDistributedContext
from tests.waiting import until

Make = Callable[..., Context]
LENGTHS = {"searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 100}}}
TIMED = {
    "searcher": {
        "name": "adaptive_asha",
        "metric": "loss",
        "time_metric": "batches",
        "max_time": 81,
    }
}


def test_a_context_that_does_nothing_makes_no_request(
    service: FakeService, make_context: Make
) -> None:
    before = threading.active_count()
    with make_context(LENGTHS) as context:
        assert context.info is not None
        assert context.info.trial.trial_id == 7
        assert threading.active_count() == before
    assert service.calls == []


# Train.


def test_reports_of_other_ranks_are_said_once_for_each_group(
    service: FakeService, make_context: Make, caplog: pytest.LogCaptureFixture
) -> None:
    worker = DummyDistributedContext()
    worker.rank = 3
    with make_context(distributed=worker) as context:
        for step in (1, 2):
            context.train.report_training_metrics(step, {"loss": 1.0})
            context.train.report_validation_metrics(step, {"loss": 1.0})
            context.train.report_metrics("gpu_3", step, {"x": 1})
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [line.partition(",")[0] for line in said] == [
        "rank 3 reports training metrics",
        "rank 3 reports validation metrics",
    ]
    assert len(service.reports) == 6


def test_train_reports(service: FakeService, make_context: Make) -> None:
    with make_context() as context:
        context.train.report_training_metrics(10, {"loss": 1.0}, batch_metrics=[{"loss": 2.0}])
        context.train.report_metrics("mine", 5, {"x": 1})
        context.train.report_validation_metrics(10, {"loss": 0.5})
        context.train.report_validation_metrics(10, {"other": 0.5})
        context.train.set_status("validating")
        context.train.report_progress(0.5)
    assert [(r["group"], r["steps_completed"]) for r in service.reports] == [
        ("training", 10),
        ("mine", 5),
        ("validation", 10),
        ("validation", 10),
    ]
    assert service.body("/runner/metadata") == {"state": "validating"}
    assert service.body("/trials/7/progress") == {"progress": 0.5, "is_raw": True}


def test_train_refuses_invalid_reports(make_context: Make) -> None:
    train = make_context(TIMED).train
    with pytest.raises(ValueError, match="'loss' is None"):
        train.report_training_metrics(1, {"loss": None})
    with pytest.raises(TypeError, match="steps_completed"):
        train.report_training_metrics(1.5, {"loss": 1.0})  # type: ignore[arg-type]
    for steps in (-1, 2**63):
        with pytest.raises(ValueError, match=f"steps_completed must be .* found {steps}$"):
            train.report_training_metrics(steps, {"loss": 1.0})
    with pytest.raises(TypeError, match="dict"):
        train.report_training_metrics(1, [1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="group"):
        train.report_metrics("a.b", 1, {})
    with pytest.raises(ValueError, match="between 0 and 1"):
        train.report_progress(1.5)
    with pytest.raises(ValueError, match=r"'batches'.*found loss"):
        train.report_validation_metrics(1, {"loss": 1.0})


def test_best_validation_counts_own_reports(service: FakeService, make_context: Make) -> None:
    with make_context() as context:
        assert context.train.get_experiment_best_validation() is None
        context.train.report_validation_metrics(1, {"loss": 0.25})
        service.best = 0.25
        assert context.train.get_experiment_best_validation() == 0.25
        paths = service.paths()
    assert paths.index("/api/v1/trials/7/metrics/batch") < len(paths) - 1
    assert paths[-1] == "/api/v1/experiments/3/searcher/best_searcher_validation_metric"


def test_metadata(service: FakeService, make_context: Make) -> None:
    with make_context() as context:
        assert context.train.set_metadata({"a": [1]}) == {"a": [1]}
        assert context.train.get_metadata() == {"a": [1]}
    assert service.calls[0][1] == "/api/v1/runs/7/metadata"


def test_refusals_are_raised_at_the_end_of_the_block(
    service: FakeService, make_context: Make
) -> None:
    service.before = lambda *_: refusal(400, "bad metric")
    for leave in (lambda: None, lambda: exit(0)):
        context = make_context()
        with pytest.raises(errors.ReportRefused, match="bad metric"), context:
            context.train.report_training_metrics(1, {"x": 1.0})
            leave()


def test_an_exception_of_the_script_is_not_masked(
    service: FakeService, make_context: Make, caplog: pytest.LogCaptureFixture
) -> None:
    service.before = lambda *_: refusal(400, "bad metric")
    with pytest.raises(ZeroDivisionError), make_context() as context:
        context.train.report_training_metrics(1, {"x": 1.0})
        1 / 0
    assert "bad metric" in caplog.text


def test_early_exit_follows_the_reports(service: FakeService, make_context: Make) -> None:
    with pytest.raises(det.InvalidHP), make_context() as context:
        context.train.report_training_metrics(1, {"x": 1.0})
        raise det.InvalidHP("layers must be even")
    assert service.paths() == ["/api/v1/trials/7/metrics/batch", "/api/v1/trials/7/early_exit"]
    assert service.body("/early_exit") == {"reason": "EXITED_REASON_INVALID_HP"}


def test_a_second_early_exit_is_only_a_warning(
    service: FakeService, make_context: Make, caplog: pytest.LogCaptureFixture
) -> None:
    service.before = lambda *_: refusal(400, "already reported")
    make_context().train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)
    assert "already reported" in caplog.text


def test_tensorboard_files_are_uploaded_when_they_change(
    service: FakeService, make_context: Make, tmp_path: Path
) -> None:
    target = tmp_path / "storage/cluster/tensorboard/experiment/3/trial/7"
    with make_context() as context:
        path = context.train.get_tensorboard_path()
        (path / "events.1").write_text("one")
        with pytest.raises(RuntimeError, match="MANUAL"):
            context.train.upload_tensorboard_files()
        with context.checkpoint.store_path({"steps_completed": 1}):
            pass
        assert (target / "events.1").read_text() == "one"
        (path / "events.1").write_text("longer")
    assert (target / "events.1").read_text() == "longer"
    with make_context(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        (context.train.get_tensorboard_path() / "events.1").write_text("longer")
        context.train.upload_tensorboard_files(
            selector=lambda p: p.name == "events.1",
            mangler=lambda p, rank: p.with_name(f"rank{rank}"),
        )
    assert (target / "rank0").read_text() == "longer"


# Checkpoints.


def test_store_path(service: FakeService, make_context: Make, tmp_path: Path) -> None:
    with make_context() as context:
        context.train.report_training_metrics(3, {"x": 1.0})
        metadata: dict[str, Any] = {"steps_completed": 3, "best": float("inf")}
        with context.checkpoint.store_path(metadata) as (path, uuid):
            (path / "sub").mkdir()
            (path / "sub" / "w").write_bytes(b"12345")
            metadata["late"] = True
        final = tmp_path / "storage" / uuid
        assert json.loads((final / "metadata.json").read_text()) == {
            "steps_completed": 3,
            "best": "Infinity",
            "late": True,
        }
        body = service.checkpoints[uuid]
        assert service.paths() == ["/api/v1/trials/7/metrics/batch", "/api/v1/checkpoints"]
        size = str((final / "metadata.json").stat().st_size)
        assert body["resources"] == {"sub/": "0", "sub/w": "5", "metadata.json": size}
        assert set(body["checksums"]) == {"sub/w", "metadata.json"}
        assert all(value.startswith("sha256:") for value in body["checksums"].values())
        assert body["executable"] == []
        assert (body["taskId"], body["allocationId"]) == ("3.r", "3.r.2")
        assert (body["state"], body["metadata"]["late"]) == ("STATE_COMPLETED", True)
        assert context.checkpoint.get_metadata(uuid) == metadata
        with context.checkpoint.restore_path(uuid) as path:
            assert (path / "sub" / "w").read_bytes() == b"12345"
        service.checkpoints[uuid]["modelVersions"] = [{"modelName": "m", "version": 2}]
        with pytest.raises(errors.CheckpointStateException, match="is version 2 of model 'm'"):
            context.checkpoint.delete(uuid)
        assert final.exists()
        del service.checkpoints[uuid]["modelVersions"]
        context.checkpoint.delete(uuid)
        assert not final.exists()
        assert service.checkpoints[uuid]["resources"] == {}


def test_upload_and_download(service: FakeService, make_context: Make, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a.pt", "b.log"):
        (source / name).write_text(name)
    with make_context() as context:
        uuid = context.checkpoint.upload(
            str(source), {"steps_completed": 1}, selector=lambda path: path.endswith(".pt")
        )
        assert "metadata.json" not in [path.name for path in source.iterdir()]
        assert service.checkpoints[uuid]["resources"].keys() == {"a.pt", "metadata.json"}
        context.checkpoint.download(
            uuid,
            tmp_path / "copy",
            core.DownloadMode.NoSharedDownload,
            selector=lambda path: path != "metadata.json",
        )
        assert [path.name for path in (tmp_path / "copy").iterdir()] == ["a.pt"]
        sharded = context.checkpoint.upload(None, {"steps_completed": 2}, shard=True)
        assert service.checkpoints[sharded]["resources"].keys() == {"metadata.json"}
        with pytest.raises(ValueError, match="shard=True"):
            context.checkpoint.upload(None)


def test_metadata_must_say_the_steps(service: FakeService, make_context: Make) -> None:
    checkpoint = make_context().checkpoint
    wrong: list[Any] = ["3", True, -1, 2**63]
    for metadata in (None, {}, *({"steps_completed": steps} for steps in wrong)):
        with (
            pytest.raises(ValueError, match="steps_completed"),
            checkpoint.store_path(metadata),
        ):
            raise AssertionError("the block must not run")
    with pytest.raises(TypeError, match="JSON"):
        checkpoint.upload(".", {"steps_completed": 1, "x": object()})
    assert service.calls == []


def test_an_exception_in_store_path_reports_nothing(
    service: FakeService, make_context: Make, tmp_path: Path
) -> None:
    context = make_context()
    with (
        pytest.raises(ZeroDivisionError),
        context.checkpoint.store_path({"steps_completed": 1}) as (path, _),
    ):
        (path / "half").write_text("x")
        1 / 0
    assert service.calls == []
    assert list((tmp_path / "storage").iterdir()) == []


def test_a_refused_checkpoint_leaves_no_files(
    service: FakeService, make_context: Make, tmp_path: Path
) -> None:
    for answer, error in (
        (lambda *_: refusal(400, "no"), BadRequestException),
        (ended, errors.AllocationEnded),
    ):
        service.before = answer
        with (
            pytest.raises(error),
            make_context().checkpoint.store_path({"steps_completed": 1}) as (path, _),
        ):
            (path / "w").write_text("x")
        assert list((tmp_path / "storage").iterdir()) == []


def test_a_storage_of_the_scripts_own_is_told(service: FakeService, make_context: Make) -> None:
    section = {"type": "directory", "container_path": "/scratch"}
    for context in (make_context(), make_context(storage_section=section)):
        with context.checkpoint.store_path({"steps_completed": 1}) as (_, uuid):
            pass
        told = service.checkpoints[uuid].get("storage")
    assert told == section
    assert len([one for one in service.checkpoints.values() if "storage" in one]) == 1


def test_stored_but_unreported_checkpoints_are_marked(
    service: FakeService, make_context: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context()
    storage = context.checkpoint._storage
    storage.owner = "cluster.allocation"
    for _ in range(2):
        with context.checkpoint.store_path({"steps_completed": 1}) as (_, told):
            pass
    root = tmp_path / "storage"
    assert not list(root.glob(".unreported-*"))

    def lost(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("killed before it could tell")

    monkeypatch.setattr(context.checkpoint, "_report_checkpoint", lost)
    with (
        pytest.raises(RuntimeError, match="killed"),
        context.checkpoint.store_path({"steps_completed": 2}) as (_, untold),
    ):
        pass
    assert [path.name for path in root.glob(".unreported-*")] == [
        f".unreported-{untold}@cluster.allocation"
    ]
    assert len(storage.sweep("cluster.", lambda found: [])) == 1
    storage.verify(told)
    assert not (root / untold).exists()


def test_unknown_checkpoints(make_context: Make, tmp_path: Path) -> None:
    checkpoint = make_context().checkpoint
    with pytest.raises(errors.CheckpointNotFound):
        checkpoint.get_metadata("nope")
    with pytest.raises(errors.CheckpointNotFound, match="nope"):
        checkpoint.download("nope", tmp_path / "x")


# Preemption.


def test_preemption(service: FakeService, make_context: Make) -> None:
    with make_context() as context:
        assert not context.preempt.should_preempt()
        service.preempt.set()
        until("the preemption", context.preempt.should_preempt)
        assert context.preempt.should_preempt()
    acks = [path for path in service.paths("POST") if path.endswith("ack_preemption")]
    assert acks == ["/api/v1/allocations/3.r.2/signals/ack_preemption"]


@pytest.mark.parametrize("mode", list(core.PreemptMode))
def test_a_signal_that_came_before_the_first_question(
    service: FakeService, make_context: Make, mode: core.PreemptMode
) -> None:
    service.preempt.set()
    context = make_context(preempt_mode=mode)
    assert context.preempt.should_preempt(auto_ack=False)
    assert service.paths("POST") == []
    context.preempt.acknowledge_preemption_signal()
    assert len(service.paths("POST")) == 1


@pytest.mark.parametrize("mode", list(core.PreemptMode))
def test_should_preempt_needs_a_started_context(
    service: FakeService, make_context: Make, mode: core.PreemptMode
) -> None:
    context = make_context(preempt_mode=mode)
    context.preempt._started = False
    with pytest.raises(RuntimeError, match=r"call core_context\.start\(\) first"):
        context.preempt.should_preempt()
    assert service.calls == []
    context.start()
    assert not context.preempt.should_preempt()
    off_cluster = core.DummyPreemptContext(core.DummyDistributedContext(), mode)
    with pytest.raises(RuntimeError, match=r"call core_context\.start\(\) first"):
        off_cluster.should_preempt()
    with off_cluster:
        assert not off_cluster.should_preempt()


def test_asking_often_costs_no_requests(service: FakeService, make_context: Make) -> None:
    context = make_context()
    for _ in range(1000):
        context.preempt.should_preempt()
    assert len(service.calls) <= 2


def test_an_ended_allocation_ends_should_preempt(service: FakeService, make_context: Make) -> None:
    context = make_context()
    assert not context.preempt.should_preempt()
    service.before = ended
    service.preempt.set()
    service.preempt.clear()
    with pytest.raises(errors.AllocationEnded, match="has ended"):
        context.train.set_status("x")
        until("the preemption", context.preempt.should_preempt)


def test_a_refused_poll_is_raised(service: FakeService, make_context: Make) -> None:
    service.before = lambda *_: refusal(404, "no such allocation")
    with pytest.raises(BadRequestException, match="no such allocation"):
        make_context().preempt.should_preempt()


# The searcher.


@pytest.fixture
def progress_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_searcher, "_PROGRESS", 0.0)


@pytest.mark.usefixtures("progress_at_once")
def test_operations(service: FakeService, make_context: Make) -> None:
    service.lengths = [10, 40]
    seen = []
    with make_context(LENGTHS) as context:
        for op in context.searcher.operations():
            seen.append(op.length)
            if op.length == 10:
                op.report_progress(5)
                until(
                    "the progress", lambda: service.paths()[-1], equals="/api/v1/trials/7/progress"
                )
            context.train.report_validation_metrics(op.length, {"loss": 1 / op.length})
            op.report_completed(float("nan") if op.length == 10 else 0.5)
            with pytest.raises(RuntimeError, match="already"):
                op.report_completed(1.0)
        assert context.searcher.get_configured_units() == core.Unit.BATCHES
    assert seen == [10, 40]
    assert service.completed == [(10, "NaN"), (40, 0.5)]
    paths = service.paths("POST")
    completed = paths.index("/api/v1/trials/7/searcher/completed_operation")
    assert "/api/v1/trials/7/metrics/batch" in paths[:completed]
    assert paths[-1] == "/api/v1/allocations/3.r.2/signals/ack_preemption"
    sent = [body for _, path, body in service.calls if path == "/api/v1/trials/7/progress"]
    assert {"progress": 0.5, "is_raw": True} in sent


def test_progress_of_a_fast_loop_is_thinned_out(
    service: FakeService, make_context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.lengths = [1000]
    now = 100.0
    monkeypatch.setattr(_searcher, "time", SimpleNamespace(monotonic=lambda: now))
    sent = []
    for op in make_context(LENGTHS).searcher.operations(auto_ack=False):
        monkeypatch.setattr(op, "_send_progress", sent.append)
        for step in range(1, 301):  # three seconds
            now += 0.01
            op.report_progress(step)
        op.report_completed(0.5)
        break
    assert sent == [100, 200, 300]


def test_validations_go_out_at_once_where_the_searcher_decides_by_them(
    service: FakeService, make_context: Make
) -> None:
    with make_context(TIMED) as context:
        context.train.report_validation_metrics(1, {"loss": 1.0, "batches": 1})
        until("the report", lambda: "/api/v1/trials/7/metrics/batch" in service.paths())
    service.calls.clear()
    with make_context(LENGTHS) as context:
        context.train.report_validation_metrics(1, {"loss": 1.0})
        time.sleep(0.1)
        assert service.paths() == []  # with the reports of the half second that follows
    assert service.paths() == ["/api/v1/trials/7/metrics/batch"]


def test_an_operation_must_be_completed(service: FakeService, make_context: Make) -> None:
    service.lengths = [10]
    operations = make_context(LENGTHS).searcher.operations(auto_ack=False)
    next(operations)
    with pytest.raises(RuntimeError, match="report_completed"):
        next(operations)


def test_a_metric_must_be_a_value(service: FakeService, make_context: Make) -> None:
    service.lengths = [10]
    op = next(make_context(LENGTHS).searcher.operations())
    with pytest.raises(TypeError, match="object"):
        op.report_completed(object())
    op.report_completed(1)
    with pytest.raises(RuntimeError, match="after"):
        op.report_progress(3)
    op.report_progress(10)


@pytest.mark.usefixtures("progress_at_once")
def test_the_form_with_max_time(service: FakeService, make_context: Make) -> None:
    with make_context(TIMED) as context:
        for op in context.searcher.operations():
            assert op.length == 81
            op.report_progress(27)
            op.report_completed(0.1)
        assert context.searcher.get_configured_units() == core.Unit.BATCHES
    assert service.paths() == ["/api/v1/trials/7/progress"]
    assert service.body("/progress")["progress"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("searcher", [{"name": "random"}, {"name": "single", "max_length": None}])
def test_without_a_length_there_are_no_operations(
    make_context: Make, searcher: dict[str, Any]
) -> None:
    context = make_context({"searcher": searcher})
    assert isinstance(context.searcher, core.SearcherContextMissing)
    for call in (
        context.searcher.operations,
        context.searcher.acknowledge_out_of_ops,
        context.searcher.get_configured_units,
    ):
        with pytest.raises(ValueError, match=r"searcher\.max_length"):
            call()


@pytest.mark.parametrize(
    ("searcher", "unit"),
    [
        ({"max_length": 5}, None),
        ({"max_length": {"epochs": 5}}, core.Unit.EPOCHS),
        ({"max_length": {"batches": None, "records": 5}}, core.Unit.RECORDS),
        ({"name": "custom", "unit": "batches"}, core.Unit.BATCHES),
        ({"time_metric": "my_clock", "max_time": 5}, None),
    ],
)
def test_units(make_context: Make, searcher: dict[str, Any], unit: core.Unit | None) -> None:
    assert make_context({"searcher": searcher}).searcher.get_configured_units() == unit


# The rest.


def test_features_that_the_service_lacks(make_context: Make) -> None:
    context = make_context()
    with pytest.raises(NotImplementedError, match="alerts"):
        context.alert("title", "text", "warn")
    with pytest.raises(ValueError, match="level"):
        context.alert(level="loud")  # type: ignore[arg-type]
    checkpoint = type("C", (), {"uuid": "u"})
    with pytest.raises(NotImplementedError, match="what a trial uses"):
        context.experimental.report_task_using_checkpoint(checkpoint)


def test_a_restarting_service_is_waited_for(
    service: FakeService, make_context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    down = iter(range(8))

    def restarting(*_: Any) -> httpx.Response | None:
        if next(down, None) is not None:
            raise httpx.ConnectError("refused")
        return None

    service.before = restarting
    context = make_context()
    with context.checkpoint.store_path({"steps_completed": 1}) as (_, uuid):
        pass
    assert uuid in service.checkpoints


ASHA = {"name": "adaptive_asha", "metric": "loss", "max_length": 8}


@pytest.mark.parametrize(
    ("searcher", "warns"),
    [
        (ASHA, True),
        # The service knows the unit, and says it better.
        (ASHA | {"max_length": {"batches": 8}}, False),
        ({"name": "random", "metric": "loss", "max_length": 8}, False),
        (ASHA | {"time_metric": "loss", "max_time": 8}, False),
    ],
)
def test_a_length_without_a_unit_and_without_operations(
    make_context: Make, caplog: pytest.LogCaptureFixture, searcher: dict[str, Any], warns: bool
) -> None:
    with make_context({"searcher": searcher}) as context:
        context.train.report_validation_metrics(1, {"loss": 1.0})
        # The same validation, in another piece.
        context.train.report_validation_metrics(1, {"loss": 1.0, "accuracy": 0.5})
        assert caplog.text == ""
        for steps in (2, 3):
            context.train.report_validation_metrics(steps, {"loss": 1.0})
    said = [one for one in caplog.messages if one.startswith("this script validates on without")]
    assert len(said) == int(warns)
    assert "adaptive_asha stops trials only where" in "".join(said) or not warns


def test_a_script_that_asks_is_not_told_to(
    make_context: Make, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.lengths = [8]
    with make_context({"searcher": ASHA}) as context:
        for op in context.searcher.operations():
            for steps in (1, 2, 3):
                context.train.report_validation_metrics(steps, {"loss": 1.0})
            op.report_completed(1.0)
    assert caplog.text == ""
