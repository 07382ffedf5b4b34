"""The limits on input: accepted input, and the messages of refusals."""

from __future__ import annotations

import datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.base.checks import (
    check_int,
    check_shape,
    check_text,
    check_time,
    check_value,
)
from determined_service.base.errors import BadRequest, TooLarge, Unavailable, _log_line, of_database
from determined_service.ingest.mlflow_batches import MlflowBatch
from determined_service.ingest.reports import ReportBatch, read_batch
from determined_service.submission.size import check_size


def deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


def test_depth_counts_lists_and_objects() -> None:
    check_value({"a": deep(limits.DEPTH - 1)})
    with pytest.raises(BadRequest, match=r"^a\[0\].* more than 64 deep"):
        check_value({"a": deep(limits.DEPTH)})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": {"b": 2**63}}, r"^a\.b: expected a number of 64 bits"),
        ({"a": [1, "x\0"]}, r"a\[1\].*NUL"),
        ({"x\0": 1}, "NUL"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a": float("inf")}, "a: inf"),
        ({"a": [1] * limits.VALUES}, "at most 100000 values are allowed"),
    ],
)
def test_unstorable_values_are_refused_with_their_path(value: Any, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        check_value(value)


def test_nul_passes_where_it_is_replaced_later() -> None:
    check_value({"a\0": "b\0"}, nul=True)
    with pytest.raises(BadRequest, match="surrogate"):
        check_value({"a": "\0\ud800"}, nul=True)


def test_shape_counts_characters_outside_of_strings() -> None:
    check_shape(b'"' + b"[{" * 100_000 + b'"')
    check_shape(b'["' + b'\\"[' * 100_000)
    check_shape(b"[" * 20_000)
    with pytest.raises(TooLarge, match="at most 20000"):
        check_shape(b"[" * 20_001)
    with pytest.raises(TooLarge):
        check_shape(b'["\\\\",' + b"{" * 20_001)


def test_messages_stay_short() -> None:
    assert len(show("x" * 10**6)) < 100
    assert show(deep(900)) == "a list of 1"
    assert show(10**5000) == "a number of 16610 bits"
    assert show("\ud800\0") == r"'\ud800\x00'"


def test_numbers_texts_and_times() -> None:
    assert check_int(2**31 - 1, "a", most=limits.INT32) == 2**31 - 1
    for wrong in (2**31, True, 1.0, "1", None, -1):
        with pytest.raises(BadRequest, match="a: expected a whole number"):
            check_int(wrong, "a", most=limits.INT32)
    with pytest.raises(BadRequest, match="name: 1025 characters found, at most 1024"):
        check_text("x" * 1025, "name")
    with pytest.raises(BadRequest, match="expected a time from 1900"):
        check_time(datetime.datetime(1, 1, 1), "t")


def batch(**change: Any) -> dict[str, Any]:
    report = {"group": "training", "steps_completed": 1, "metrics": {"loss": 1.0}} | change
    return {"run_id": 1, "reports": [report]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"metrics": {"n" * 20_000: 1}}, "20000 bytes found, at most 1024"),
        ({"metrics": {"é" * 600: 1}}, "1200 bytes found"),
        ({"metrics": {"a": "x" * 100_000}}, "metrics.a: 100002 bytes found, at most 65536"),
        ({"metrics": {"a": deep(65)}}, "more than 64 deep"),
        ({"metrics": {"a": {"b": "\ud800"}}}, "surrogate"),
        ({"metrics": {f"m{i}": 0.123456 for i in range(60_000)}}, "metrics: .* bytes found"),
        ({"group": "g" * 2000}, "group .*2000 bytes"),
        ({"batch_metrics": {"a": 1}}, "batch_metrics must be a list"),
        ({"batch_metrics": [deep(70)]}, "batch_metrics"),
        ({"end_time": "0001-01-01T00:00:00Z"}, "end_time"),
        ({"steps_completed": 2**63}, "steps_completed must be a whole number"),
        ({"metrics": deep(900)}, "not a list of 1"),
    ],
)
def test_reports_beyond_the_limits_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        read_batch(1, batch(**change))


