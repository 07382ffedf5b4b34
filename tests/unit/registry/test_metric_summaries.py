"""Summaries of metrics do not depend on the reports' batches."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determined_service.base.errors import BadRequest
from determined_service.ingest.copy_text import bytea_field, json_field, text_field
from determined_service.ingest.reports import read_batch
from determined_service.ingest.summaries import Summaries
from determined_service.web.request import INLINE_BYTES, SLOW_INLINE_BYTES, parsed

values = st.one_of(
    st.integers(-(2**53), 2**53),
    st.floats(-1e6, 1e6, allow_nan=False),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "text", True, None]),
)
reports = st.lists(st.dictionaries(st.sampled_from("abc"), values, max_size=3), max_size=20)


def summarise(given: list[dict[str, Any]], first_step: int = 0) -> Summaries:
    found = Summaries()
    for index, metrics in enumerate(given):
        found.add("training", first_step + index, metrics)
    return found


@given(reports, st.integers(0, 20))
def test_merging_two_parts_gives_the_whole(all_reports: list[dict[str, Any]], cut: int) -> None:
    whole = summarise(all_reports)
    merged = summarise(all_reports[:cut])
    merged.merge(summarise(all_reports[cut:], min(cut, len(all_reports))))
    for name, expected in whole.groups.get("training", {}).items():
        found = merged.groups["training"][name]
        for attribute in ("type", "count", "finite", "low", "high", "last", "steps"):
            assert getattr(found, attribute) == getattr(expected, attribute), attribute
        assert math.isclose(found.sum, expected.sum, rel_tol=1e-9, abs_tol=1e-3)


def test_the_last_value_is_that_of_the_highest_step() -> None:
    whole, later = Summaries(), Summaries()
    for group in ("training", "cpu"):
        for step, value in ((0, 1.0), (9, 2.0), (9, 3.0), (4, 4.0)):
            whole.add(group, step, {"a": value})
        later.add(group, 8, {"a": 5.0})
    # The profiler's groups count time: the later report is the last.
    assert [whole.groups[group]["a"].last for group in ("training", "cpu")] == [3.0, 4.0]
    whole.merge(later)
    assert [whole.groups[group]["a"].last for group in ("training", "cpu")] == [3.0, 5.0]
    assert whole.groups["training"]["a"].steps == 9


@given(reports)
def test_merging_does_not_change_its_inputs(all_reports: list[dict[str, Any]]) -> None:
    """A group that fails to commit is written again from the same batches."""
    batch = summarise(all_reports)
    before = {name: repr(one) for name, one in batch.groups.get("training", {}).items()}
    total = Summaries()
    total.merge(batch)
    total.merge(batch)
    after = {name: repr(one) for name, one in batch.groups.get("training", {}).items()}
    assert before == after


def test_a_batch_knows_where_each_group_begins() -> None:
    batch = read_batch(
        1,
        {
            "run_id": 1,
            "reports": [
                {"group": group, "steps_completed": steps, "metrics": {"x": 1}}
                for group, steps in (("training", 5), ("validation", 9), ("training", 3))
            ],
        },
    )
    assert batch.first_steps == {"training": 3, "validation": 9}
    assert [(one.line, one.steps) for one in batch.validations] == [(1, 9)]


def test_fields_of_the_copy_format() -> None:
    assert text_field(None) == b"\\N"
    assert text_field("\\N") == b"\\\\N"
    assert text_field("a\tb\nc\rd\0") == b"a\\tb\\nc\\rd\xef\xbf\xbd"
    assert json_field(b'{"a":"\\n"}') == b'{"a":"\\\\n"}'
    assert bytea_field(b"\x00\xff") == b"\\\\x00ff"


@pytest.mark.parametrize("spaces", [0, SLOW_INLINE_BYTES, INLINE_BYTES])
async def test_numbers_that_json_cannot_hold(spaces: int) -> None:
    """Read at once, in a thread, and in a thread although it might be strict JSON."""
    raw = b"[NaN, Infinity, -Infinity, 1e999, -1e999]" + b" " * spaces
    assert await parsed(raw) == ["NaN", "Infinity", "-Infinity", "Infinity", "-Infinity"]
    raw = b"[NaN, 123456789012345678901234567890]" + b" " * spaces
    assert await parsed(raw) == ["NaN", 1.2345678901234568e29]
    with pytest.raises(BadRequest, match="not JSON"):
        await parsed(b"[" + b" " * spaces)


@pytest.mark.parametrize("cut", range(6))
def test_of_one_step_the_latest_and_then_the_largest_is_the_last_where_times_count(
    cut: int,
) -> None:
    """As in MLflow's store, for any order and batches."""
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    points = [
        (3, 50, 20.0),
        (0, 900, 7.0),
        (3, 50, "NaN"),
        (3, 50, 10.0),
        (3, 40, 100.0),
        (-3, 950, 9.0),
    ]
    for turned in (points, points[::-1]):
        whole, later = Summaries(), Summaries()
        for index, (step, seconds, value) in enumerate(turned):
            into = whole if index < cut else later
            into.add("g", step, {"m": value}, start + datetime.timedelta(seconds=seconds))
        whole.merge(later)
        found = whole.groups["g"]["m"]
        assert (found.last, found.steps, found.count) == (20.0, 3, 6)
