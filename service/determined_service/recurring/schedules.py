"""When a schedule wants the next run: cron, an interval, or RRULE. Times are UTC unless a zone is given."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from determined_service.base.bounds import Text
from determined_service.base.errors import BadRequest

LEAST_INTERVAL_S = 10
MOST_INTERVAL_S = 366 * 86_400
CHARS = 500
# How far ahead a rule is looked through: one that never comes true would be looked through for ever.
_HORIZON_DAYS = {"YEARLY": 3_660, "MONTHLY": 3_660, "WEEKLY": 1_100, "DAILY": 1_100, "HOURLY": 100}
FORMS = ("cron", "interval_s", "rrule")
_CRON_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Clocks change at a whole one of these, in every zone.
_QUARTER = datetime.timedelta(minutes=15)
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_SECOND = datetime.timedelta(seconds=1)

Line = Annotated[Text, Field(max_length=CHARS)]


class Schedule(BaseModel):
    """One of ``cron``, ``interval_s`` (seconds) and ``rrule``."""

    model_config = ConfigDict(extra="forbid")

    cron: Line | None = None
    interval_s: float | None = None
    rrule: Line | None = None
    timezone: Line | None = None


def next_after(
    schedule: Mapping[str, Any] | None,
    moment: datetime.datetime,
    begun: datetime.datetime,
    *,
    stored: bool = False,
) -> datetime.datetime | None:
    """The first time after ``moment``; None: never. ``begun``: from when intervals and rules count.

    ``stored``: an earlier release may have taken it, which read six fields of cron, the first as seconds.
    However many times were missed before ``moment``, this is one. Raises BadRequest for a schedule that
    cannot be read.
    """
    if schedule is None:
        return None
    given = [form for form in FORMS if schedule.get(form) is not None]
    if len(given) != 1:
        raise BadRequest("schedule: give one of cron, interval_s (seconds) and rrule")
    if given == ["interval_s"]:
        return _interval(schedule["interval_s"], moment, begun)
    zone = _zone(schedule.get("timezone"))
    text = schedule[given[0]]
    if not isinstance(text, str) or len(text) > CHARS:
        raise BadRequest(f"schedule.{given[0]}: expected a text of at most {CHARS} characters")
    # The first second that comes into question, in UTC: Python compares times of one zone by their clock,
    # which shows an hour twice when it goes back.
    moment = moment.astimezone(datetime.UTC).replace(microsecond=0) + _SECOND
    begun = begun.astimezone(datetime.UTC).replace(microsecond=0)
    if given == ["cron"]:
        return _cron(text, moment, zone, (5, 6) if stored else (5,))
    return _rule(text, moment, begun, zone)


def _interval(
    seconds: Any, moment: datetime.datetime, begun: datetime.datetime
) -> datetime.datetime:
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not LEAST_INTERVAL_S <= seconds <= MOST_INTERVAL_S:
        raise BadRequest(
            f"schedule.interval_s: expected {LEAST_INTERVAL_S} to {MOST_INTERVAL_S} seconds"
        )
    step = datetime.timedelta(seconds=seconds)
    return begun + (max(0, (moment - begun) // step) + 1) * step


def _zone(name: Any) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name or "UTC")
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise BadRequest(
            f"schedule.timezone: there is no time zone {str(name)[:80]!r}; an example is Europe/Berlin"
        ) from None


def _cron(
    text: str, moment: datetime.datetime, zone: datetime.tzinfo, lengths: Collection[int]
) -> datetime.datetime | None:
    from cronsim import CronSim, CronSimError

    fields = _CRON_NAMES.get(text.strip().lower(), text)
    example = "'0 3 * * *' is three in the morning"
    if len(fields.split()) not in lengths:
        raise BadRequest(
            f"schedule.cron: {text!r} cannot be read: expected minute, hour, day, month and weekday, or "
            f"one of {', '.join(_CRON_NAMES)}; {example}, and interval_s counts seconds"
        )
    try:
        times = CronSim(fields, (moment - _SECOND).astimezone(zone))
        in_utc = (found.astimezone(datetime.UTC) for found in times)
        return next((found for found in in_utc if found >= moment), None)
    except CronSimError as error:
        raise BadRequest(f"schedule.cron: {text!r} cannot be read: {error}; {example}") from None


def _rule(
    text: str, moment: datetime.datetime, begun: datetime.datetime, zone: datetime.tzinfo
) -> datetime.datetime | None:
    parts = dict(part.partition("=")[::2] for part in text.upper().split(";"))
    days = _HORIZON_DAYS.get(parts.get("FREQ", ""))
    if days is None or parts.keys() & {"DTSTART", "COUNT", "UNTIL", "EXRULE", "RDATE", "EXDATE"}:
        raise BadRequest(
            f"schedule.rrule: {text!r}: expected FREQ={', '.join(_HORIZON_DAYS)} and parts such as INTERVAL, "
            "BYDAY and BYHOUR; it counts from when it was set, so there is no DTSTART, COUNT or UNTIL"
        )
    if len(text) > 200 or "\n" in text:
        raise BadRequest("schedule.rrule: expected one line of at most 200 characters")
    # With 0, it would be looked through for ever.
    if not re.fullmatch(r"[1-9][0-9]{0,3}", parts.get("INTERVAL", "1"), re.ASCII):
        raise BadRequest(f"schedule.rrule: {text!r}: expected INTERVAL from 1 to 9999")
    if parts["FREQ"] == "HOURLY":
        return _hourly(text, int(parts.get("INTERVAL", "1")), moment, begun, zone)
    return _first(text, begun.astimezone(zone), moment, moment + datetime.timedelta(days=days))


def _hourly(
    text: str,
    interval: int,
    moment: datetime.datetime,
    begun: datetime.datetime,
    zone: datetime.tzinfo,
) -> datetime.datetime | None:
    """Counts the hours that pass: by those of the clock, there would be two between runs when it goes back.

    So the rule is asked for a clock that is never changed, again from each change of the zone's own.
    """
    step = datetime.timedelta(hours=interval)
    end = moment + max(2 * step, datetime.timedelta(days=_HORIZON_DAYS["HOURLY"]))
    while moment < end:
        offset = _offset(moment, zone)
        # From shortly before, or every hour since the beginning would be gone through.
        start = begun + max(0, (moment - begun) // step) * step
        found = _first(text, start.astimezone(datetime.timezone(offset)), moment, end)
        if found is None:
            return None
        if _offset(found, zone) == offset:
            return found
        while _offset(moment, zone) == offset:
            moment += _QUARTER - (moment - _EPOCH) % _QUARTER
    return None


def _offset(moment: datetime.datetime, zone: datetime.tzinfo) -> datetime.timedelta:
    return moment.astimezone(zone).utcoffset() or datetime.timedelta()


def _first(
    text: str, start: datetime.datetime, moment: datetime.datetime, end: datetime.datetime
) -> datetime.datetime | None:
    """The rule's first time at or after ``moment``, by the clock of ``start``; in UTC."""
    from dateutil.rrule import rrulestr

    try:
        rule = rrulestr(f"{text.upper()};UNTIL={end:%Y%m%dT%H%M%SZ}", dtstart=start)
        times = rule.xafter(moment.astimezone(start.tzinfo), inc=True)
        in_utc = (found.astimezone(datetime.UTC) for found in times)
        return next((found for found in in_utc if found >= moment), None)
    except (ValueError, TypeError, KeyError) as error:
        raise BadRequest(f"schedule.rrule: {text!r} cannot be read: {error}") from None
