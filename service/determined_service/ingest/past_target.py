"""Trials that train past the length that their searcher gave them, because their script never asks for it.

With ``searcher.max_length`` a search stops a trial only where the script asks: at the end of an operation. A
script without operations trains to its own end, whether or not the search would stop it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_searchers.settings import Form, read_form, read_unit
from determined_service.ingest import logs
from determined_service.ingest.reports import Reported, ValidationReport
from determined_service.ingest.trial_facts import TrialFacts
from determined_service.ingest.values import finite

_POSITION = """CASE WHEN cast(:unit AS text) = 'batches' THEN m.steps_completed
    WHEN jsonb_typeof(m.metrics -> cast(:unit AS text)) = 'number'
    THEN (m.metrics ->> cast(:unit AS text))::float8 END"""
# A script that asks for operations may validate once past the target, as it trains in whole epochs, and then
# completes the operation. A script that validates again at a later step does not ask.
_PAST = sa.text(
    f"""
    SELECT t.task_id, (
        SELECT count(DISTINCT m.steps_completed) FROM metrics m
        WHERE m.trial_id = t.id AND m.group_name = 'validation' AND NOT m.archived AND m.id < :first_id
          AND {_POSITION} >= :target) AS before
    FROM trials t WHERE t.id = :id
    """
)
_FARTHEST = sa.text(
    f"""
    SELECT max({_POSITION}) FROM metrics m
    WHERE m.trial_id = :id AND m.group_name IN ('training', 'validation') AND NOT m.archived
    """
)


def _position(validation: ValidationReport, unit: str) -> float | None:
    return validation.steps if unit == "batches" else finite(validation.metrics.get(unit))


async def note_past_target(
    conn: AsyncConnection, facts: TrialFacts, target: int | None, mine: Sequence[Reported]
) -> None:
    """Warns once for each target in the log of a trial that validates on past it; ``mine`` are its rows.

    ``target``: the length of the operation that it has not completed. Only where the search would stop it,
    and where the target's unit can be read from a validation.
    """
    unit = facts.asked_unit
    if unit is None or target is None:
        return
    at = {
        one.validation.steps: position
        for one in mine
        if (position := _position(one.validation, unit)) is not None and position >= target
    }
    if not at:
        return
    given = {"id": facts.id, "unit": unit, "first_id": min(one.row_id for one in mine)}
    row = (await conn.execute(_PAST, given | {"target": target})).one()
    if row.before > 1 or row.before + len(at) < 2:
        return
    ways = (
        "Loop over core_context.searcher.operations() and call op.report_completed() in the script"
    )
    if facts.takes_time:
        ways += (
            f"; or give the searcher time_metric: {unit} and max_time instead of max_length: then it goes by "
            f"the validations, each of which reports {unit!r} as a metric, and needs no operations"
        )
    text = (
        f"the searcher told this trial to train for {target} {unit} and to report to it there, but it "
        f"validates on, after {max(at.values()):g} {unit} now. With max_length, {facts.searcher} stops "
        f"trials only where their script asks for the next operation: this one trains to its own end. {ways}"
    )
    await logs.add_line(conn, row.task_id, mine[-1].allocation_id, text, "WARNING")


async def farthest(
    conn: AsyncConnection, trial_id: int, searcher: Mapping[str, Any]
) -> tuple[float | None, str | None]:
    """The farthest length that the trial has reported, in the unit of ``max_length``, and that unit.

    None: nobody knows, because it has reported nothing of that unit.
    """
    unit = read_unit(searcher) if read_form(searcher) is Form.OPERATIONS else None
    if unit is None:
        return None, None
    found = await conn.execute(_FARTHEST, {"id": trial_id, "unit": unit})
    return found.scalar_one(), unit
