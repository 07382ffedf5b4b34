"""Search runners: each event is answered exactly once, even if the process dies."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import traceback
import uuid
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

from determined import searcher
from determined.common.api import errors
from determined.core._checkpoint import DummyCheckpointContext
from determined.core._distributed import DummyDistributedContext
from determined.storage import build
from tests.unit.sdk.searcher_service import Experiment, Killed

ROOT = Path(__file__).parents[3]
CONFIG = {
    "name": "n",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "custom", "metric": "x", "unit": "epochs"},
}
TRIALS = 9


def example() -> ModuleType:
    """examples/custom_searcher/asha.py, which is written as users write theirs."""
    path = ROOT / "examples/custom_searcher/asha.py"
    spec = importlib.util.spec_from_file_location("asha_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ASHA = example().ASHA


class Idle(ASHA):  # type: ignore[misc, valid-type]
    """Makes no trials."""

    def __init__(self) -> None:
        super().__init__(lambda rng: {}, max_trials=1, max_length=9)

    def initial_operations(self, state: Any) -> list[searcher.Operation]:
        return []


def asha(trials: int = TRIALS) -> Any:
    return ASHA(lambda rng: {"x": rng.random()}, trials, max_length=9, concurrent=3, seed=4)


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return Experiment()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text("pass")
    return tmp_path / "model"


def local(experiment: Experiment, folder: Path, method: Any = None) -> Any:
    return searcher.LocalSearchRunner(method or asha(), folder, session=experiment.session)


class Cluster:
    """The core context of one trial after the other, with the same checkpoint storage."""

    def __init__(self, folder: Path) -> None:
        self.stored: list[tuple[str, int]] = []
        self.deleted: list[str] = []
        self.preempt = False
        dist = DummyDistributedContext()
        storage = build({"type": "shared_fs", "host_path": str(folder)})
        outer = self

        class Checkpoints(DummyCheckpointContext):
            def _report_checkpoint(self, storage_id: str, manifest: Any, metadata: Any) -> None:
                outer.stored.append((storage_id, metadata["steps_completed"]))

            def _report_deleted(self, storage_id: str) -> None:
                outer.deleted.append(storage_id)

        self.checkpoint = Checkpoints(dist, storage)

    def context(self) -> Any:
        latest = self.stored[-1][0] if self.stored else None
        return SimpleNamespace(
            info=SimpleNamespace(latest_checkpoint=latest),
            checkpoint=self.checkpoint,
            preempt=SimpleNamespace(should_preempt=lambda: self.preempt),
        )


class Runs:
    """Starts runners of one kind again and again, each with the previous one's state."""

    def __init__(self, kind: str, experiment: Experiment, folder: Path, model: Path) -> None:
        self.kind, self.experiment, self.model = kind, experiment, model
        self.folder = folder / "state"
        self.cluster = Cluster(folder / "storage") if kind == "remote" else None

    def once(self, method: Any = None) -> Any:
        if self.cluster is None:
            runner = local(self.experiment, self.folder, method)
        else:
            runner = searcher.RemoteSearchRunner(
                method or asha(), self.cluster.context(), session=self.experiment.session
            )
        assert runner.run(CONFIG, self.model) == 5
        return runner


@pytest.fixture(params=["local", "remote"])
def runs(
    request: pytest.FixtureRequest, experiment: Experiment, tmp_path: Path, model: Path
) -> Runs:
    return Runs(request.param, experiment, tmp_path, model)


def unbroken(tmp_path: Path, model: Path) -> Experiment:
    reference = Experiment()
    local(reference, tmp_path / "reference").run(CONFIG, model)
    return reference


