"""A notebook: JupyterLab, for its owner alone.

Its program is :mod:`determined.exec.notebook`. It keeps the files of its working directory in the cluster's
checkpoint storage, where :func:`files` says, so that another notebook can begin with them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import ClusterConfig, Quotas
from determined.common.wire.agents import JUPYTERLAB
from determined.common.wire.kinds import TaskKind
from determined.common.wire.legs import Port
from determined.expconf.tasks import NotebookConfig
from determined_registry.database.tables import tasks
from determined_service.base.bounds import Name
from determined_service.base.errors import Conflict, Forbidden, NotFound
from determined_service.base.settings import Settings
from determined_service.deleting.deletions import notebook_key
from determined_service.lifecycle.kinds.base import user_ports
from determined_service.lifecycle.kinds.launched import LaunchContext, LaunchedKind, LaunchFields
from determined_service.lifecycle.quotas import require_room
from determined_service.state import task_kinds

_PROGRAM = ["python3", "-m", "determined.exec.notebook"]


class NotebookFields(LaunchFields):
    """The fields that only notebooks have."""

    restore_id: Name | None = Field(
        default=None, description="Ours: the notebook with whose files it begins."
    )


class NotebookKind(LaunchedKind[NotebookFields]):
    """``det notebook``. ``data``: ``token``, without which JupyterLab lets nobody in, and ``restore_of``."""

    name, noun = TaskKind.NOTEBOOK.name, TaskKind.NOTEBOOK.value
    title = "Notebook"
    program = JUPYTERLAB
    config_class = NotebookConfig
    fields = NotebookFields
    # An open page alone is not use, and a notebook that computes is used without a page.
    visits_are_use = False

    def settle(self, config: dict[str, Any], cluster: ClusterConfig) -> None:
        config["entrypoint"] = _PROGRAM

    async def remember(
        self,
        conn: AsyncConnection,
        asked: NotebookFields,
        config: dict[str, Any],
        context: LaunchContext,
    ) -> dict[str, Any] | None:
        data: dict[str, Any] = {"token": secrets.token_urlsafe(32)}
        storage = context.default_storage or {}
        if storage.get("type") == "shared_fs":
            # For containers, which see no other directory of the machine.
            data["mount"] = {
                "host_path": storage["host_path"],
                "container_path": storage["host_path"],
                "propagation": storage.get("propagation") or "rprivate",
            }
        before = asked.restore_id
        if before:
            # A deletion of them waits, and then sees who needs them.
            chosen = (
                sa.select(tasks.c.owner_id, tasks.c.data)
                .where(tasks.c.id == before, tasks.c.kind == self.name)
                .with_for_update(read=True)
            )
            found = (await conn.execute(chosen)).first()
            if found is None:
                raise NotFound(f"notebook {before} does not exist")
            if found.owner_id != context.owner_id:
                raise Forbidden(f"only the owner of notebook {before} may begin with its files")
            if task_kinds.NOTEBOOK_MARK in (found.data or {}):
                raise Conflict(f"the files of notebook {before} were deleted")
            data["restore_of"] = before
        return data

    def idle_timeout_s(self, config: Mapping[str, Any], cluster: ClusterConfig) -> float | None:
        found = super().idle_timeout_s(config, cluster)
        return cluster.notebook_timeout if found is None else found

    def shown(self, row: sa.Row[Any], *, owns: bool) -> dict[str, Any]:
        token = (row.data or {}).get("token")
        query = f"?token={token}" if owns and token else ""
        return {"serviceAddress": f"/proxy/{row.id}/lab{query}"}

    def order(self, row: sa.Row[Any]) -> dict[str, Any]:
        order, data = super().order(row), row.data or {}
        config = dict(row.config)
        if data.get("mount"):
            config["bind_mounts"] = [*config["bind_mounts"], data["mount"]]
        return {
            **order,
            "config": config,
            "env": {
                "DET_NOTEBOOK_TOKEN": data["token"],
                "DET_NOTEBOOK_IDLE_TYPE": config["notebook_idle_type"],
            },
            "ports": [
                Port(
                    name="notebook",
                    env="NOTEBOOK_PORT",
                    default=True,
                    keep_prefix=True,
                    ready_path=f"/proxy/{row.task_id}/api",
                ),
                *user_ports(row.config.get("environment") or {}, default=False),
            ],
        }


async def note_kept(conn: AsyncConnection, task_id: str, size: int, quotas: Quotas) -> None:
    """The notebook is about to keep files of ``size`` bytes, all together. Raises NotFound; OverQuota, unless
    they are fewer than before."""
    chosen = tasks.c.id == task_id, tasks.c.kind == TaskKind.NOTEBOOK.name
    locked = sa.select(tasks.c.owner_id, tasks.c.kept_bytes).where(*chosen)
    row = (await conn.execute(locked.with_for_update(key_share=True))).first()
    if row is None:
        raise NotFound(f"notebook {task_id} does not exist")
    await conn.execute(sa.update(tasks).where(*chosen).values(kept_bytes=size))
    if size > (row.kept_bytes or 0):
        await require_room(conn, quotas, row.owner_id, "notebook_file_bytes")


def files(row: sa.Row[Any], settings: Settings) -> dict[str, Any]:
    """The storage of a notebook's files: ``storage``, ``key`` in it, and ``restore``, the key of the files to
    start with. Empty if the user's own directory is the working directory."""
    if row.config.get("work_dir") is not None or settings.checkpoint_storage is None:
        return {"storage": None, "key": "", "restore": ""}
    before = (row.data or {}).get("restore_of")
    return {
        "storage": settings.checkpoint_storage,
        "key": notebook_key(str(settings.cluster_id), row.id),
        "restore": notebook_key(str(settings.cluster_id), before) if before else "",
    }
