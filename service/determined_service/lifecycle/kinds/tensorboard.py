"""A TensorBoard: TensorBoard's server beside a process that copies the files of experiments and trials.

Its program is :mod:`determined.exec.tensorboard`; it asks :func:`sources` of this module, by the API, what to
copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import ClusterConfig
from determined.common.wire.agents import TENSORBOARD
from determined.common.wire.kinds import TaskKind
from determined.common.wire.legs import ExitKind, Port
from determined.expconf import masked_for_others
from determined.expconf.tasks import TensorboardConfig
from determined_registry.database.tables import legs
from determined_service.base.bounds import ManyIds
from determined_service.base.db import as_asker
from determined_service.base.errors import BadRequest, NotFound
from determined_service.base.settings import Settings
from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle.exits import LegExit, Outcome
from determined_service.lifecycle.kinds.base import LegEnd, user_ports, variables_of
from determined_service.lifecycle.kinds.launched import LaunchContext, LaunchedKind, LaunchFields
from determined_service.state import prefect_states, states
from determined_service.state.change import Change

MOST = 1000
"""Experiments and trials of one TensorBoard."""
LOST_LEGS = 5
"""So often in a row it begins anew on another agent when its own is lost."""
_OWN_ARGUMENTS = ("--logdir", "--logdir_spec", "--host", "--port", "--path_prefix", "--bind_all")
_PROGRAM = ["python3", "-m", "determined.exec.tensorboard"]


class TensorboardFields(LaunchFields):
    """The fields that only TensorBoards have."""

    experiment_ids: ManyIds = Field(default_factory=list, description="The experiments to show.")
    trial_ids: ManyIds = Field(default_factory=list, description="The trials to show.")


class TensorboardKind(LaunchedKind[TensorboardFields]):
    """``det tensorboard``."""

    name, noun = TaskKind.TENSORBOARD.name, TaskKind.TENSORBOARD.value
    title = "TensorBoard"
    program = TENSORBOARD
    config_class = TensorboardConfig
    fields = TensorboardFields

    def settle(self, config: dict[str, Any], cluster: ClusterConfig) -> None:
        """Raises BadRequest for arguments that would lead TensorBoard elsewhere."""
        for argument in config["tensorboard_args"]:
            if argument.partition("=")[0] in _OWN_ARGUMENTS:
                raise BadRequest(
                    f"tensorboard_args: {argument!r} is set by the cluster: leave it out"
                )
        config["entrypoint"] = [*_PROGRAM, *config["tensorboard_args"]]

    async def remember(
        self,
        conn: AsyncConnection,
        asked: TensorboardFields,
        config: dict[str, Any],
        context: LaunchContext,
    ) -> dict[str, Any] | None:
        """The experiments and trials to show. It takes over the mounts of the experiments, and the
        environment of those of its owner: with that their storage was reached."""
        experiment_ids = sorted(set(asked.experiment_ids))
        trial_ids = sorted(set(asked.trial_ids))
        if not experiment_ids and not trial_ids:
            raise BadRequest("experimentIds, trialIds: name at least one experiment or trial")
        if len(experiment_ids) + len(trial_ids) > MOST:
            raise BadRequest(f"experimentIds, trialIds: at most {MOST} together")
        data = {"experiment_ids": experiment_ids, "trial_ids": trial_ids}
        rows = await _rows(conn, data)
        _require_all(rows, experiment_ids, trial_ids)
        _inherit(config, rows, context.owner_id)
        for row in rows:
            if _storage(row, context.owner_id, context.default_storage) != row.storage:
                raise BadRequest(
                    f"experiment {row.experiment_id} keeps its files in a storage whose keys are its owner's,"
                    f" {row.username}: have {row.username} start the TensorBoard, which all users may look at"
                    " then"
                )
        return data

    def idle_timeout_s(self, config: Mapping[str, Any], cluster: ClusterConfig) -> float | None:
        found = super().idle_timeout_s(config, cluster)
        return cluster.tensorboard_timeout if found is None else found

    def shown(self, row: sa.Row[Any], *, owns: bool) -> dict[str, Any]:
        data = row.data or {}
        return {
            "experimentIds": data.get("experiment_ids") or [],
            "trialIds": data.get("trial_ids") or [],
            "serviceAddress": f"/proxy/{row.id}/",
        }

    def order(self, row: sa.Row[Any]) -> dict[str, Any]:
        return {
            **super().order(row),
            "ports": [
                Port(
                    name="tensorboard",
                    env="TENSORBOARD_PORT",
                    shared=True,
                    default=True,
                    keep_prefix=True,
                    ready_path=f"/proxy/{row.task_id}/data/environment",
                ),
                *user_ports(row.config.get("environment") or {}, default=False),
            ],
        }

    async def judge(self, change: Change, leg: sa.Row[Any], exit: LegExit) -> LegEnd:
        """One whose agent is lost begins anew: its address stays, and its files are copied again."""
        if (
            exit.kind is not ExitKind.INFRASTRUCTURE
            or leg.task_state != states.ACTIVE
            or await _lost_in_a_row(change.conn, leg.task_id) >= LOST_LEGS
        ):
            return await super().judge(change, leg, exit)
        reason = exit.reason or "its agent is lost"

        async def go_on(change: Change) -> None:
            await self.request_again(change, leg.task_id)
            prefect_states.awaiting_slots(change, leg.task_id, reason)

        return LegEnd(Outcome.LOST, reason, go_on)

    async def request_again(self, change: Change, task_id: str) -> None:
        """Waits for an agent again."""
        found = await change.conn.execute(
            sa.text("SELECT config -> 'resources' FROM tasks WHERE id = :id"), {"id": task_id}
        )
        resources = found.scalar_one()
        await allocating.request(
            change,
            task_id,
            pool=resources["resource_pool"],
            slots=resources["slots"],
            priority=resources["priority"],
        )


async def _lost_in_a_row(conn: AsyncConnection, task_id: str) -> int:
    found = await conn.execute(
        sa.select(legs.c.state)
        .where(legs.c.task_id == task_id)
        .order_by(legs.c.run_id.desc())
        .limit(LOST_LEGS)
    )
    count = 0
    for state in found.scalars():
        if state != Outcome.LOST:
            break
        count += 1
    return count


_ROWS = sa.text(
    """
    SELECT e.id AS experiment_id, NULL::int AS trial_id, e.state, e.owner_id, u.username,
           e.config -> 'checkpoint_storage' AS storage, e.config -> 'bind_mounts' AS bind_mounts,
           e.config -> 'environment' AS environment
    FROM experiments e JOIN users u ON u.id = e.owner_id WHERE e.id = ANY(:experiment_ids)
    UNION ALL
    SELECT e.id, t.id, t.state, e.owner_id, u.username, e.config -> 'checkpoint_storage',
           e.config -> 'bind_mounts', e.config -> 'environment'
    FROM trials t JOIN experiments e ON e.id = t.experiment_id JOIN users u ON u.id = e.owner_id
    WHERE t.id = ANY(:trial_ids)
    ORDER BY 1, 2
    """
)


async def _rows(conn: AsyncConnection, data: Mapping[str, Any]) -> Sequence[sa.Row[Any]]:
    given = {name: data.get(name) or [] for name in ("experiment_ids", "trial_ids")}
    async with as_asker(conn):
        return (await conn.execute(_ROWS, given)).all()


def _require_all(
    rows: Sequence[sa.Row[Any]], experiment_ids: list[int], trial_ids: list[int]
) -> None:
    for noun, wanted, found in (
        ("experiment", experiment_ids, {row.experiment_id for row in rows if row.trial_id is None}),
        ("trial", trial_ids, {row.trial_id for row in rows}),
    ):
        missing = [str(one) for one in wanted if one not in found]
        if missing:
            raise NotFound(f"no such {noun}: {', '.join(missing)}")


def _storage(row: sa.Row[Any], owner_id: int, default: Mapping[str, Any] | None) -> Any:
    """The storage section as a task of that owner may use it: in those of others, keys are hidden that are
    not everybody's, because the user who starts a task decides what its process does."""
    if row.storage is None or row.owner_id == owner_id:
        return row.storage
    whole = {"checkpoint_storage": row.storage}
    return masked_for_others(whole, default or {})["checkpoint_storage"]


