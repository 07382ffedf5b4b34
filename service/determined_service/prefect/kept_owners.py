"""The owners of kept flow runs: experiments, pipelines, deletions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import prefect, serving
from determined_registry.database.tables import (
    checkpoints,
    deletions,
    experiments,
    pipelines,
    projects,
    searches,
    tasks,
    trials,
    users,
    workspaces,
)
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.deleting import deletions as deleting
from determined_service.deleting.erasure import erase, runs_of
from determined_service.lifecycle import experiments as experimenting
from determined_service.pipelines import machine, people, rows
from determined_service.prefect.gateway import ParentRun
from determined_service.retraining import runs
from determined_service.state import prefect_states, run_records, states
from determined_service.state.change import Change, changing, reader

COMPLETED = ("COMPLETED", prefect.COMPLETED)
FAILED = ("FAILED", prefect.FAILED)
CANCELLED = ("CANCELLED", prefect.CANCELLED)


class Prefect(Protocol):
    """The call to Prefect that an owner may make."""

    async def delete_run(self, run_id: UUID) -> None:
        """Delete the run with its artifacts, if it exists."""


@dataclass(frozen=True, slots=True)
class OwnerStanding:
    """The state of an owner.

    ``open``: it has not ended, and needs a flow. ``progress``: another text once its flow has got something
    done. ``end``, ``message``: type and name of the state that its run gets when it has ended, and why; no
    ``end``: any will do. ``lacks``: it has ended, but its flow died before it had done this.
    """

    open: bool
    progress: str
    end: tuple[str, str] | None
    message: str
    lacks: str | None = None


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The settings with which a run is made. ``parent``: it is a subflow. ``deployment``: another than the
    owner's."""

    parameters: dict[str, Any]
    name: str
    tags: list[str]
    parent: ParentRun | None = None
    deployment: str | None = None


class KeptOwner(ABC):
    """A kind of owner.

    ``column``: its id in `kept_runs`. ``noun``: in the keys of its runs and in messages. ``serves``: what its
    run serves, for the run's token. ``deployment``: of its flow. ``lost_s``: a flow that has been silent for
    this long is given up. ``may_be_cancelled``: whether a cancel on Prefect's page ends it. ``replaceable``:
    whether another run takes the place of one that somebody has deleted.
    """

    column: ClassVar[run_records.OwnerColumn]
    noun: ClassVar[str]
    serves: ClassVar[str]
    deployment: ClassVar[str]
    lost_s: ClassVar[float] = 120.0
    may_be_cancelled: ClassVar[bool] = True
    replaceable: ClassVar[bool] = True

    @abstractmethod
    async def stand(self, conn: AsyncConnection, id: int) -> OwnerStanding | None:
        """Its present state; None: it is gone."""

    @abstractmethod
    async def order(self, db: Database, id: int) -> RunOrder | None:
        """The settings of its run; None: it has ended meanwhile, or ends without one."""

    @abstractmethod
    async def stop(self, db: Database, id: int, reason: str, *, failed: bool) -> None:
        """End it, unless it has ended: somebody cancelled its run, or (``failed``) it has no live run."""

    async def show(self, change: Change, id: int) -> None:  # noqa: B027
        """Its run has been made: has the run's page written, if it has one."""

    async def follow(self, db: Database, prefect: Prefect, id: int) -> None:  # noqa: B027
        """It and its run have ended: does what comes after that, if anything does. May be repeated."""


