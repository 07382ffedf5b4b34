"""Small pieces that several views share."""

from __future__ import annotations

import datetime
import math
from typing import Any

import sqlalchemy as sa

from determined.common.wire.checks import show
from determined_registry.database.tables import allocations
from determined_service.base.checks import check_time
from determined_service.base.errors import BadRequest

SCHEDULER_TYPES = {
    "priority": "SCHEDULER_TYPE_PRIORITY",
    "fair_share": "SCHEDULER_TYPE_FAIR_SHARE",
    "round_robin": "SCHEDULER_TYPE_ROUND_ROBIN",
    # Determined's enumeration has no name for it; each of its names promises another order.
    "first_in_first_out": "SCHEDULER_TYPE_UNSPECIFIED",
}
"""The types of schedulers in the REST API."""


def number(value: float | None) -> float | str | None:
    """A float as JSON can hold it: NaN and infinities as strings."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def moment(value: datetime.datetime | None) -> str | None:
    """RFC 3339 in UTC with microseconds and ``Z``."""
    if value is None:
        return None
    # A sixth of strftime's time: an answer may hold a hundred thousand.
    return f"{value.astimezone(datetime.UTC).isoformat(timespec='microseconds')[:-6]}Z"


def state(value: str) -> str:
    """A state's name in the REST API."""
    return f"STATE_{value}"


def state_names(given: list[str]) -> list[str]:
    """The states meant by a filter (``STATE_ACTIVE`` or ``ACTIVE``)."""
    return [one.removeprefix("STATE_") for one in given]


def display_state(
    column: Any, of: sa.ColumnElement[bool], unmanaged: sa.ColumnElement[bool], *, without: str
) -> sa.ColumnElement[str]:
    """The state in ``column``; for ACTIVE, the progress of the live allocations (those that match ``of``),
    and ``without`` one.

    An unmanaged trial or experiment has no allocations: it is RUNNING as long as its process runs.
    """
    progress = (
        sa.select(
            sa.func.max(
                sa.case(
                    (allocations.c.state == "RUNNING", 3),
                    (allocations.c.state == "ASSIGNED", 2),
                    else_=1,
                )
            )
        )
        .where(of, allocations.c.state != "TERMINATED")
        .scalar_subquery()
    )
    return sa.case(
        (sa.and_(column == "ACTIVE", unmanaged), "RUNNING"),
        (
            column == "ACTIVE",
            sa.case({1: "QUEUED", 2: "STARTING", 3: "RUNNING"}, value=progress, else_=without),
        ),
        else_=column,
    )


def state_filter(
    stored: sa.ColumnElement[str], shown: sa.ColumnElement[str], given: list[str]
) -> sa.ColumnElement[bool]:
    """Rows in one of the states ``given``. ACTIVE means all active rows, in every displayed state."""
    names = state_names(given)
    if not {"QUEUED", "STARTING", "RUNNING"}.intersection(names):
        return stored.in_(names)  # only ACTIVE is shown as other states
    return sa.or_(stored.in_(names), shown.in_(names))


def parse_time(text: str, what: str) -> datetime.datetime:
    """Parse an ISO 8601 time, in UTC unless it has another zone; raises BadRequest."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{what} must be an ISO 8601 time, not {show(text)}") from error
    return check_time(found if found.tzinfo else found.replace(tzinfo=datetime.UTC), what)
