"""When a retraining is due."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from determined_service.base.errors import BadRequest
from determined_service.retraining.schedules import next_after

BEGUN = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
NOW = datetime.datetime(2026, 3, 28, 12, 0, 30, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (None, None),
        ({"cron": "0 3 * * *"}, "2026-03-29T03:00:00+00:00"),
        # The clocks go forward on the 29th.
        ({"cron": "0 3 * * *", "timezone": "Europe/Berlin"}, "2026-03-29T01:00:00+00:00"),
        ({"interval_s": 60}, "2026-03-28T12:01:00+00:00"),
        ({"interval_s": 86_400 * 30}, "2026-03-31T12:00:00+00:00"),
        ({"rrule": "FREQ=WEEKLY;BYDAY=MO;BYHOUR=6;BYMINUTE=0"}, "2026-03-30T06:00:00+00:00"),
        ({"rrule": "FREQ=HOURLY;BYMINUTE=15"}, "2026-03-28T12:15:00+00:00"),
        ({"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, None),
    ],
)
def test_the_next_time(schedule: dict[str, Any] | None, expected: str | None) -> None:
    found = next_after(schedule, NOW, BEGUN)
    assert (found and found.isoformat()) == expected


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({}, "give one of cron"),
        ({"cron": "0 3 * * *", "interval_s": 60}, "give one of cron"),
        ({"cron": "every night"}, "schedule.cron"),
        ({"cron": "0 0 30 2 *"}, "schedule.cron"),
        ({"cron": "0 3 * * *", "timezone": "../etc/passwd"}, "there is no time zone"),
        ({"interval_s": 1}, "schedule.interval_s"),
        ({"interval_s": float("nan")}, "schedule.interval_s"),
        ({"rrule": "FREQ=SECONDLY"}, "schedule.rrule"),
        ({"rrule": "FREQ=DAILY;COUNT=3"}, "there is no DTSTART"),
        ({"rrule": "FREQ=DAILY;BYDAY=XX"}, "cannot be read"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused(schedule: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        next_after(schedule, NOW, BEGUN)