@pytest.mark.parametrize("field", ["step", "timestamp"])
@pytest.mark.parametrize("number", [2**63, str(2**64), -(2**70), 1e300])
def test_mlflow_points_beyond_64_bits_are_refused(field: str, number: Any) -> None:
    point = {"key": "loss", "value": 1.0, "timestamp": 1, "step": 1} | {field: number}
    with pytest.raises(
        BadRequest, match=rf"parameter 'metrics\[0\].{field}' supplied: expected a whole number"
    ):
        MlflowBatch({"metrics": [point]})


def test_only_mlflow_logs_steps_below_0_and_no_leg_begins_again_there() -> None:
    report = ("training", -1, {"loss": 2.3}, None, None)
    found = ReportBatch(1, 2)
    with pytest.raises(BadRequest, match="from 0 on, not -1"):
        found.add(*report)
    found.add(*report, least=-(2**63) + 1)
    assert found.first_steps == {}
    assert found.summaries.groups["training"]["loss"].steps == -1
    found.add("training", 3, {"loss": 1.0}, None, None)
    assert found.first_steps == {"training": 3}


def test_generous_reports_pass() -> None:
    matrix = [[0.5] * 50 for _ in range(50)]
    values = {"é" * 500: 1, "matrix": matrix, "text": "x" * 60_000, "nan": "NaN", "none": None}
    assert len(read_batch(1, batch(metrics=values)).lines) == 1


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": "x" * 2000}, "name"),
        ({"description": "x" * 70_000}, "description"),
        ({"labels": ["x"] * 201}, "labels"),
        ({"labels": ["x" * 2000]}, r"labels\[0\]"),
        ({"log_policies": [{"pattern": "x" * 1001}]}, r"log_policies\[0\].pattern"),
        ({"log_policies": [{"pattern": "x"}] * 65}, "log_policies"),
        (
            {"searcher": {"name": "random", "max_trials": 10**6, "max_concurrent_trials": 0}},
            "searcher.max_concurrent_trials",
        ),
        (
            {"hyperparameters": {"a": {"b": {"type": "int", "count": 10**9}}}},
            "hyperparameters.a.b.count",
        ),
    ],
)
def test_configurations_beyond_the_limits_are_refused(change: dict[str, Any], path: str) -> None:
    config = {"name": "x", "searcher": {"name": "single", "metric": "loss"}, **change}
    with pytest.raises(BadRequest, match=f"^{path}: "):
        check_size(config)


def test_a_million_trials_in_turn_pass() -> None:
    check_size({"searcher": {"name": "random", "max_trials": 10**6, "max_concurrent_trials": 16}})


class _Error(psycopg.OperationalError):
    def __init__(self, state: str | None, text: str = "bad\nLINE 1: SELECT") -> None:
        super().__init__(text)
        self.sqlstate = state


@pytest.mark.parametrize(("state", "kind"), [("54000", BadRequest), ("22003", BadRequest)])
def test_errors_about_a_value_are_the_senders(state: str, kind: type) -> None:
    wrapped = sa.exc.OperationalError("INSERT INTO users", {"a": 1}, _Error(state))
    for error in (_Error(state), wrapped):
        found = of_database(error)
        assert isinstance(found, kind)
        assert found.message == "a value cannot be stored: bad"


def test_other_errors_of_the_database() -> None:
    assert isinstance(of_database(_Error("57P01")), Unavailable)
    assert isinstance(of_database(_Error(None)), Unavailable)
    assert isinstance(of_database(psycopg.DataError("NUL")), BadRequest)
    assert of_database(psycopg.ProgrammingError("x")) is None
    assert of_database(ValueError("x")) is None


def test_lines_of_a_log_cannot_be_forged() -> None:
    assert _log_line("a\n2026 ERROR \x1b[31mé") == r"a\n2026 ERROR \x1b[31mé"