class KeptExperiment(KeptOwner):
    """Its trials' runs are subflows of its run, so no other run can take the place of that one."""

    column, noun, serves = run_records.EXPERIMENT, "experiment", serving.EXPERIMENT
    deployment = prefect.EXPERIMENT_DEPLOYMENT
    lost_s = run_records.LOST_S
    replaceable = False

    async def stand(self, conn: AsyncConnection, id: int) -> OwnerStanding | None:
        e, s = experiments.c, searches.c
        lacks = sa.exists().where(
            trials.c.experiment_id == e.id,
            tasks.c.id == trials.c.task_id,
            tasks.c.flow_run_id.is_(None),
        )
        found = await conn.execute(
            sa.select(
                e.state,
                e.reason,
                s.committed_event_id,
                sa.and_(s.driver.is_not(None), lacks).label("lacks"),
            )
            .join(searches, s.experiment_id == e.id)
            .where(e.id == id)
        )
        if (row := found.first()) is None:
            return None
        why = f": {row.reason}" if row.reason else ""
        return OwnerStanding(
            row.state not in states.ENDED,
            str(row.committed_event_id),
            _EXPERIMENT_ENDS.get(row.state),
            f"experiment {id} {row.state.lower()}{why}",
            "runs of its trials are missing" if row.lacks else None,
        )

    async def order(self, db: Database, id: int) -> RunOrder | None:
        async with reader(db).connect() as conn:
            found = await conn.execute(
                sa.select(
                    experiments.c.name,
                    users.c.username,
                    projects.c.name.label("project"),
                    workspaces.c.name.label("workspace"),
                )
                .join(users, users.c.id == experiments.c.owner_id)
                .join(projects, projects.c.id == experiments.c.project_id)
                .join(workspaces, workspaces.c.id == projects.c.workspace_id)
                .where(experiments.c.id == id)
            )
            row = found.first()
            of = (await conn.execute(_PIPELINE, {"id": id})).first()
        if row is None:
            return None
        tags = ["determined", *prefect.experiment_tags(id, row.username)]
        tags += prefect.place_tags(row.workspace, row.project)
        parent = None
        if of is not None:
            place = f"{of.step}-{of.item}-{of.attempt}"
            parent = ParentRun(of.flow_run_id, f"{of.id}-{place}", f"experiment-{id}")
            tags += prefect.pipeline_tags(of.id)
        name = experimenting.run_name(row.name, id)
        return RunOrder({"experiment_id": id}, name, tags, parent)

    async def stop(self, db: Database, id: int, reason: str, *, failed: bool) -> None:
        async with changing(db) as change:
            if failed:
                await experimenting.fail(change, id, reason)
            else:
                await experimenting.cancel(change, id)

    async def show(self, change: Change, id: int) -> None:
        change.notify(topics.experiment(id))
        prefect_states.show_page(change, prefect_states.experiment_entity(id))


class KeptPipeline(KeptOwner):
    column, noun, serves = run_records.PIPELINE, "pipeline", serving.PIPELINE
    deployment = prefect.PIPELINE_DEPLOYMENT

    async def stand(self, conn: AsyncConnection, id: int) -> OwnerStanding | None:
        p = pipelines.c
        columns = (p.state, p.reason, p.changes, p.retraining_run_id)
        found = await conn.execute(sa.select(*columns).where(p.id == id))
        if (row := found.first()) is None:
            return None
        return OwnerStanding(
            row.state == machine.RUNNING,
            str(row.changes),
            _PIPELINE_ENDS.get(row.state),
            row.reason or ""
            if row.retraining_run_id is not None
            else f"pipeline {id} {row.state}: {row.reason}",
        )

    async def order(self, db: Database, id: int) -> RunOrder | None:
        async with reader(db).connect() as conn:
            found = await conn.execute(
                sa.select(
                    pipelines.c.name,
                    pipelines.c.retraining_run_id,
                    users.c.username,
                    projects.c.name.label("project"),
                    workspaces.c.name.label("workspace"),
                )
                .join(users, users.c.id == pipelines.c.owner_id)
                .join(workspaces, workspaces.c.id == pipelines.c.workspace_id)
                .outerjoin(projects, projects.c.id == pipelines.c.project_id)
                .where(pipelines.c.id == id)
            )
        if (row := found.first()) is None:
            return None
        place = prefect.place_tags(row.workspace, row.project or "")
        if row.retraining_run_id is not None:
            name = runs.named(row.retraining_run_id, row.name)
            order = RunOrder({"pipeline_id": id}, name, [*runs.TAGS, *place])
            return replace(order, deployment=prefect.RETRAINING_DEPLOYMENT)
        tags = ["determined", *prefect.pipeline_tags(id), f"owner-{row.username}", *place]
        return RunOrder({"pipeline_id": id}, f"{row.name} (pipeline {id})", tags)

    async def stop(self, db: Database, id: int, reason: str, *, failed: bool) -> None:
        async with changing(db) as change:
            row = await rows.lock(change.conn, id)
            if row.state != machine.RUNNING:
                return
            to = machine.FAILED if failed else machine.CANCELED
            await people.cancel_locked(change, row, reason, to)
        await people.stop(db, id)

    async def show(self, change: Change, id: int) -> None:
        again = sa.update(pipelines).where(pipelines.c.id == id)
        await change.conn.execute(again.values(changes=pipelines.c.changes + 1))


