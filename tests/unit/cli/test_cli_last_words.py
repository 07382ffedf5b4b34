"""The part of a failed trial's logs that the terminal shows."""

from __future__ import annotations

from typing import Any

import pytest

from determined.cli.following.last_words import last_words

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    f()",
    "ValueError: no luck",
]


def entries(lines: list[str]) -> list[dict[str, Any]]:
    return [{"log": f"{line}\n", "message": f"[t] || {line}\n"} for line in lines]


def shown(lines: list[str]) -> list[str]:
    return [line.removeprefix("[t] ||").removeprefix(" ") for line in last_words(entries(lines))]


def test_the_last_twenty_lines() -> None:
    assert shown([]) == []
    assert shown(["a", "b"]) == ["a", "b"]
    assert shown([str(n) for n in range(50)]) == [str(n) for n in range(30, 50)]


def test_a_traceback_is_shown_from_its_beginning() -> None:
    frames = [f"  frame {n}" for n in range(20)]
    lines = ["epoch 1", TRACEBACK[0], *frames, TRACEBACK[-1], "process exited with code 1"]
    assert shown(lines) == lines[1:]


def test_a_long_traceback_keeps_both_ends() -> None:
    frames = [f"  frame {n}" for n in range(100)]
    found = shown(["epoch 1", "Fatal Python error: Segmentation fault", *frames, "killed"])
    assert found[0] == "Fatal Python error: Segmentation fault"
    assert found[1] == "  frame 0"
    assert found[12] == "(72 lines left out)"
    assert found[-1] == "killed"


def test_a_traceback_is_shown_with_its_cause_but_not_with_an_older_one() -> None:
    cause = ["", "The above exception was the direct cause of the following exception:", ""]
    padding = [f"  frame {n}" for n in range(20)]
    last = [*TRACEBACK, *cause, TRACEBACK[0], *padding, "StorageError: disk is full"]
    lines = [*TRACEBACK, *padding, "tried again", *last]
    assert shown(lines) == last


GROUP = [
    "  + Exception Group Traceback (most recent call last):",
    *(f"  |   frame {n}" for n in range(20)),
    "  | ExceptionGroup: a few (2 sub-exceptions)",
    "  +-+---------------- 1 ----------------",
    *(f"    | {line}" for line in TRACEBACK),
    "    +---------------- 2 ----------------",
    *(f"    | {line}" for line in TRACEBACK),
    "    +------------------------------------",
]
FRAMED = ["╭──── Traceback (most recent call last) ────╮", *(["│ x │"] * 24), TRACEBACK[-1]]


@pytest.mark.parametrize(
    "lines",
    [
        [f"[rank1]: {line}" for line in (TRACEBACK[0], *(["  frame"] * 24), TRACEBACK[-1])],
        GROUP,
        [f"[rank1]: {line}" for line in GROUP],
        FRAMED,
        ["\x1b[31m" + FRAMED[0] + "\x1b[0m", *FRAMED[1:]],
    ],
    ids=["torch", "group", "group of torch", "rich", "coloured"],
)
def test_other_tracebacks_than_pythons_plain_one(lines: list[str]) -> None:
    found = shown([*TRACEBACK, "epoch 1", *lines, "process exited with code 1"])
    # The older traceback and the epoch are not shown.
    assert found[0] == lines[0].replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert found[-1] == "process exited with code 1"


def test_a_long_line_is_cut() -> None:
    (found,) = last_words(entries(["x" * 1_048_576]))
    assert len(found) < 400
    assert found.endswith("(1048583 characters)")
