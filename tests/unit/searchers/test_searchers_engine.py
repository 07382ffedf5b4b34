"""The Searcher around a method: bookkeeping, repeated and stray events, the end, snapshots."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest
from search_configs import config

import determined_searchers
from determined_searchers import (
    Close,
    Create,
    Event,
    ExitReason,
    MetricMissing,
    Operation,
    SearchContext,
    Searcher,
    SearcherError,
    SearchMethod,
    SetProgress,
    Shutdown,
    Stop,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
    TrialProgress,
    TrialReported,
    ValidateAfter,
    ValidationCompleted,
    create_searcher,
    restore_searcher,
)
from determined_searchers.methods import _offered
from tests.waiting import TIMEOUT_S


class Scripted(SearchMethod):
    """Answers from a list, and notes its calls."""

    answers: list[list[Operation]] = []
    told: list[tuple[Any, ...]] = []

    @classmethod
    def from_config(cls, context: SearchContext) -> Self:
        return cls()

    def answer(self, *call: Any) -> list[Operation]:
        self.told.append(call)
        return self.answers.pop(0) if self.answers else []

    def initial_operations(self) -> list[Operation]:
        return self.answer("initial")

    def trial_created(self, request_id: str) -> list[Operation]:
        return self.answer("created", request_id)

    def validation_completed(self, request_id: str, metric: Any, length: int) -> list[Operation]:
        return self.answer("validated", request_id, metric, length)

    def trial_reported(
        self, request_id: str, time: float | None, metric: Any, step: int | None
    ) -> list[Operation]:
        return self.answer("reported", request_id, time, metric)

    def trial_progress(self, request_id: str, progress: float) -> list[Operation]:
        return self.answer("progress", request_id, progress)

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        return self.answer("exited", request_id, reason)

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        return self.answer("closed", request_id, exited)

    def progress(self, open_trials: Mapping[str, float]) -> float:
        return math.nan if not open_trials else sum(open_trials.values())

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        pass


class Custom(Scripted):
    """Ends when the searcher ends it; sees unchanged metrics."""

    ends_itself = True
    raw_metrics = True


class Offered:
    """An entry point, as importlib.metadata has them."""

    def __init__(self, name: str, found: Any) -> None:
        self.name, self.found = name, found

    def load(self) -> Any:
        return self.found


@pytest.fixture(autouse=True)
def _plug_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = [Offered("scripted", Scripted), Offered("own", Custom), Offered("broken", dict)]
    monkeypatch.setattr(
        "determined_searchers.methods.entry_points",
        lambda group: points if group == "determined.searchers" else [],
    )
    _offered.cache_clear()
    yield
    _offered.cache_clear()


A = Create("a", {}, 1)
B = Create("b", {}, 2)


def scripted(*answers: list[Operation], name: str = "scripted", **fields: Any) -> Searcher:
    Scripted.answers = list(answers)
    Scripted.told = []
    searcher = create_searcher(config(name, **{"max_length": 100, **fields}))
    searcher.initial_operations()
    Scripted.told.clear()
    return searcher


def told(searcher: Searcher, *events: Event) -> list[tuple[Any, ...]]:
    for event in events:
        searcher.handle(event)
    return Scripted.told


# Order of calls


def test_events_come_after_the_initial_operations() -> None:
    searcher = create_searcher(config("single"))
    with pytest.raises(RuntimeError):
        searcher.handle(TrialClosed("a"))
    searcher.initial_operations()
    with pytest.raises(RuntimeError):
        searcher.initial_operations()


def test_a_trials_life_reaches_the_method() -> None:
    searcher = scripted([A, ValidateAfter("a", 3)])
    assert told(
        searcher,
        TrialCreated("a"),
        TrialProgress("a", 2),
        ValidationCompleted("a", 0.5, 3),
        TrialExitedEarly("a", ExitReason.USER_REQUESTED_STOP),
        TrialClosed("a"),
    ) == [
        ("created", "a"),
        ("progress", "a", 2),
        ("validated", "a", 0.5, 3),
        ("exited", "a", ExitReason.USER_REQUESTED_STOP),
        ("closed", "a", ExitReason.USER_REQUESTED_STOP),
    ]


# Events that change nothing


@pytest.mark.parametrize(
    "event",
    [
        TrialCreated("x"),
        ValidationCompleted("x", 1.0, 1),
        TrialReported("x", 1, 1.0),
        TrialProgress("x", 1),
        TrialExitedEarly("x", ExitReason.ERRORED),
        TrialClosed("x"),
    ],
    ids=lambda event: event.type,
)
def test_events_of_unknown_trials(event: Event) -> None:
    searcher = scripted([A])
    before = searcher.snapshot()
    assert searcher.handle(event) == []
    assert told(searcher) == []
    assert searcher.snapshot() == before


def test_a_second_exit_is_ignored() -> None:
    searcher = scripted([A, B])
    told(
        searcher,
        TrialExitedEarly("a", ExitReason.ERRORED),
        TrialExitedEarly("a", ExitReason.USER_CANCELED),
    )
    assert told(searcher) == [("exited", "a", ExitReason.ERRORED)]
    assert (searcher.failures, searcher.cancels) == (1, 0)


def test_nothing_but_the_close_follows_an_exit() -> None:
    searcher = scripted([A, B, ValidateAfter("a", 3)])
    assert told(
        searcher,
        TrialExitedEarly("a", ExitReason.ERRORED),
        ValidationCompleted("a", 1.0, 3),
        TrialReported("a", 1, 1.0),
        TrialProgress("a", 3),
        TrialClosed("a"),
        TrialClosed("a"),
        TrialExitedEarly("a", ExitReason.ERRORED),
    ) == [("exited", "a", ExitReason.ERRORED), ("closed", "a", ExitReason.ERRORED)]


def test_repeated_validations_are_told_from_wrong_ones() -> None:
    searcher = scripted([A, ValidateAfter("a", 3)], [ValidateAfter("a", 9)])
    again = [ValidationCompleted("a", 1.0, 3)] * 2
    assert told(searcher, *again) == [("validated", "a", 1.0, 3)]
    with pytest.raises(
        SearcherError, match="was expected to report length 9, but reported length 5"
    ):
        searcher.handle(ValidationCompleted("a", 1.0, 5))
    told(searcher, ValidationCompleted("a", 1.0, 9), *again, ValidationCompleted("a", 1.0, 9))
    assert len(told(searcher)) == 2
    with pytest.raises(
        SearcherError, match="was expected to report nothing, but reported length 12"
    ):
        searcher.handle(ValidationCompleted("a", 1.0, 12))


def test_the_same_length_may_be_asked_for_twice() -> None:
    searcher = scripted([A, ValidateAfter("a", 1)], [ValidateAfter("a", 1)])
    told(searcher, ValidationCompleted("a", 1.0, 1), ValidationCompleted("a", 2.0, 1))
    assert told(searcher) == [("validated", "a", 1.0, 1), ("validated", "a", 2.0, 1)]


def test_reports_go_forward_in_time_and_end_with_the_stop() -> None:
    searcher = scripted([A], [], [], [], [Stop("a")], max_length=None)
    told(
        searcher,
        TrialReported("a", 2, 1.0),
        TrialReported("a", 1, 1.0),
        TrialReported("a", 2, 1.0),
        TrialReported("a", None, 1.0),
        TrialReported("a", 3, 1.0),
        TrialReported("a", 4, 1.0),
        TrialReported("a", 5, 1.0),
    )
    assert [call[2] for call in told(searcher)] == [2, None, 3, 4]


# Metrics at the boundary


@pytest.mark.parametrize("smaller", [True, False])
def test_metrics_are_turned_and_never_nan(smaller: bool) -> None:
    searcher = scripted([A], smaller_is_better=smaller, max_length=None)
    worst = sys.float_info.max
    metrics = [2, -0.5, math.nan, None, math.inf]
    told(searcher, *(TrialReported("a", i, metric) for i, metric in enumerate(metrics)))
    sign = 1 if smaller else -1
    expected = [sign * 2.0, sign * -0.5, worst, worst, sign * math.inf]
    assert [call[3] for call in told(searcher)] == expected


@pytest.mark.parametrize("metric", ["0.5", True, {"a": 1}, [1.0]])
def test_a_metric_that_is_not_a_number(metric: Any) -> None:
    searcher = scripted([A, ValidateAfter("a", 1)])
    with pytest.raises(SearcherError, match="must be a number"):
        searcher.handle(ValidationCompleted("a", metric, 1))


def test_raw_metrics_are_left_alone() -> None:
    searcher = scripted([A, ValidateAfter("a", 1)], name="own", smaller_is_better=False)
    assert told(searcher, ValidationCompleted("a", {"any": None}, 1)) == [
        ("validated", "a", {"any": None}, 1)
    ]


# The end


def test_a_search_without_trials_ends_at_once() -> None:
    Scripted.answers = []
    searcher = create_searcher(config("scripted", max_length=1))
    assert searcher.initial_operations() == [Shutdown()]


def test_the_end_comes_when_all_asked_for_are_closed() -> None:
    searcher = scripted([A], [B])
    assert searcher.handle(TrialClosed("a")) == [B]
    assert searcher.handle(TrialClosed("b")) == [Shutdown()]
    assert (searcher.trials_requested, searcher.trials_closed) == (2, 2)


def test_after_the_shutdown_everything_is_ignored() -> None:
    searcher = scripted([A, B], [Shutdown(cancel=True)])
    assert searcher.handle(TrialClosed("a")) == [Shutdown(cancel=True)]
    before = searcher.snapshot()
    assert searcher.handle(TrialExitedEarly("b", ExitReason.ERRORED)) == []
    assert searcher.handle(TrialClosed("b")) == []
    assert searcher.snapshot() == before
    assert searcher.shutdown == Shutdown(cancel=True)


def test_a_method_that_ends_itself_is_not_ended() -> None:
    searcher = scripted([A], [], [], name="own")
    assert searcher.handle(TrialClosed("a")) == []
    assert searcher.shutdown is None


def test_progress_by_the_methods_word() -> None:
    searcher = scripted([A, SetProgress(0.25)])
    assert searcher.progress() == 0.25
    settings = config("scripted", max_length=100)
    assert restore_searcher(settings, searcher.snapshot()).progress() == 0.25


def test_progress_that_is_not_a_number_is_none() -> None:
    searcher = scripted([A], [B], [])
    searcher.handle(TrialExitedEarly("a", ExitReason.INVALID_HP))
    searcher.handle(TrialExitedEarly("b", ExitReason.INVALID_HP))
    assert searcher.progress() == 0.0


@pytest.mark.parametrize("stray", [ValidateAfter("x", 1), Close("x"), Stop("x")])
def test_operations_on_missing_trials(stray: Operation) -> None:
    searcher = scripted([A], [stray])
    with pytest.raises(SearcherError, match=f"asked to {stray.type} trial x"):
        searcher.handle(TrialCreated("a"))


# Snapshots


def test_the_whole_snapshot() -> None:
    settings = config("random", max_trials=3, max_concurrent_trials=2, max_length=10)
    searcher = create_searcher(settings)
    operations = searcher.initial_operations()
    first, second = (op.request_id for op in operations if isinstance(op, Create))
    searcher.handle(TrialCreated(first))
    searcher.handle(TrialExitedEarly(first, ExitReason.INVALID_HP))
    searcher.handle(TrialCreated(second))
    searcher.handle(TrialProgress(second, 3))
    snapshot = searcher.snapshot()
    rand = snapshot.pop("rand")
    assert len(rand["key"]) == 624
    trial = {"created": True, "reached": 0, "reported": None, "stopped": False}
    assert snapshot == {
        "version": 1,
        "name": "random",
        "form": "operations",
        "started": True,
        "trials_requested": 2,
        "trials_created": 2,
        "trials_closed": 0,
        "cancels": 0,
        "failures": 0,
        "invalid_in_a_row": 1,
        "own_progress": None,
        "shutdown": None,
        "live_trials": [
            {
                **trial,
                "request_id": first,
                "target": None,
                "exited": "INVALID_HP",
                "progress": 0.0,
            },
            {**trial, "request_id": second, "target": 10, "exited": None, "progress": 3.0},
        ],
        "method_state": {"created": 1, "closed": 0},
    }


def test_a_snapshot_of_the_beginning_and_one_of_the_end() -> None:
    settings = config("single")
    searcher = restore_searcher(settings, create_searcher(settings).snapshot())
    [create] = searcher.initial_operations()
    assert [create] == create_searcher(settings).initial_operations()
    assert isinstance(create, Create)
    searcher.handle(TrialExitedEarly(create.request_id, ExitReason.ERRORED))
    searcher.handle(TrialClosed(create.request_id))
    ended = restore_searcher(settings, json.loads(json.dumps(searcher.snapshot())))
    assert ended.shutdown == Shutdown(failure=True)
    assert ended.snapshot() == searcher.snapshot()


@pytest.mark.parametrize(
    "other",
    [config("single"), config("grid", max_length=3), config("random", max_trials=2)],
    ids=["single", "grid", "other form"],
)
def test_a_snapshot_of_another_search_is_refused(other: Any) -> None:
    snapshot = create_searcher(config("random", max_trials=2, max_length=3)).snapshot()
    with pytest.raises(SearcherError, match="does not belong to this configuration"):
        restore_searcher(other, snapshot)


# Names and sections


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("randon", "'randon' is not a searcher .did you mean 'random'.*known are"),
        (
            "sync_halving",
            "'sync_halving' searcher has been removed .* new experiments: use async_h",
        ),
        ("adaptive", "has been removed .*: use adaptive_asha"),
        ("adaptive_simple", "has been removed .*: use adaptive_asha"),
        (None, "None is not a searcher"),
        ("broken", "not a SearchMethod"),
    ],
)
def test_names_without_a_searcher(name: Any, message: str) -> None:
    with pytest.raises(SearcherError, match=message):
        create_searcher(config(name))


def test_plug_ins_cannot_replace_built_in_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "determined_searchers.methods.entry_points", lambda group: [Offered("single", Scripted)]
    )
    assert create_searcher(config("single")).initial_operations() != []


def test_a_plug_in_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real importlib.metadata
    info = tmp_path / "a_plug_in-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plug-in\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[determined.searchers]\nplugged = determined_searchers.grid_search:GridSearch\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugged = create_searcher(config("plugged")).initial_operations()
    assert plugged == create_searcher(config("grid")).initial_operations()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_trials": None}, r"searcher\.max_trials: the random searcher needs this field"),
        ({"max_trials": 0}, r"searcher\.max_trials: .* at least 1, found 0"),
        ({"max_trials": 2.5}, r"searcher\.max_trials"),
        ({"max_trials": True}, r"searcher\.max_trials"),
        ({"max_concurrent_trials": -1}, r"searcher\.max_concurrent_trials: .* at least 0"),
        ({"max_length": 0}, r"searcher\.max_length: .* at least 1, found 0"),
        ({"max_length": {"batches": 0}}, r"searcher\.max_length"),
        ({"max_length": {"batches": 1, "epochs": 2}}, r"exactly one of .*found batches, epochs"),
        ({"max_length": {"steps": 1}}, r"exactly one of .*found steps"),
        ({"max_length": {}}, "found nothing"),
        ({"max_length": "100"}, r"searcher\.max_length"),
    ],
)
def test_fields_that_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SearcherError, match=message):
        create_searcher(config("random", **{"max_trials": 3, **fields}))


def test_configurations_that_describe_no_search() -> None:
    with pytest.raises(SearcherError, match=r"^searcher: "):
        create_searcher({})
    with pytest.raises(SearcherError, match="experiment_seed"):
        create_searcher({"searcher": {"name": "single"}})


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, "reports"),
        ({"max_length": None, "max_time": None, "time_metric": None}, "reports"),
        ({"max_length": 5}, "operations"),
        ({"max_length": {"records": 5, "batches": None}}, "operations"),
        ({"max_time": 5, "time_metric": "batches"}, "reports"),
        ({"max_length": 5, "max_time": 5, "time_metric": "batches"}, "reports"),
        ({"max_length": 5, "time_metric": "batches"}, "operations"),
    ],
)
def test_form(fields: dict[str, Any], form: str) -> None:
    assert create_searcher(config("single", **fields)).form == form


def test_the_package_imports_nothing_of_ours_or_others() -> None:
    code = (
        "import sys, determined_searchers as d, determined_searchers.testing\n"
        "d.simulate({'searcher': {'name': 'random', 'max_trials': 2}}, seed=1)\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    )
    root = Path(determined_searchers.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
        env={"PYTHONPATH": str(root)},
    )
    loaded = json.loads(done.stdout.replace("'", '"'))
    assert [name for name in loaded if not name.startswith("__")] == ["determined_searchers"]


@pytest.mark.parametrize(
    ("searcher", "fails"),
    [
        ({"name": "adaptive_asha", "time_metric": "batches", "max_time": 8}, True),
        ({"name": "async_halving", "num_rungs": 2, "time_metric": "batches", "max_time": 8}, True),
        ({"name": "random", "time_metric": "batches", "max_time": 8}, False),
        # The trials send the metric at the end of each operation, regardless of their reports.
        ({"name": "adaptive_asha", "max_length": {"batches": 8}}, False),
    ],
)
def test_a_search_that_needs_the_metric_fails_without_it(
    searcher: dict[str, Any], fails: bool
) -> None:
    section = {"metric": "loss", "max_trials": 4} | searcher
    made = create_searcher(
        {
            "searcher": section,
            "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
            "reproducibility": {"experiment_seed": 1},
        }
    )
    trial = next(op.request_id for op in made.initial_operations() if isinstance(op, Create))
    made.handle(TrialCreated(trial))
    event = MetricMissing(trial, "trial 1: searcher.metric is 'loss', and so on")
    if not fails:
        assert made.handle(event) == []
        return
    with pytest.raises(
        SearcherError, match=r"searcher\.metric is 'loss', and so on; the .* searcher"
    ):
        made.handle(event)