def _inherit(config: dict[str, Any], rows: Sequence[sa.Row[Any]], owner_id: int) -> None:
    mounts = {mount["container_path"]: mount for mount in config["bind_mounts"]}
    variables: dict[str, list[str]] = {"cpu": [], "cuda": [], "rocm": []}
    for row in rows:
        for mount in row.bind_mounts or ():
            mounts.setdefault(mount["container_path"], mount)
        storage = row.storage or {}
        if storage.get("type") == "shared_fs":
            # In a container it is where its configuration says it is.
            path = storage["host_path"]
            mounts.setdefault(
                path,
                {
                    "host_path": path,
                    "container_path": path,
                    "read_only": True,
                    "propagation": storage.get("propagation") or "rprivate",
                },
            )
        if row.owner_id == owner_id:
            for slot_type, found in variables.items():
                found.extend(variables_of(row.environment or {}, slot_type))
    config["bind_mounts"] = list(mounts.values())
    own = config["environment"]
    merged = {
        slot_type: list(dict.fromkeys([*found, *variables_of(own, slot_type)]))
        for slot_type, found in variables.items()
    }
    if any(variables.values()):
        config["environment"] = {**own, "environment_variables": merged}


async def sources(
    conn: AsyncConnection, data: Mapping[str, Any], owner_id: int, settings: Settings
) -> list[dict[str, Any]]:
    """The sources that a TensorBoard copies: ``name``, ``storage``, ``key`` in it, ``path`` of the copies,
    and whether all data has come (``ended``). Deleted experiments are left out."""
    found = []
    for row in await _rows(conn, data):
        path = f"experiment/{row.experiment_id}"
        if row.trial_id is not None:
            if row.experiment_id in data["experiment_ids"]:
                continue
            path = f"{path}/trial/{row.trial_id}"
        found.append(
            {
                "name": f"experiment {row.experiment_id}"
                if row.trial_id is None
                else f"trial {row.trial_id}",
                "storage": _storage(row, owner_id, settings.checkpoint_storage),
                "key": f"{settings.cluster_id}/tensorboard/{path}",
                "path": path,
                "ended": row.state in states.TERMINAL,
            }
        )
    return found