def test_a_search_runs_to_its_end(runs: Runs) -> None:
    experiment = runs.experiment
    runner = runs.once()
    assert experiment.state == "COMPLETED"
    assert runner.state.experiment_completed
    assert not runner.state.experiment_failed
    assert len(experiment.hparams) == TRIALS == len(experiment.closed)
    lengths = sorted(max(targets) for targets in experiment.targets.values())
    assert lengths == [1] * 6 + [3] * 2 + [9]
    (best,) = [trial for trial, targets in experiment.targets.items() if targets[-1] == 9]
    assert experiment.targets[best] == [1, 3, 9]
    assert experiment.progress[-1] == 1.0
    assert {str(trial) for trial in runner.state.trials_closed} == set(experiment.closed)
    assert runner.state.trial_progress[uuid.UUID(best)] == 4.5
    answered = [number for number, _ in experiment.answered]
    assert answered == sorted(set(answered))


def test_progress_follows_every_event_but_creation(runs: Runs) -> None:
    runs.once()
    for body in runs.experiment.bodies:
        (kind,) = set(body["triggeredByEvent"]) - {"id"}
        sent = [next(iter(operation)) for operation in body["searcherOperations"]]
        expected = kind not in ("initialOperations", "trialCreated")
        assert ("setSearcherProgress" in sent[-1:]) is expected, kind
        assert body["experimentId"] == 5


