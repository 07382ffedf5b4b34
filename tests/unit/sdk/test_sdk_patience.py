"""Waiting for a service that is away."""

from __future__ import annotations

import pytest

from determined.common.api import patience
from determined.common.api.errors import ForbiddenException, MasterNotFoundException
from determined.common.api.patience import patiently


class Away:
    """Answers after this number of failures; the clock moves when the client sleeps."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.now = 0.0
        self.said: list[str] = []

    def ask(self) -> str:
        if self.failures > 0:
            self.failures -= 1
            raise MasterNotFoundException("away")
        return "here"

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self) -> str:
        return patiently(
            self.ask,
            limit_s=10.0,
            on_wait=lambda error: self.said.append(error.message),
            sleep=self.sleep,
            clock=lambda: self.now,
        )


def test_no_remark_about_a_running_service() -> None:
    away = Away(0)
    assert (away.run(), away.said) == ("here", [])


def test_a_service_that_comes_back() -> None:
    away = Away(5)
    assert (away.run(), away.said) == ("here", ["away"])
    assert away.now == 5 * patience.PAUSE_S


def test_a_service_that_stays_away() -> None:
    away = Away(1000)
    with pytest.raises(MasterNotFoundException):
        away.run()
    assert away.now == 10.0


def test_other_failures_are_not_waited_for() -> None:
    def refused() -> str:
        raise ForbiddenException("no")

    with pytest.raises(ForbiddenException):
        patiently(refused, sleep=lambda _: pytest.fail("slept"))
