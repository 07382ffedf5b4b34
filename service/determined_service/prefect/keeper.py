"""Keep the flow runs of experiments, pipelines and deletions alive.

A run of an owner that is open is made, once; it is started again when its flow was interrupted, and after ten
times in a row the owner is given up. When a user cancels it on Prefect's page, its owner is cancelled. When
the owner has ended, its run gets that end, if its flow does not say it.

An owner keeps its run: a run that is started again has the subflows, the page and the log of before.

Runs in the leading service process (:mod:`determined_service.loops.runtime`). A look may be repeated, also
by two processes that both believe to lead for a moment: a row is changed only if its flow, its owner and the
other process have said nothing since it was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

import httpx
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.backoff import Backoff
from determined.common.wire import serving
from determined.common.wire.serving import Served
from determined_registry.database.tables import kept_runs
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import ApiError
from determined_service.base.hub import Hub, wait_at_most
from determined_service.base.settings import Settings
from determined_service.prefect.gateway import ENDED, NotDeployed, ParentRun, RunGone, RunState
from determined_service.prefect.kept_owners import OWNERS, KeptOwner, OwnerStanding, Prefect
from determined_service.state.change import Change, changing, reader

logger = logging.getLogger(__name__)

PASS_S = 5.0
SOON_S = 0.5
"""Seconds that a run whose owner has ended is left to its flow, before it is looked at again."""
LONGEST_S = 300.0
"""A run whose flow stays silent is asked for more and more seldom, but at least this often."""
REFUSED_S = 30.0
"""After how long a run is looked at again about which Prefect has refused something."""
LEAST_S = 0.05
# The first wait and the longest, while Prefect is away, or an agent has not registered the deployments.
AWAY_SECONDS = (0.1, 15.0)
CONCURRENCY = 8
MOST = 50
"""The number of runs that one pass looks at, first those still to be made, as users wait for them."""
MAX_INTERRUPTIONS = 10
FORGET_S = 600.0
"""An interruption this long after the one before, or after the owner has got on, is the first in a row."""

r = kept_runs.c


class FlowRuns(Prefect, Protocol):
    """The calls to Prefect; implemented by :class:`~determined_service.prefect.gateway.PrefectGateway`."""

    async def create_run(
        self,
        deployment: str,
        *,
        parameters: dict[str, Any],
        key: str,
        name: str,
        tags: Sequence[str],
        token: str,
        parent: ParentRun | None = None,
    ) -> UUID:
        """Creates a run of the deployment, once per ``key``; it shows the service ``token``. Raises
        NotDeployed."""

    async def read_state(self, run_id: UUID) -> RunState:
        """The present state. Raises RunGone."""

    async def set_state(self, run_id: UUID, type: str, name: str, message: str) -> None:
        """Set the state, from any present state. Raises RunGone."""


class Keeper:
    """One per cluster (the leader's), where there is a Prefect."""

    def __init__(self, db: Database, prefect: FlowRuns, settings: Settings) -> None:
        self._db = db
        self._prefect = prefect
        self._settings = settings
        # Flows could not speak while no service ran.
        self._began = time.monotonic()

    async def run(self, hub: Hub) -> None:
        """Repeat passes for ever: at once after an announcement, else when a check is due."""
        backoff = Backoff(*AWAY_SECONDS)
        with hub.subscribe([topics.KEPT_RUNS]) as event:
            while True:
                event.clear()
                try:
                    wait_s = await self.run_pass()
                    backoff.reset()
                except (httpx.TransportError, sa.exc.OperationalError, NotDeployed) as error:
                    if not backoff.tries:
                        logger.warning("flow runs are neither made nor started again: %s", error)
                    wait_s = backoff.next_delay()
                await wait_at_most(event, wait_s)

    async def run_pass(self) -> float:
        """Looks at every run whose time has come; answers after how many seconds the next look is due.

        Raises NotDeployed, and what is raised while Prefect or the database does not answer.
        """
        async with reader(self._db).connect() as conn:
            rows = list(await conn.execute(_DUE))
        gate = asyncio.Semaphore(CONCURRENCY)

        async def look(row: sa.Row[Any]) -> None:
            async with gate:
                await self._look_at(row)

        away: BaseException | None = None
        done = await asyncio.gather(*(look(row) for row in rows), return_exceptions=True)
        for row, error in zip(rows, done, strict=True):
            if isinstance(error, httpx.TransportError | sa.exc.OperationalError | NotDeployed):
                away = error
                await self._note(row, error)
            elif isinstance(error, ApiError):
                logger.info("%s: %s", _name(row), error.message)  # it has ended, or is gone
                await self._write(row, look_at=_after(SOON_S))
            elif isinstance(error, Exception):
                logger.warning("the run of %s is looked at later", _name(row), exc_info=error)
                await self._note(row, error)
                await self._write(row, look_at=_after(REFUSED_S))
            elif error is not None:
                raise error
        if away is not None:
            raise away
        async with reader(self._db).connect() as conn:
            next_s = (await conn.execute(_NEXT)).scalar_one()
        return PASS_S if next_s is None else min(max(float(next_s), LEAST_S), PASS_S)

    async def _look_at(self, row: sa.Row[Any]) -> None:
        owner, number = _owner(row)
        async with reader(self._db).connect() as conn:
            standing = await owner.stand(conn, number)
        if standing is None:
            return  # and its row with it
        if row.flow_run_id is None:
            if standing.open:
                await self._create(row)
            else:
                await self._settle(row)
            return
        try:
            run = await self._prefect.read_state(row.flow_run_id)
        except RunGone:
            if not standing.open:
                await self._settle(row)
            elif owner.replaceable:
                await self._create(row)
            else:
                await self._stop(row, "its run was deleted in Prefect", failed=True)
            return
        cancelled = run.type in ("CANCELLING", "CANCELLED")
        if standing.open or (standing.lacks is not None and not cancelled):
            await self._keep(row, standing, run)
        else:
            await self._end(row, standing, run)

    async def _keep(self, row: sa.Row[Any], standing: OwnerStanding, run: RunState) -> None:
        owner, _ = _owner(row)
        silent_s = min(row.silent_s, time.monotonic() - self._began)
        verdict = judge(
            run,
            silent_s,
            owner.lost_s,
            datetime.datetime.now(datetime.UTC),
            heeds_cancel=owner.may_be_cancelled and not row.wake,
        )
        if verdict == "cancel":
            logger.info("%s: its run was cancelled in Prefect", _name(row))
            await self._stop(row, "its run was cancelled in Prefect", failed=False)
        elif verdict == "restart":
            await self._restart(row, standing, run)
        else:
            if verdict == "remind":
                async with changing(self._db) as change:
                    await self._bump_pools(change, row)
            # Cancels of runs that wait are looked for besides (determined_service.prefect.watch).
            least_s = SOON_S if row.wake else PASS_S
            wait_s = min(max(row.silent_s / 4, least_s), LONGEST_S)
            await self._write(row, look_at=_after(wait_s))

    async def _stop(self, row: sa.Row[Any], reason: str, *, failed: bool) -> None:
        owner, number = _owner(row)
        # Not if a user has resumed it since the row was read.
        if await self._write(row, look_at=_after(PASS_S)):
            await owner.stop(self._db, number, reason, failed=failed)

    async def _restart(self, row: sa.Row[Any], standing: OwnerStanding, run: RunState) -> None:
        values: dict[str, Any] = {}
        why = "it goes on"
        if not row.wake:
            count = count_interruption(row, standing.progress)
            if count > MAX_INTERRUPTIONS:
                last = f"; the last: {run.message}" if run.message else ""
                reason = f"its flow was interrupted {MAX_INTERRUPTIONS} times in a row{last}"
                if standing.open:
                    await self._stop(row, reason, failed=True)
                else:
                    await self._settle(row)
                return
            why = standing.lacks if not standing.open and standing.lacks else _why(run)
            logger.warning("%s: %s; its run is started again", _name(row), why)
            values = {
                "interruptions": count,
                "interrupted_at": sa.func.now(),
                "progress": standing.progress,
            }
        try:
            await self._prefect.set_state(
                row.flow_run_id, "SCHEDULED", "Scheduled", f"started again: {why}"
            )
        except RunGone:
            return  # the next look makes another one
        async with changing(self._db) as change:
            await _write(
                change.conn,
                row,
                wake=False,
                seen_at=sa.func.now(),
                look_at=_after(PASS_S),
                **values,
            )
            await self._bump_pools(change, row)

    async def _create(self, row: sa.Row[Any]) -> None:
        owner, number = _owner(row)
        order = await owner.order(self._db, number)
        if order is None:
            return
        secret = self._settings.agent_token.get_secret_value()
        # One that is never replaced needs no number.
        nth = f"-{row.runs + 1}" if owner.replaceable else ""
        flow_run_id = await self._prefect.create_run(
            order.deployment or owner.deployment,
            parameters=order.parameters,
            key=f"determined-{self._settings.cluster_id}-{owner.noun}-{number}{nth}",
            name=order.name,
            tags=order.tags,
            token=serving.sign(secret, Served(owner.serves, str(number))),
            parent=order.parent,
        )
        async with changing(self._db) as change:
            await owner.show(change, number)
            # Its flow may have spoken meanwhile, but not as another run.
            await change.conn.execute(
                sa.update(kept_runs)
                .where(
                    r.id == row.id,
                    sa.or_(
                        r.flow_run_id.is_not_distinct_from(row.flow_run_id),
                        r.flow_run_id == flow_run_id,
                    ),
                )
                .values(
                    flow_run_id=flow_run_id,
                    last_error=None,
                    runs=r.runs + 1,
                    wake=False,
                    seen_at=sa.func.now(),
                    look_at=_after(PASS_S),
                )
            )
            await self._bump_pools(change, row)

    async def _end(self, row: sa.Row[Any], standing: OwnerStanding, run: RunState) -> None:
        """Set the end state of an ended owner's run.

        A flow that died, or that was killed with the last word on its lips, cannot say it: then it is said
        here. So it is for one that nothing is heard of, though its run has no final state.
        """
        owner, _ = _owner(row)
        # One that has waited for a person has completed long before its owner is, say, rejected.
        if standing.end is not None and run.type not in (standing.end[0], "COMPLETED"):
            lives = run.type not in (*ENDED, "SCHEDULED")
            if lives and row.silent_s < owner.lost_s:
                await self._write(row, look_at=_after(max(row.silent_s / 4, SOON_S)))
                return
            with contextlib.suppress(RunGone):
                await self._prefect.set_state(row.flow_run_id, *standing.end, standing.message)
        await self._settle(row)

    async def _settle(self, row: sa.Row[Any]) -> None:
        owner, number = _owner(row)
        await owner.follow(self._db, self._prefect, number)
        await self._write(row, settled=True)

    async def _note(self, row: sa.Row[Any], error: Exception) -> None:
        """Has `det doctor` say why the run could not be made."""
        if row.flow_run_id is None and row.last_error != str(error):
            await self._write(row, last_error=str(error))

    async def _write(self, row: sa.Row[Any], **values: Any) -> bool:
        async with reader(self._db).connect() as conn:
            return await _write(conn, row, **values)

    async def _bump_pools(self, change: Change, row: sa.Row[Any]) -> None:
        """Has the agents that may take the run ask Prefect now."""
        found = await change.conn.execute(
            _BUMP,
            {"pool": self._settings.cluster.pool_of_flows, "experiment_id": row.experiment_id},
        )
        change.notify(*map(topics.pool, found.scalars()))


def judge(
    run: RunState,
    silent_s: float,
    lost_s: float,
    now: datetime.datetime,
    *,
    heeds_cancel: bool = True,
) -> str:
    """Decide about the run of an open owner, whose flow has not been heard of for ``silent_s`` seconds.

    "wait" (it may come back), "remind" (it waits for an agent: remind them), "cancel" (a user cancelled it in
    Prefect), "restart".
    """
    if heeds_cancel and run.type in ("CANCELLED", "CANCELLING"):
        return "cancel"
    if run.type == "SCHEDULED":
        return "remind"
    if run.type in ENDED:
        return "restart"
    in_state_s = (now - run.since).total_seconds()
    return "restart" if min(silent_s, in_state_s) >= lost_s else "wait"


def count_interruption(row: sa.Row[Any], progress: str) -> int:
    """The number of interruptions in a row, up to this one."""
    lately = row.interrupted_s is not None and row.interrupted_s < FORGET_S
    return row.interruptions + 1 if lately and row.progress == progress else 1


def _why(run: RunState) -> str:
    return "its flow was interrupted" if run.type in ENDED else "nothing was heard of its flow"


def _owner(row: sa.Row[Any]) -> tuple[KeptOwner, int]:
    found = ((owner, getattr(row, owner.column.name)) for owner in OWNERS)
    return next((owner, number) for owner, number in found if number is not None)


def _name(row: sa.Row[Any]) -> str:
    owner, number = _owner(row)
    return f"{owner.noun} {number}"


def _after(seconds: float) -> sa.ColumnElement[Any]:
    return sa.func.now() + datetime.timedelta(seconds=seconds)


async def _write(conn: AsyncConnection, row: sa.Row[Any], **values: Any) -> bool:
    """Change the row, unless it was changed since it was read. Returns True if it did."""
    unchanged = sa.and_(r.seen_at == row.seen_at, r.wake == row.wake)
    changed = sa.update(kept_runs).where(r.id == row.id, unchanged).values(values)
    return (await conn.execute(changed.returning(r.id))).first() is not None


_DUE = (
    sa.select(
        kept_runs,
        sa.extract("epoch", sa.func.now() - r.seen_at).cast(sa.Float).label("silent_s"),
        sa.extract("epoch", sa.func.now() - r.interrupted_at).cast(sa.Float).label("interrupted_s"),
    )
    .where(~r.settled, r.look_at <= sa.func.now())
    .order_by(r.flow_run_id.is_not(None), r.look_at, r.id)
    .limit(MOST)
)
_NEXT = sa.select(sa.extract("epoch", sa.func.min(r.look_at) - sa.func.now())).where(~r.settled)
_BUMP = sa.text(
    """
    UPDATE pools SET prefect_poll_seq = prefect_poll_seq + 1
    WHERE name = :pool
       OR name = (SELECT resource_pool FROM experiments WHERE id = :experiment_id)
    RETURNING name
    """
)