def test_the_state_is_saved_with_the_answer_to_every_event(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress reports, too: a method may decide by them, and overrides of save_state see them."""
    saved: list[tuple[int, dict[uuid.UUID, float]]] = []
    kind = searcher.LocalSearchRunner if runs.kind == "local" else searcher.RemoteSearchRunner
    save = kind.save_state

    def noting(self: Any, experiment_id: int, operations: Any) -> None:
        saved.append((self.state.last_event_id, dict(self.state.trial_progress)))
        save(self, experiment_id, operations)

    monkeypatch.setattr(kind, "save_state", noting)
    runs.once()
    events = {
        body["triggeredByEvent"]["id"]: body["triggeredByEvent"] for body in runs.experiment.bodies
    }
    assert [number for number, _ in saved[1:]] == list(
        events
    )  # the first is that of the new experiment
    reported = [
        (
            number,
            uuid.UUID(event["trialProgress"]["requestId"]),
            event["trialProgress"]["partialUnits"],
        )
        for number, event in events.items()
        if "trialProgress" in event
    ]
    assert reported
    for number, trial, units in reported:
        assert dict(saved)[number][trial] == float(units)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_post_it_goes_on_with_the_same_trials(
    runs: Runs, tmp_path: Path, model: Path, moment: str
) -> None:
    """A kill at every third POST: before the service took it, or before its answer came."""
    expected = unbroken(tmp_path, model)
    experiment = runs.experiment
    posts = 0

    def kill(event_id: int) -> None:
        nonlocal posts
        posts += 1
        if posts % 3 == 0:
            raise Killed

    setattr(experiment, moment, kill)
    kills = 0
    while experiment.state == "ACTIVE":
        try:
            runs.once()
        except Killed:
            kills += 1
    assert kills > 10
    assert experiment.created == 1
    assert experiment.hparams == expected.hparams
    assert experiment.targets == expected.targets
    if moment == "before":  # after: the last progress events find their like gone
        assert experiment.answered == expected.answered
    assert runs.once().state.experiment_completed


def test_killed_while_it_saves_it_is_told_again(runs: Runs, tmp_path: Path, model: Path) -> None:
    expected = unbroken(tmp_path, model)
    saves = 0

    class Fragile(ASHA):  # type: ignore[misc, valid-type]
        def save_method_state(self, path: Path) -> None:
            nonlocal saves
            saves += 1
            if saves % 4 == 0:
                (path / "asha.json").write_text("half of")
                raise Killed
            super().save_method_state(path)

    kills = 0
    while runs.experiment.state == "ACTIVE":
        try:
            runs.once(Fragile(lambda rng: {"x": rng.random()}, TRIALS, 9, concurrent=3, seed=4))
        except Killed:
            kills += 1
    assert kills > 3
    assert runs.experiment.targets == expected.targets
    assert runs.experiment.created == 1


def test_answers_lost_on_the_way_arrive_once(runs: Runs, tmp_path: Path, model: Path) -> None:
    expected = unbroken(tmp_path, model)
    posts = 0

    def lose(event_id: int) -> None:
        nonlocal posts
        posts += 1
        if posts % 3 == 0:
            raise httpx.ReadError("connection reset")

    runs.experiment.before = lose
    runs.experiment.after = lose
    runs.once()
    assert runs.experiment.targets == expected.targets
    assert runs.experiment.answered == expected.answered


def test_a_service_that_fails_for_good_ends_the_runner(runs: Runs) -> None:
    def away(event_id: int) -> None:
        raise httpx.ConnectError("nobody there")

    runs.experiment.before = away
    with pytest.raises(errors.MasterNotFoundException, match="nobody there") as raised:
        runs.once()
    assert "concerns the answer to event 1: initialOperations" in raised.value.__notes__[0]
    runs.experiment.before = lambda event_id: None
    assert runs.once().state.experiment_completed


HANDLERS = [
    "initial_operations",
    "on_trial_created",
    "on_validation_completed",
    "on_trial_closed",
    "on_trial_exited_early",
    "progress",
    "save_method_state",
]


@pytest.mark.parametrize("handler", HANDLERS)
def test_an_exception_in_a_handler_leaves_a_search_that_goes_on(
    runs: Runs, tmp_path: Path, model: Path, handler: str
) -> None:
    experiment = runs.experiment
    reference = Experiment()
    for one in (experiment, reference):
        one.after = lambda event_id, one=one: None if event_id != 1 else fail_a_trial(one)  # type: ignore[misc]
    few = 4  # enough to reach every handler
    local(reference, tmp_path / "reference", asha(few)).run(CONFIG, model)
    calls = 0

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        # The first save is that of the new experiment: before any event.
        if calls == (2 if handler == "save_method_state" else 1):
            raise ZeroDivisionError("a mistake in the method")
        return getattr(ASHA, handler)(self, *args, **kwargs)

    method = type("Broken", (ASHA,), {handler: broken})
    sample = lambda rng: {"x": rng.random()}  # noqa: E731
    with pytest.raises(ZeroDivisionError) as raised:
        runs.once(method(sample, few, 9, concurrent=3, seed=4))
    assert calls
    words = "".join(traceback.format_exception(raised.value))
    assert "a mistake in the method" in words
    assert "of experiment 5. No operation was sent" in words
    if runs.kind == "local":
        assert f"run it again with searcher_dir='{runs.folder}' to continue" in words
    runs.once(asha(few))
    assert experiment.state == "COMPLETED"
    assert experiment.created == 1
    assert experiment.targets == reference.targets
    assert experiment.closed == reference.closed


def fail_a_trial(experiment: Experiment) -> None:
    """The last trial failed instead of sending its first report."""
    trial = list(experiment.targets)[-1]
    experiment.queue = [
        event
        for event in experiment.queue
        if event.get("validationCompleted", {}).get("requestId") != trial
    ]
    experiment.add("trialExitedEarly", trial, exitedReason="EXITED_REASON_UNSPECIFIED")
    experiment.do_closeTrial({"requestId": trial})


@pytest.mark.parametrize("returned", [None, {"a": 1}, [None], ["Close"]])
def test_an_invalid_list_of_operations_is_reported(runs: Runs, returned: Any) -> None:
    method = type("Wrong", (ASHA,), {"on_trial_created": lambda *args: returned})
    with pytest.raises(TypeError, match="on_trial_created must return a list of operations"):
        runs.once(method(lambda rng: {"x": rng.random()}, TRIALS, 9))


def test_a_refused_answer_is_asked_for_again(
    experiment: Experiment, tmp_path: Path, model: Path
) -> None:
    """The method's mistake can be mended: its handler is called again, with the state before it."""
    runner = local(experiment, tmp_path / "state")
    experiment.before = lambda event_id: setattr(
        experiment, "refuse", "several operations at once" if event_id == 4 else None
    )
    with pytest.raises(errors.BadRequestException, match="several operations") as raised:
        runner.run(CONFIG, model)
    assert "trialOperation" in "".join(raised.value.__notes__) or "[]" in raised.value.__notes__[0]
    experiment.before = lambda event_id: setattr(experiment, "refuse", None)
    seen = []

    class Watching(ASHA):  # type: ignore[misc, valid-type]
        def on_trial_created(self, state: Any, request_id: Any) -> Any:
            seen.append(state.last_event_id)
            return super().on_trial_created(state, request_id)

    method = Watching(lambda rng: {"x": rng.random()}, TRIALS, 9, concurrent=3, seed=4)
    local(experiment, tmp_path / "state", method).run(CONFIG, model)
    assert experiment.state == "COMPLETED"
    assert len(experiment.closed) == TRIALS


def test_an_answer_to_another_drivers_event_is_an_error(runs: Runs) -> None:
    def steal(event_id: int) -> None:
        if event_id == 3:
            runs.experiment.queue = [e for e in runs.experiment.queue if e["id"] > 3]

    runs.experiment.before = steal
    with pytest.raises(errors.NotFoundException, match="event 3 not found"):
        runs.once()


def test_only_the_last_two_states_are_kept(runs: Runs) -> None:
    runs.once()
    if runs.cluster is not None:
        stored = [uuid for uuid, _ in runs.cluster.stored]
        assert stored[:-2] == runs.cluster.deleted
        assert len(stored) > 20
        assert [steps for _, steps in runs.cluster.stored] == sorted(
            steps for _, steps in runs.cluster.stored
        )
        return
    folder = runs.folder / "exp_5"
    assert (runs.folder / "experiment_id.txt").read_text() == "5"
    last = int((folder / "event_id").read_text())
    kept = sorted(int(path.name.removeprefix("event_")) for path in folder.glob("event_[0-9]*"))
    assert kept[-1] == last == runs.experiment.answered[-1][0]
    assert len(kept) == 2
    assert json.loads((folder / f"event_{last}" / "state").read_text())["lastEventId"] == last


def test_two_runners_in_one_directory(experiment: Experiment, tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "state"

    class Second(ASHA):  # type: ignore[misc, valid-type]
        def initial_operations(self, state: Any) -> Any:
            with pytest.raises(BlockingIOError, match="another search runner is using"):
                local(experiment, folder).run(CONFIG, model)
            return super().initial_operations(state)

    method = Second(lambda rng: {"x": rng.random()}, TRIALS, 9)
    local(experiment, folder, method).run(CONFIG, model)
    assert experiment.state == "COMPLETED"


def test_the_searcher_must_be_custom(runs: Runs) -> None:
    config = {**CONFIG, "searcher": {"name": "random", "metric": "x", "max_trials": 2}}
    if runs.cluster is None:
        runner: Any = local(runs.experiment, runs.folder)
    else:
        runner = searcher.RemoteSearchRunner(
            asha(), runs.cluster.context(), session=runs.experiment.session
        )
    with pytest.raises(ValueError, match="found 'random', but a search runner needs 'custom'"):
        runner.run(config, runs.model)
    assert runs.experiment.created == 0


def test_a_searcher_dir_that_is_a_file(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="file is not a directory"):
        local(experiment, tmp_path / "file")


def test_a_pause_is_waited_for_and_said_once(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = runs.experiment
    pauses = 0

    def pause(event_id: int) -> None:
        if event_id == 2:
            experiment.state = "PAUSED"

    def sleep(seconds: float) -> None:
        nonlocal pauses
        assert seconds == 1.0
        pauses += 1
        if pauses == 4:
            experiment.state = "ACTIVE"

    experiment.after = pause
    monkeypatch.setattr("time.sleep", sleep)
    # The rest of the batch that was read before the pause is answered: the service takes it.
    with caplog.at_level(logging.WARNING, "determined.searcher"):
        runs.once()
    assert experiment.state == "COMPLETED"
    assert pauses == 4
    assert [record.message for record in caplog.records if "is paused" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("state", "completed", "failed"),
    [("COMPLETED", True, False), ("ERROR", False, True), ("CANCELED", False, False)],
)
def test_the_end_of_the_experiment(runs: Runs, state: str, completed: bool, failed: bool) -> None:
    runs.experiment.after = lambda event_id: setattr(runs.experiment, "state", state)
    found = runs.once().state
    assert (found.experiment_completed, found.experiment_failed) == (completed, failed)


def test_a_preempted_trial_leaves_and_its_next_leg_goes_on(
    experiment: Experiment, tmp_path: Path, model: Path
) -> None:
    expected = unbroken(tmp_path, model)
    runs = Runs("remote", experiment, tmp_path, model)
    assert runs.cluster is not None

    def preempt(event_id: int) -> None:
        assert runs.cluster is not None
        runs.cluster.preempt = event_id % 7 == 0

    experiment.after = preempt
    legs = 0
    while experiment.state == "ACTIVE":
        runs.cluster.preempt = False
        runs.once()
        legs += 1
    assert legs > 3
    assert experiment.targets == expected.targets
    assert experiment.answered == expected.answered


def test_off_cluster_there_is_no_remote_runner() -> None:
    with pytest.raises(RuntimeError, match="elsewhere use LocalSearchRunner"):
        searcher.RemoteSearchRunner(asha(), SimpleNamespace(info=None))  # type: ignore[arg-type]


def test_an_interrupt_says_how_to_go_on(
    experiment: Experiment, tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt(event_id: int) -> None:
        if event_id == 5:
            raise KeyboardInterrupt

    experiment.before = interrupt
    runner = local(experiment, tmp_path / "state")
    assert runner.run(CONFIG, model) == 5
    assert "interrupted after event 5 of experiment 5" in caplog.text
    assert f"searcher_dir='{tmp_path / 'state'}'" in caplog.text
    assert not runner.state.experiment_completed


def test_metrics_come_as_the_trial_gave_them(runs: Runs) -> None:
    seen: list[Any] = []

    class Taking(Idle):
        def on_validation_completed(
            self, state: Any, request_id: Any, metric: Any, length: int
        ) -> Any:
            seen.append((metric, length))
            return [searcher.Shutdown()] if len(seen) == 3 else []

    for metric in ({"loss": [1, "NaN"]}, "-Infinity", "NaN"):
        trial = str(uuid.uuid4())
        runs.experiment.hparams[trial] = {}
        runs.experiment.add("validationCompleted", trial, metric=metric, validateAfterLength="7")
    runs.once(Taking())
    assert seen[0][0]["loss"][0] == 1
    assert math.isnan(seen[0][0]["loss"][1])
    assert seen[1] == (-math.inf, 7)
    assert math.isnan(seen[2][0])


@pytest.mark.parametrize(
    ("wire", "reason", "failed"),
    [
        ("UNSPECIFIED", "ERRORED", True),
        ("INVALID_HP", "INVALID_HP", False),
        ("USER_REQUESTED_STOP", "USER_CANCELED", False),
        ("USER_CANCELED", "USER_CANCELED", False),
    ],
)
def test_reasons_of_early_exits(runs: Runs, wire: str, reason: str, failed: bool) -> None:
    seen: list[Any] = []

    class Taking(Idle):
        def on_trial_exited_early(self, state: Any, request_id: Any, exited_reason: Any) -> Any:
            seen.append(exited_reason)
            return [searcher.Shutdown(cancel=True)]

    trial = uuid.uuid4()
    runs.experiment.add("trialCreated", str(trial))
    runs.experiment.add("trialExitedEarly", str(trial), exitedReason=f"EXITED_REASON_{wire}")
    runner = runs.once(Taking())
    assert seen == [searcher.ExitedReason[reason]]
    assert (trial in runner.state.failures) is failed
    assert (trial in runner.state.trial_progress) is (reason != "INVALID_HP")
