"""Training scripts that run Determined's own harness, on-cluster, against this service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compat.upstream_client import UpstreamClient
from tests.local_cluster import LocalCluster
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)

# That harness reads its info files from /run/determined, which is a container's: a process among
# others gets its own directory. TensorBoard files (MANUAL: none) would need torch or TensorFlow.
ON_CLUSTER = """
import json, logging, os, pathlib, sys, time
import determined as det
from determined import _info

files = pathlib.Path(os.environ["DET_RUN_DIR"]) / "info"
_info._info = det.ClusterInfo(
    trial_info=_info.TrialInfo._from_file(str(files / "trial_info.json")),
    rendezvous_info=_info.RendezvousInfo._from_file(str(files / "rendezvous_info.json")),
    resources_info=_info.ResourcesInfo._from_file(str(files / "resources_info.json")),
    **json.loads((files / "cluster_info.json").read_text()),
)
info = det.get_cluster_info()
logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
core_init = lambda: det.core.init(tensorboard_mode=det.core.TensorboardMode.MANUAL)
"""

TRAIN = """
print("harness", det.__version__, sys.executable)
with core_init() as core_context:
    train = core_context.train
    start = 0
    if info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            start = int((path / "state").read_text())
        assert core_context.checkpoint.get_metadata(info.latest_checkpoint) == {
            "steps_completed": start}
        assert train.get_metadata() == {"legs": {"first": True}}
    else:
        assert train.get_experiment_best_validation() is None
        train.set_metadata({"legs": {"first": True}})
        train.set_status("in its first leg")
    for step in range(start + 1, 7):
        train.report_training_metrics(step, {"loss": 1 / step, "nan": float("nan")})
        train.report_metrics("extra", step, {"rate": info.trial.hparams["rate"]})
        train.report_progress(step / 6)
        if step in (3, 6):
            train.report_validation_metrics(step, {"error": 1 / step})
        if step == 3:
            while not core_context.preempt.should_preempt():
                time.sleep(0.1)
        if step in (3, 6):
            with core_context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                (path / "state").write_text(str(step))
        if core_context.preempt.should_preempt():
            break
    print("leg from", start, "to", step)
"""

SHORT_LIVED = """
with core_init() as core_context:
    if info.trial.hparams["kind"] == "invalid":
        raise det.InvalidHP("not this one")
    if info.trial.hparams["kind"] == "failing":
        raise RuntimeError("as ordered")
    checkpoint = core_context.checkpoint
    files = pathlib.Path("files")
    files.mkdir()
    (files / "kept").write_text("k" * 10)
    (files / "left").write_text("l")
    whole = checkpoint.upload("files", {"steps_completed": 1})
    part = checkpoint.upload(
        "files", {"steps_completed": 2}, shard=True, selector=lambda path: path == "kept")
    checkpoint.download(whole, "back")
    assert sorted(os.listdir("back")) == ["kept", "left", "metadata.json"]
    checkpoint.delete(whole)
    for operation in core_context.searcher.operations():
        core_context.train.report_validation_metrics(operation.length, {"error": 0.5})
        operation.report_progress(operation.length)
        operation.report_completed(0.5)
"""


def config(name: str, python: Path, storage: Path, searcher: str, hparams: str) -> str:
    storage.mkdir()
    return f"""
name: {name}
entrypoint: {python} train.py
max_restarts: 0
checkpoint_storage: {{type: directory, container_path: {storage}, save_trial_latest: 9}}
searcher: {searcher}
hyperparameters: {hparams}
"""


def trials_of(upstream: UpstreamClient, cluster: LocalCluster, number: int) -> list[dict[str, Any]]:
    found = cluster.trials(number)
    return [upstream.json("t", "describe", str(row["id"]))["trial"] for row in found]


def test_training_through_a_pause(
    upstream: UpstreamClient, cluster: LocalCluster, tmp_path: Path
) -> None:
    text = config(
        "upstream-harness",
        upstream.python,
        tmp_path / "storage",
        "{name: single, metric: error}",
        "{rate: 0.25}",
    )
    number = cluster.submit(tmp_path, text, train_py=ON_CLUSTER + TRAIN)

    def steps() -> bool:
        rows = cluster.trials(number)
        assert all(row["state"] not in ("ERROR", "COMPLETED") for row in rows), cluster.logs(number)
        return any(row["totalBatchesProcessed"] == 3 for row in rows)

    until("three steps", steps)
    upstream.det("e", "pause", str(number))
    until("a checkpoint", lambda: cluster.trials(number)[0]["checkpointCount"], equals=1)
    assert cluster.describe(number)["state"] == "STATE_PAUSED"
    upstream.det("e", "activate", str(number))
    upstream.wait(number)
    (trial,) = trials_of(upstream, cluster, number)
    logs = cluster.logs(number)
    assert f"harness 0.38.1 {upstream.python}" in logs
    assert "leg from 0 to 3" in logs
    assert "leg from 3 to 6" in logs
    assert trial["restarts"] == 0
    assert trial["metadata"] == {"legs": {"first": True}}
    assert trial["runnerState"] == "in its first leg"
    assert trial["totalBatchesProcessed"] == 6
    assert trial["checkpointCount"] == 2
    assert trial["bestValidation"]["metrics"]["avgMetrics"] == {"error": 1 / 6}
    summary = trial["summaryMetrics"]
    assert summary["avg_metrics"]["loss"]["count"] == 6
    assert summary["avg_metrics"]["nan"]["last"] == "NaN"
    assert summary["extra"]["rate"]["mean"] == 0.25
    assert cluster.describe(number)["progress"] == 1.0


def test_invalid_failing_and_finished(
    upstream: UpstreamClient, cluster: LocalCluster, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    text = config(
        "upstream-endings",
        upstream.python,
        storage,
        "{name: grid, metric: error, max_length: {batches: 20}}",
        "{kind: {type: categorical, vals: [invalid, failing, fine]}}",
    )
    number = cluster.submit(tmp_path, text, train_py=ON_CLUSTER + SHORT_LIVED)
    upstream.wait(number)
    trials = {one["hparams"]["kind"]: one for one in trials_of(upstream, cluster, number)}
    logs = upstream.det("t", "logs", str(trials["fine"]["id"])).stdout
    states = {kind: trial["state"] for kind, trial in trials.items()}
    assert states == {
        "invalid": "STATE_COMPLETED",
        "failing": "STATE_ERROR",
        "fine": "STATE_COMPLETED",
    }, logs
    assert trials["fine"]["searcherMetricValue"] == 0.5
    assert trials["fine"]["checkpointCount"] == 1
    (kept,) = (path for path in storage.glob("*/kept"))
    assert kept.read_text() == "k" * 10
    rows = json.loads(cluster.det("e", "list-checkpoints", str(number), "--json").stdout)
    assert {row["state"]: list(row["resources"]) for row in rows} == {
        "STATE_DELETED": ["kept", "left", "metadata.json"],
        "STATE_COMPLETED": ["kept"],
    }
    failed = upstream.det("t", "logs", str(trials["failing"]["id"])).stdout
    assert "RuntimeError: as ordered" in failed
