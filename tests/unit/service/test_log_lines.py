"""Log lines as NDJSON: each line is complete, with its own origin, independent of its neighbours."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from determined_service.views.logs import STEP_BYTES, lines_json

TIME = "2026-11-23T05:00:00.123456Z"
FIRST = ("1.x", "ERROR", "1.x.1", "agent", "0123456789", 3, "stderr", "task")
BARE = ("1.x", None, None, None, None, None, None, None)


def row(id_: int, line: bytes, origin: tuple[Any, ...]) -> Any:
    return (id_, TIME, line, None, *origin)


def results(rows: list[Any], trial_id: int | None = None) -> list[dict[str, Any]]:
    lines = b"".join(lines_json(rows, trial_id)).decode().splitlines()
    return [json.loads(line)["result"] for line in lines]


def test_all_fields() -> None:
    (found,) = results([row(7, b"hello\n", FIRST)])
    assert found == {
        "id": "7",
        "taskId": "1.x",
        "timestamp": TIME,
        "level": "LOG_LEVEL_ERROR",
        "message": "[2026-11-23T05:00:00.123Z] 01234567 [rank=3] || hello\n",
        "log": "hello\n",
        "allocationId": "1.x.1",
        "agentId": "agent",
        "containerId": "0123456789",
        "rankId": 3,
        "stdtype": "stderr",
        "source": "task",
    }


def test_each_line_has_its_own_origin() -> None:
    rows = [row(1, b"a", FIRST), row(2, b"b", BARE), row(3, b"c", BARE), row(4, b"d", FIRST)]
    found = results(rows, trial_id=5)
    assert [one["level"] for one in found] == [
        "LOG_LEVEL_ERROR",
        "LOG_LEVEL_INFO",
        "LOG_LEVEL_INFO",
        "LOG_LEVEL_ERROR",
    ]
    assert [one["rankId"] for one in found] == [3, None, None, 3]
    assert {one["trialId"] for one in found} == {5}
    assert found[1]["message"] == "[2026-11-23T05:00:00.123Z] || b\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'100 %s %d "quoted" \\ back',
        b"nul \0 and tab \t",
        "two\u2028in \x85 one\u2029".encode(),
        b"not \xff utf-8",
    ],
)
def test_any_bytes_are_one_line(line: bytes) -> None:
    (found,) = results([row(1, line, BARE)])
    assert found["log"] == line.decode("utf-8", "backslashreplace")


LONG = 3 * STEP_BYTES


@pytest.mark.parametrize(
    "line",
    [
        b"x" * LONG,
        b"x" * LONG + b"\n",
        b"\xff" * LONG,
        b"\x80" * LONG,
        b'"\0\\' * (LONG // 3),
        # A character on the border between two steps, and one that is cut off at the end.
        *(b"x" * shift + "\U0001f600\u2028".encode() * (LONG // 7) for shift in range(4)),
        "\U0001f600".encode() * (LONG // 4) + b"\xf0\x9f\x98",
        random.Random(0).randbytes(LONG),
    ],
)
def test_a_long_line_is_made_in_steps(line: bytes) -> None:
    """Gains of one that is not: a megabyte that is not UTF-8 held the service up for 0.4 s."""
    rows = [row(1, b"before", FIRST), row(2, line, BARE), row(3, b"after\n", BARE)]
    text = line.decode("utf-8", "backslashreplace")
    before, found, after = results(rows)
    assert (before["log"], found["log"], after["log"]) == ("before", text, "after\n")
    shown = text if text.endswith("\n") else f"{text}\n"
    assert found["message"] == f"[2026-11-23T05:00:00.123Z] || {shown}"
    assert len(list(lines_json(rows))) >= len(line) // STEP_BYTES


def test_many_lines_are_made_in_steps() -> None:
    rows = [row(id_, b"\xff" * 1000, FIRST) for id_ in range(100)]
    assert [one["id"] for one in results(rows)] == [str(id_) for id_ in range(100)]
    assert len(list(lines_json(rows))) >= 100_000 // STEP_BYTES