class KeptDeletion(KeptOwner):
    """It cannot be cancelled, only repeated: its marked checkpoints are lost already."""

    column, noun, serves = run_records.DELETION, "deletion", serving.DELETION
    deployment = prefect.DELETION_DEPLOYMENT
    lost_s = run_records.LOST_S
    may_be_cancelled = False

    async def stand(self, conn: AsyncConnection, id: int) -> OwnerStanding | None:
        left = sa.select(sa.func.count()).where(checkpoints.c.deletion_id == deletions.c.id)
        found = await conn.execute(
            sa.select(tasks.c.state, tasks.c.reason, left.scalar_subquery().label("left"))
            .join(deletions, deletions.c.task_id == tasks.c.id)
            .where(deletions.c.id == id)
        )
        if (row := found.first()) is None:
            return None
        why = f": {row.reason}" if row.reason else ""
        end = FAILED if row.state == states.ERROR else COMPLETED
        message = f"deletion {id} {deleting.SHOWN_STATE[row.state]}{why}"
        return OwnerStanding(row.state == states.ACTIVE, str(row.left), end, message)

    async def order(self, db: Database, id: int) -> RunOrder | None:
        async with changing(db) as change:
            if not await deleting.prepare(change, id):
                await deleting.end(change, id, None)
                return None
            found = await change.conn.execute(
                sa.select(deletions.c.experiment_id).where(deletions.c.id == id)
            )
        experiment_id = found.scalar_one()
        tags = ["determined"]
        of = ""
        if experiment_id is not None:
            tags.append(f"experiment-{experiment_id}")
            of = f" of experiment {experiment_id}"
        return RunOrder({"deletion_id": id}, f"checkpoint-gc{of} #{id}", tags)

    async def stop(self, db: Database, id: int, reason: str, *, failed: bool) -> None:
        async with changing(db) as change:
            await deleting.end(change, id, reason)

    async def follow(self, db: Database, prefect: Prefect, id: int) -> None:
        """Deletes the runs and then the rows of an experiment whose files are gone."""
        async with reader(db).connect() as conn:
            found = await conn.execute(
                sa.select(deletions.c.experiment_id)
                .join(tasks, tasks.c.id == deletions.c.task_id)
                .where(
                    deletions.c.id == id,
                    deletions.c.kind == deleting.EXPERIMENT_WHOLE,
                    tasks.c.state == states.COMPLETED,
                )
            )
            experiment_id = found.scalar_one_or_none()
            if experiment_id is None:
                return
            doomed = await runs_of(conn, experiment_id)
        for run_id in doomed:
            await prefect.delete_run(run_id)
        async with changing(db) as change:
            await erase(change, experiment_id)


OWNERS: tuple[KeptOwner, ...] = (KeptExperiment(), KeptPipeline(), KeptDeletion())

_EXPERIMENT_ENDS: Mapping[str, tuple[str, str]] = {
    states.COMPLETED: COMPLETED,
    states.CANCELED: CANCELLED,
    states.ERROR: FAILED,
}
_PIPELINE_ENDS: Mapping[str, tuple[str, str]] = {
    machine.COMPLETED: COMPLETED,
    machine.FAILED: FAILED,
    machine.CANCELED: CANCELLED,
    # Its flow is not needed until somebody has answered.
    machine.AWAITING: COMPLETED,
}
# The pipeline whose run has the experiment's run as a subflow.
_PIPELINE = sa.text(
    """
    SELECT x.pipeline_id AS id, r.flow_run_id, x.step, x.item, x.attempt
    FROM pipeline_experiments x JOIN kept_runs r ON r.pipeline_id = x.pipeline_id
    WHERE x.experiment_id = :id AND NOT x.cached AND r.flow_run_id IS NOT NULL
    ORDER BY x.pipeline_id, x.attempt LIMIT 1
    """
)
