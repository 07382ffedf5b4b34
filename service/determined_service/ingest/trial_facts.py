"""Facts about a trial that never change and that its reports need."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.search import NEVER_STOP
from determined_registry.database.tables import experiments, trials
from determined_searchers import Form, SearcherError
from determined_searchers.methods import find_method
from determined_searchers.settings import is_custom, read_form, read_unit


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """``time_metric`` is None unless the searcher goes by reports (the newer form).

    ``asked_unit``: of the operations at whose ends the searcher stops trials; None: it stops none, or
    not there, or the configuration gives no unit. ``takes_time``: whether it could go by reports instead.
    """

    id: int
    experiment_id: int
    owner_id: int
    request_id: str
    metric: str
    smaller_is_better: bool
    time_metric: str | None
    unmanaged: bool
    searcher: str = ""
    asked_unit: str | None = None
    takes_time: bool = False

    def better(self, value: float, than: float | None) -> bool:
        """True if ``value`` is a new best; a tie is not."""
        if than is None:
            return True
        return value < than if self.smaller_is_better else value > than


class TrialFactsCache:
    """The ``size`` trials asked for last."""

    def __init__(self, size: int = 10_000) -> None:
        self._known: OrderedDict[int, TrialFacts] = OrderedDict()
        self._size = size

    async def get(self, conn: AsyncConnection, ids: Iterable[int]) -> dict[int, TrialFacts]:
        """Those of ``ids`` that exist."""
        wanted = set(ids)
        found = {one: self._known[one] for one in wanted if one in self._known}
        missing = wanted - found.keys()
        if missing:
            for facts in await _load(conn, missing):
                found[facts.id] = self._known[facts.id] = facts
        for one in found:
            self._known.move_to_end(one)
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return found


async def _load(conn: AsyncConnection, ids: set[int]) -> list[TrialFacts]:
    searcher = experiments.c.config["searcher"]
    rows = await conn.execute(
        sa.select(
            trials.c.id,
            trials.c.experiment_id,
            experiments.c.owner_id,
            trials.c.request_id,
            searcher["metric"].astext.label("metric"),
            searcher["smaller_is_better"].astext.label("smaller"),
            searcher["time_metric"].astext.label("time_metric"),
            experiments.c.unmanaged,
            searcher.label("searcher"),
        )
        .join(experiments, experiments.c.id == trials.c.experiment_id)
        .where(trials.c.id.in_(ids))
    )
    return [
        TrialFacts(
            id=row.id,
            experiment_id=row.experiment_id,
            owner_id=row.owner_id,
            request_id=row.request_id,
            metric=row.metric or "",
            smaller_is_better=row.smaller != "false",
            # Nobody drives the search of an unmanaged experiment.
            time_metric=None if row.unmanaged else row.time_metric,
            unmanaged=row.unmanaged,
            **_operations(row.searcher or {}, row.unmanaged),
        )
        for row in rows
    ]


def _operations(searcher: Mapping[str, Any], unmanaged: bool) -> dict[str, Any]:
    name = str(searcher.get("name"))
    if unmanaged or name in NEVER_STOP or read_form(searcher) is not Form.OPERATIONS:
        return {}
    try:
        takes_time = not is_custom(searcher) and find_method(name).needs_metric
    except SearcherError:  # of a package that is here no more
        takes_time = False
    return {"searcher": name, "asked_unit": read_unit(searcher), "takes_time": takes_time}
