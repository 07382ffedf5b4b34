"""The helpers that wait for a condition (tests/waiting.py)."""

from __future__ import annotations

import subprocess

import pytest

from tests.processes import is_alive
from tests.waiting import until, until_async


def test_the_first_true_answer_is_given() -> None:
    answers = iter([None, [], [3], [4]])
    assert until("an answer", lambda: next(answers)) == [3]
    assert next(answers) == [4]


def test_a_value_can_be_waited_for() -> None:
    answers = iter([2, 1, 0])
    assert until("no more", lambda: next(answers), equals=0) == 0


def test_a_timeout_names_the_event_the_last_answer_and_more() -> None:
    with pytest.raises(AssertionError) as caught:
        until("three trials", lambda: 2, 0, equals=3, show=lambda: "the log")
    said = "three trials: not within 0 s; the last answer was 2, not 3\nthe log"
    assert str(caught.value) == said


def test_an_error_of_the_check_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        until("a key", lambda: {}["absent"])


async def test_without_blocking_the_loop() -> None:
    answers = iter([0, 0, 5])

    async def check() -> int:
        return next(answers)

    assert await until_async("an answer of a coroutine", check) == 5
    assert await until_async("a plain answer", lambda: "yes") == "yes"
    with pytest.raises(AssertionError, match="nothing: not within 0 s; the last answer was None"):
        await until_async("nothing", lambda: None, 0)


def test_a_zombie_is_not_alive() -> None:
    with subprocess.Popen(["true"]) as process:
        until("the end of the process", lambda: not is_alive(process.pid))
    assert not is_alive(process.pid)
