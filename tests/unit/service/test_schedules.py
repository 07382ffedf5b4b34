"""When a retraining is due."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from determined_service.base.errors import BadRequest
from determined_service.recurring.schedules import next_after

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
        ({"cron": "@daily", "timezone": "Europe/Berlin"}, "2026-03-28T23:00:00+00:00"),
        ({"cron": " @Hourly "}, "2026-03-28T13:00:00+00:00"),
        ({"cron": "@weekly"}, "2026-03-29T00:00:00+00:00"),
        ({"cron": "@monthly"}, "2026-04-01T00:00:00+00:00"),
        ({"cron": "@yearly"}, "2027-01-01T00:00:00+00:00"),
    ],
)
def test_the_next_time(schedule: dict[str, Any] | None, expected: str | None) -> None:
    found = next_after(schedule, NOW, BEGUN)
    assert (found and found.isoformat()) == expected


def times(schedule: dict[str, Any], begun: str, number: int) -> list[str]:
    """The first times of a schedule that was set at ``begun``, each asked for at the one before."""
    first = moment = datetime.datetime.fromisoformat(begun)
    found = []
    for _ in range(number):
        following = next_after(schedule, moment, first)
        assert following is not None and following > moment
        moment = following
        found.append(f"{moment:%H:%M:%S}")
    return found


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
@pytest.mark.parametrize("minutes", [0, 59, 60, 120, 300, 359])
def test_an_hourly_rule_keeps_its_phase_whenever_it_is_asked(minutes: int, zone: str) -> None:
    begun = datetime.datetime(2027, 3, 1, 1, 7, 20, tzinfo=datetime.UTC)
    schedule = {"rrule": "FREQ=HOURLY;INTERVAL=6", "timezone": zone}

    found = next_after(schedule, begun + datetime.timedelta(minutes=minutes), begun)

    assert found == begun + datetime.timedelta(hours=6)
    assert times(schedule, begun.isoformat(), 3) == ["07:07:20", "13:07:20", "19:07:20"]


@pytest.mark.parametrize(
    ("rule", "zone", "begun", "expected"),
    [
        # Back at 01:00 UTC, where the clock shows two to three twice.
        ("FREQ=HOURLY", "Europe/Berlin", "2026-10-24T23:20+00:00", "00:20 01:20 02:20 03:20"),
        ("FREQ=HOURLY;INTERVAL=6", "Europe/Berlin", "2026-10-24T23:20+00:00", "05:20 11:20"),
        (
            "FREQ=HOURLY;BYHOUR=2;BYMINUTE=0,30",
            "Europe/Berlin",
            "2026-10-24T23:20+00:00",
            "00:00 00:30 01:00 01:30 01:00",
        ),
        # Forward at 01:00 UTC, from two to three.
        ("FREQ=HOURLY", "Europe/Berlin", "2026-03-28T23:20+00:00", "00:20 01:20 02:20 03:20"),
        ("FREQ=HOURLY;INTERVAL=6", "Europe/Berlin", "2026-03-28T23:20+00:00", "05:20 11:20"),
        ("FREQ=HOURLY;BYHOUR=2", "Europe/Berlin", "2026-03-28T23:20+00:00", "00:20 00:20"),
        # Half an hour, at 15:00 UTC.
        ("FREQ=HOURLY", "Australia/Lord_Howe", "2026-10-03T13:20+00:00", "14:20 15:20 16:20"),
    ],
)
def test_an_hourly_rule_counts_the_hours_that_pass_when_clocks_change(
    rule: str, zone: str, begun: str, expected: str
) -> None:
    wanted = expected.split()
    found = times({"rrule": rule, "timezone": zone}, begun, len(wanted))
    assert found == [f"{one}:00" for one in wanted]


@pytest.mark.parametrize(
    "schedule", [{"cron": "30 2 * * *"}, {"rrule": "FREQ=DAILY;BYHOUR=2;BYMINUTE=30;BYSECOND=0"}]
)
def test_no_next_time_is_in_the_past_when_clocks_go_back(schedule: dict[str, Any]) -> None:
    # Half past two has been; ten past two comes again.
    moment = datetime.datetime(2026, 10, 25, 1, 10, tzinfo=datetime.UTC)

    found = next_after({**schedule, "timezone": "Europe/Berlin"}, moment, BEGUN)

    assert found and found.isoformat() == "2026-10-26T01:30:00+00:00"


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({}, "give one of cron"),
        ({"cron": "0 3 * * *", "interval_s": 60}, "give one of cron"),
        ({"cron": "every night"}, "schedule.cron"),
        ({"cron": "0 0 30 2 *"}, "schedule.cron"),
        ({"cron": "0 0 3 * * *"}, "expected minute, hour, day, month and weekday"),
        ({"cron": "@reboot"}, "or one of @hourly, @daily"),
        ({"cron": "0 3 * * *", "timezone": "../etc/passwd"}, "there is no time zone"),
        ({"interval_s": 1}, "schedule.interval_s"),
        ({"interval_s": float("nan")}, "schedule.interval_s"),
        ({"rrule": "FREQ=SECONDLY"}, "schedule.rrule"),
        ({"rrule": "FREQ=DAILY;COUNT=3"}, "there is no DTSTART"),
        ({"rrule": "FREQ=DAILY;BYDAY=XX"}, "cannot be read"),
        ({"rrule": "FREQ=DAILY;INTERVAL=0"}, "INTERVAL from 1 to 9999"),
        ({"rrule": "FREQ=HOURLY;INTERVAL=-1"}, "INTERVAL from 1 to 9999"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused(schedule: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        next_after(schedule, NOW, BEGUN)


def test_six_fields_that_an_earlier_release_has_stored_are_still_read() -> None:
    moment = datetime.datetime(2026, 1, 1, 4, tzinfo=datetime.UTC)
    found = next_after({"cron": "30 0 3 * * *"}, moment, BEGUN, stored=True)
    assert found is not None and found.isoformat() == "2026-01-02T03:00:30+00:00"
    with pytest.raises(BadRequest, match="expected minute, hour"):
        next_after({"cron": "0 0 0 3 * * *"}, moment, BEGUN, stored=True)
