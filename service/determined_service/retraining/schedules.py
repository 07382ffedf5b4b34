"""When a schedule wants the next run: cron, an interval, or RRULE. Times are UTC unless a zone is given."""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Mapping
from typing import Any

from determined_service.base.errors import BadRequest

LEAST_INTERVAL_S = 10
MOST_INTERVAL_S = 366 * 86_400
CHARS = 500
# How far ahead a rule is looked through: one that never comes true would be looked through for ever.
_HORIZON_DAYS = {"YEARLY": 3_660, "MONTHLY": 3_660, "WEEKLY": 1_100, "DAILY": 1_100, "HOURLY": 100}
FORMS = ("cron", "interval_s", "rrule")


def next_after(
    schedule: Mapping[str, Any] | None, moment: datetime.datetime, begun: datetime.datetime
) -> datetime.datetime | None:
    """The first time after ``moment``; None: never. ``begun``: from when intervals and rules count.

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
    local = moment.astimezone(zone)
    found = _cron(text, local) if given == ["cron"] else _rule(text, local, begun.astimezone(zone))
    return None if found is None else found.astimezone(datetime.UTC)


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


def _cron(text: str, moment: datetime.datetime) -> datetime.datetime | None:
    from cronsim import CronSim, CronSimError

    try:
        return next(CronSim(text, moment), None)
    except CronSimError as error:
        raise BadRequest(
            f"schedule.cron: {text!r} cannot be read: {error}; '0 3 * * *' is three in the morning"
        ) from None


def _rule(
    text: str, moment: datetime.datetime, begun: datetime.datetime
) -> datetime.datetime | None:
    from dateutil.rrule import rrulestr

    parts = dict(part.partition("=")[::2] for part in text.upper().split(";"))
    days = _HORIZON_DAYS.get(parts.get("FREQ", ""))
    if days is None or parts.keys() & {"DTSTART", "COUNT", "UNTIL", "EXRULE", "RDATE", "EXDATE"}:
        raise BadRequest(
            f"schedule.rrule: {text!r}: expected FREQ={', '.join(_HORIZON_DAYS)} and parts such as INTERVAL, "
            "BYDAY and BYHOUR; it counts from when it was set, so there is no DTSTART, COUNT or UNTIL"
        )
    if len(text) > 200 or "\n" in text:
        raise BadRequest("schedule.rrule: expected one line of at most 200 characters")
    # From shortly before, or every time since the beginning would be gone through.
    start = begun if days > 1_000 else max(begun, moment.replace(minute=0, second=0, microsecond=0))
    end = moment + datetime.timedelta(days=days)
    until = end.astimezone(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    try:
        rule = rrulestr(f"{text.upper()};UNTIL={until}", dtstart=start.replace(microsecond=0))
        found: datetime.datetime | None = rule.after(moment)
    except (ValueError, TypeError, KeyError) as error:
        raise BadRequest(f"schedule.rrule: {text!r} cannot be read: {error}") from None
    return found
