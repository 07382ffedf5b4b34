"""A Trainer on the cluster: the searcher's lengths in both forms, preemption, the best checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from trials import SIZE, SmallTrial

from determined import core, errors, pytorch
from determined.core._context import _trial_context
from determined.core._tensorboard import TensorboardMode
from determined.storage import build
from tests.unit.core.core_service import FakeService, make_info
from tests.waiting import TIMEOUT_S

SINGLE = {"name": "single", "metric": "error", "max_length": {"epochs": 1}}


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.service = FakeService()
        self.folder = folder

    def train(self, searcher: dict[str, Any], prepare: Any = lambda trial: None, **fit: Any) -> Any:
        transport = httpx.MockTransport(self.service.handle)
        core_context = _trial_context(
            make_info({"searcher": searcher}),
            core.DummyDistributedContext(),
            build({"type": "shared_fs", "host_path": str(self.folder)}),
            core.PreemptMode.WorkersAskChief,
            TensorboardMode.AUTO,
            transport,
        )
        with core_context:
            context = pytorch.PyTorchTrialContext(
                core_context,
                1,
                {"global_batch_size": SIZE},
                1,
                0,
                {"searcher": searcher},
                managed_training=True,
            )
            trial: Any = SmallTrial(context)
            prepare(trial)
            try:
                pytorch.Trainer(trial, context).fit(**fit)
            finally:
                self.service.preempt.set()
        return trial

    def steps(self, group: str) -> list[int]:
        return [r["steps_completed"] for r in self.service.reports if r["group"] == group]

    def checkpoints(self) -> list[int]:
        stored = self.service.checkpoints.values()
        return [checkpoint["metadata"]["steps_completed"] for checkpoint in stored]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "storage")


@pytest.mark.parametrize(
    ("unit", "lengths", "batches"),
    [("epochs", [1, 2], [5, 10]), ("batches", [2, 7], [2, 7]), ("records", [8, 20], [2, 5])],
)
def test_lengths_that_the_searcher_assigns(
    cluster: Cluster, unit: str, lengths: list[int], batches: list[int]
) -> None:
    cluster.service.lengths = lengths
    cluster.train({**SINGLE, "max_length": {unit: 9}}, checkpoint_policy="none")
    assert cluster.steps("validation") == batches
    assert cluster.checkpoints() == batches
    assert [length for length, _ in cluster.service.completed] == lengths
    reports = [r["metrics"]["error"] for r in cluster.service.reports if r["group"] == "validation"]
    assert [metric for _, metric in cluster.service.completed] == reports
    # The checkpoint is there before the searcher may send the process away.
    calls = cluster.service.paths("POST")
    ends = [n for n, path in enumerate(calls) if path.endswith("completed_operation")]
    stored = [n for n, path in enumerate(calls) if path == "/api/v1/checkpoints"]
    assert stored[0] < ends[0] < stored[1] < ends[1]


@pytest.mark.parametrize(("unit", "batches"), [("epochs", 10), ("batches", 2), ("records", 1)])
def test_time_metrics(cluster: Cluster, unit: str, batches: int) -> None:
    searcher = {"name": "adaptive_asha", "metric": "error", "time_metric": unit, "max_time": 2}
    cluster.train(searcher)
    assert cluster.steps("validation") == [batches]
    (report,) = [r for r in cluster.service.reports if r["group"] == "validation"]
    assert report["metrics"]["batches"] == batches
    assert unit in report["metrics"]
    assert cluster.service.completed == []


def test_the_code_decides_where_the_configuration_does_not(cluster: Cluster) -> None:
    cluster.train({"name": "single", "metric": "error"}, max_length=pytorch.Batch(3))
    assert cluster.steps("training") == [3]


@pytest.mark.parametrize(
    ("searcher", "error"),
    [
        ({"name": "single", "metric": "error"}, "the length of the training is not set"),
        ({**SINGLE, "max_length": 100}, "needs a unit.*found 100"),
        ({"name": "custom", "metric": "error"}, "searcher.unit"),
        (
            {"metric": "error", "time_metric": "hours", "max_time": 3},
            "length of the training is not set",
        ),
    ],
)
def test_configurations_that_say_no_length(
    cluster: Cluster, searcher: dict[str, Any], error: str
) -> None:
    with pytest.raises(errors.InvalidConfigurationException, match=error):
        cluster.train(searcher)


def test_a_missing_metric(cluster: Cluster) -> None:
    cluster.service.lengths = [1]
    with pytest.raises(errors.InvalidModelException, match=r"'acuracy'.*it has error, first"):
        cluster.train({**SINGLE, "metric": "acuracy"})


def test_preemption_leaves_a_checkpoint(cluster: Cluster) -> None:
    cluster.service.lengths = [3]

    def prepare(trial: Any) -> None:
        plain = trial.train_batch

        def train_batch(batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 3:
                cluster.service.preempt.set()
                # Until the polling thread has received it.
                watcher = trial.context._core.preempt._watcher
                watcher._thread.join(TIMEOUT_S)
            return plain(batch, epoch_idx, batch_idx)

        trial.train_batch = train_batch

    cluster.train(SINGLE, prepare, reporting_period=pytorch.Batch(2))
    assert cluster.steps("training") == [2, 4]
    assert cluster.steps("validation") == []
    assert cluster.checkpoints() == [4]
    assert cluster.service.completed == []
    assert any(path.endswith("ack_preemption") for path in cluster.service.paths("POST"))


def test_preemption_does_not_wait_for_a_long_stretch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.service.lengths = [3]
    cluster.service.preempt.set()
    monkeypatch.setattr("determined.pytorch._loop.PATIENCE", -1)
    cluster.train(SINGLE)
    assert cluster.steps("training") == cluster.checkpoints() == [1]


@pytest.mark.parametrize(
    ("best", "smaller_is_better", "checkpoints"),
    [(None, True, [2, 4]), (0.0, True, [4]), (0.0, False, [2, 4]), (1e9, False, [4])],
)
def test_the_best_checkpoints(
    cluster: Cluster, best: float | None, smaller_is_better: bool, checkpoints: list[int]
) -> None:
    cluster.service.lengths = [4]
    cluster.service.best = best
    searcher = {**SINGLE, "smaller_is_better": smaller_is_better, "max_length": {"batches": 4}}
    cluster.train(searcher, validation_period=pytorch.Batch(2))
    assert cluster.checkpoints() == checkpoints


def test_a_length_reached_before_is_validated_again_for_the_searcher(cluster: Cluster) -> None:
    cluster.service.lengths = [2]
    cluster.train({**SINGLE, "max_length": {"batches": 2}})
    (uuid,) = cluster.service.checkpoints
    cluster.service.completed.clear()
    cluster.service.preempt.clear()
    trial = cluster.train({**SINGLE, "max_length": {"batches": 2}}, latest_checkpoint=uuid)
    assert trial.seen == []
    assert [length for length, _ in cluster.service.completed] == [2]


def test_another_trials_checkpoint_gives_its_weights(cluster: Cluster) -> None:
    cluster.service.lengths = [2]
    searcher = {**SINGLE, "max_length": {"batches": 2}}
    cluster.train(searcher)
    (uuid,) = cluster.service.checkpoints
    cluster.service.completed.clear()
    cluster.service.preempt.clear()

    def prepare(trial: Any) -> None:
        trial.context._core.info.trial.trial_id = 8

    trial = cluster.train(searcher, prepare, latest_checkpoint=uuid)
    assert len(trial.seen) == 2


def test_test_mode_is_not_for_the_cluster(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="--test-mode"):
        cluster.train(SINGLE, test_mode=True)
