"""How a model does where it is used: :func:`report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import live_metrics, model_versions
from determined_service.base.errors import BadRequest, NotFound
from determined_service.recurring.triggers import MOST_VALUES
from determined_service.retraining import runs
from determined_service.retraining.plans import Plan
from determined_service.state.change import Change
from determined_service.views.models import alias_version

MOST_NAMES = 50
"""How many metrics a model may have."""
KEPT = 2 * MOST_VALUES
"""How many values of each."""

c = live_metrics.c


async def report(
    change: Change, model_id: int, name: str, values: Sequence[float], version: int | None
) -> int | None:
    """Notes the values; answers the version that they are of. The leading service looks at them in its next
    pass. Raises NotFound, BadRequest.
    """
    conn = change.conn
    # Locked: of reports at once the limits hold, and ids are seen in their order.
    retraining = await runs.find(conn, model_id, lock=True)
    if version is None:
        alias = Plan.model_validate(retraining.plan).alias
        version = await alias_version(conn, model_id, alias)
    else:
        v = model_versions.c
        found = await conn.execute(
            sa.select(v.id).where(v.model_id == model_id, v.version == version)
        )
        if found.first() is None:
            raise NotFound(f"model {model_id} has no version {version}")
    mine = c.retraining_id == retraining.id
    names = await conn.execute(sa.select(c.name).where(mine).distinct())
    known = set(names.scalars())
    if name not in known and len(known) >= MOST_NAMES:
        raise BadRequest(
            f"metric: this model has live values of {MOST_NAMES} metrics, no more are kept"
        )
    rows = [
        {"retraining_id": retraining.id, "name": name, "value": one, "version": version}
        for one in values
    ]
    await conn.execute(sa.insert(live_metrics), rows)
    newest = sa.select(c.id).where(mine, c.name == name).order_by(c.id.desc()).offset(KEPT).limit(1)
    await conn.execute(
        sa.delete(live_metrics).where(mine, c.name == name, c.id <= newest.scalar_subquery())
    )
    return version


def select(retraining_id: int) -> sa.Select[Any]:
    """The newest first."""
    return sa.select(live_metrics).where(c.retraining_id == retraining_id).order_by(c.id.desc())
