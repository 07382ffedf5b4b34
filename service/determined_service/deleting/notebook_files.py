"""The files that notebooks leave in the checkpoint storage, for ``det notebook start --restore``, and their
deletion.

A notebook that has ended has files there until its owner deletes them, or the cluster's rule does
(``notebook_files`` of the cluster configuration, applied by :func:`apply_rule_forever`). The files themselves
are removed as all others are: by a deletion (:mod:`determined_service.deleting.deletions`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Any

import sqlalchemy as sa

from determined.common.cluster_config import NotebookFiles
from determined.common.wire.kinds import TaskKind
from determined_registry.database.tables import allocations, tasks, users
from determined_registry.database.tables import deletions as deletions_table
from determined_service.base.db import Database
from determined_service.base.errors import Conflict, NotFound
from determined_service.base.settings import Settings
from determined_service.deleting import deletions
from determined_service.state import states
from determined_service.state.change import Change, changing
from determined_service.state.task_kinds import NOTEBOOK_MARK

logger = logging.getLogger(__name__)

PASS_S = 600.0
MOST = 500
"""Notebooks of one pass, and of one deletion."""

_t = tasks.c
MARK = NOTEBOOK_MARK
HAS_FILES = sa.and_(
    _t.kind == TaskKind.NOTEBOOK.name,
    _t.state.in_(states.TERMINAL),
    # Else it worked in a directory of its owner's.
    _t.config["work_dir"].astext.is_(None),
    # One that was killed while it waited for its slots has left nothing.
    sa.exists().where(allocations.c.task_id == _t.id, allocations.c.started_at.is_not(None)),
    # Unknown of one that was killed before it had counted them.
    _t.kept_bytes.is_distinct_from(0),
    sa.func.coalesce(_t.data, sa.text("'{}'::jsonb"))[MARK].is_(None),
)
_run = tasks.alias("run")
FILES_ARE_GOING = sa.exists().where(
    sa.cast(deletions_table.c.id, sa.Text) == _t.data[MARK].astext,
    _run.c.id == deletions_table.c.task_id,
    _run.c.state == states.ACTIVE,
)
"""A deletion of the notebook's files has not ended."""
_OUTDATED = sa.text(
    """
    SELECT id, owner_id FROM (
        SELECT k.id, k.owner_id, k.end_time,
               row_number() OVER (PARTITION BY k.owner_id ORDER BY k.end_time DESC, k.id) AS place
        FROM tasks k
        WHERE k.kind = :kind AND k.state = ANY(:ended) AND k.config ->> 'work_dir' IS NULL
          AND coalesce(k.data, '{}') -> :mark IS NULL AND k.kept_bytes IS DISTINCT FROM 0
          AND EXISTS (SELECT FROM allocations a WHERE a.task_id = k.id AND a.started_at IS NOT NULL)
    ) AS kept
    WHERE (end_time < now() - make_interval(days => cast(:days AS integer))
           OR place > cast(:per_owner AS integer))
      AND NOT EXISTS (
        SELECT FROM tasks n
        WHERE n.kind = :kind AND n.state <> ALL(:ended) AND n.data ->> 'restore_of' = kept.id)
    ORDER BY end_time, id LIMIT :most
    """
)


def select_kept(owner_id: int | None) -> sa.Select[Any]:
    """The notebooks that have files, of one owner or of all; to be ordered."""
    chosen = (
        sa.select(_t.id, _t.name, _t.end_time, _t.kept_bytes, users.c.username)
        .join(users, users.c.id == _t.owner_id)
        .where(HAS_FILES)
    )
    return chosen if owner_id is None else chosen.where(_t.owner_id == owner_id)


async def delete(change: Change, task_id: str, *, owner_id: int) -> int:
    """Has the files of an ended notebook deleted, for the user ``owner_id``; the deletion's id.

    Raises NotFound; Conflict when it has not ended, has no files, or a new notebook will begin with them.
    """
    row = (
        await change.conn.execute(
            sa.select(_t.state, HAS_FILES.label("has_files"))
            .where(_t.id == task_id, _t.kind == TaskKind.NOTEBOOK.name)
            .with_for_update(key_share=True)
        )
    ).first()
    if row is None:
        raise NotFound(f"notebook {task_id} does not exist")
    if row.state not in states.TERMINAL:
        raise Conflict(
            f"notebook {task_id} has not ended and keeps its files: det notebook kill ends it"
        )
    if not row.has_files:
        raise Conflict(f"notebook {task_id} has no files that are kept, or they are being deleted")
    begun = sa.select(_t.id).where(
        _t.kind == TaskKind.NOTEBOOK.name,
        _t.state.not_in(states.TERMINAL),
        _t.data["restore_of"].astext == task_id,
    )
    needs = (await change.conn.execute(begun.limit(1))).scalar_one_or_none()
    if needs is not None:
        raise Conflict(
            f"notebook {needs} begins with the files of {task_id}: wait until it has ended"
        )
    return await deletions.delete_notebook_files(change, [task_id], owner_id=owner_id)


async def apply_rule(change: Change, rule: NotebookFiles) -> int:
    """Order the deletion of files that the rule drops, in their owners' names; returns the number of
    notebooks."""
    if rule.days is None and rule.per_owner is None:
        return 0
    given = {
        "kind": TaskKind.NOTEBOOK.name,
        "ended": list(states.TERMINAL),
        "mark": MARK,
        "days": rule.days,
        "per_owner": rule.per_owner,
        "most": MOST,
    }
    chosen = {row.id for row in await change.conn.execute(_OUTDATED, given)}
    if not chosen:
        return 0
    await change.conn.execute(
        sa.select(_t.id).where(_t.id.in_(chosen)).order_by(_t.id).with_for_update(key_share=True)
    )
    by_owner: dict[int, list[str]] = defaultdict(list)
    # Once more, under their locks: a new notebook may begin with the files by now.
    for row in await change.conn.execute(_OUTDATED, given):
        if row.id in chosen:
            by_owner[row.owner_id].append(row.id)
    for owner_id, task_ids in by_owner.items():
        await deletions.delete_notebook_files(change, task_ids, owner_id=owner_id)
    return sum(map(len, by_owner.values()))


async def apply_rule_forever(db: Database, settings: Settings) -> None:
    """In the leader's process."""
    while True:
        try:
            async with changing(db) as change:
                count = await apply_rule(change, settings.cluster.notebook_files)
            if count:
                logger.info("the kept files of %d notebooks are deleted (notebook_files)", count)
        except sa.exc.OperationalError as error:
            logger.warning("Postgres does not answer, kept files are looked at later: %s", error)
        await asyncio.sleep(PASS_S)
