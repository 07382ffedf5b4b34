"""Tasks that people launch and end: :class:`LaunchedKind`, the base of commands, notebooks, shells,
TensorBoards and generic tasks.

Launch, list, kill, priority, configuration, logs, the job queue and the run in Prefect are the same for all
of them, in the API and in `det`. A kind says in its own module what is different: see the class's attributes
and methods. One that can be launched has ``launches``; the route of its launch comes by itself
(:mod:`determined_service.public.launched`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection
from typing_extensions import TypeVar

from determined.common.cluster_config import ClusterConfig
from determined.expconf import durations
from determined.expconf.tasks import TaskConfig
from determined_service.base.bodies import UpstreamBody
from determined_service.lifecycle.kinds.base import SlotKind, user_ports, variables_of
from determined_service.state.change import Change

_BEGIN_REST = sa.text(
    "UPDATE tasks SET idle_since = now() WHERE id = :id AND idle_timeout_s IS NOT NULL"
)


def _program(entrypoint: str | list[str] | None) -> str | list[str]:
    """A single word is text for a shell, as in Determined: people write ``det cmd run 'env | grep X'``.
    Without any, a program that does nothing: the startup hooks run, which is all that was asked for."""
    if not entrypoint:
        return "true"
    if isinstance(entrypoint, list) and len(entrypoint) == 1:
        return entrypoint[0]
    return entrypoint


class LaunchFields(UpstreamBody):
    """Fields of a launch's request that only one kind of task has; a kind that has some derives a class."""


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What a kind may need to know of a launch besides its own fields."""

    owner_id: int
    default_storage: Mapping[str, Any] | None
    """The cluster's checkpoint storage."""
    given: Mapping[str, Any]
    """The configuration as it was written, before it was completed."""


F = TypeVar("F", bound=LaunchFields, default=LaunchFields)


class LaunchedKind(SlotKind, Generic[F]):
    """A kind of task that a user launches with a configuration, and perhaps with files. ``F``: the class of
    :attr:`fields`."""

    noun: ClassVar[str]
    """In addresses and JSON (``command``: ``/api/v1/commands``, ``{"command": …}``), and the name of its
    deployment and flow in Prefect."""

    title: ClassVar[str]
    """The beginning of the default description."""

    config_class: ClassVar[type[TaskConfig]]

    fields: ClassVar[type[LaunchFields]] = LaunchFields
    """The fields of its launch that other kinds lack."""

    launches: ClassVar[bool] = True
    """True if it can be launched by its own route, ``POST /api/v1/<plural>``."""

    needs_entrypoint: ClassVar[bool] = True
    """True if its configuration must have an entrypoint; False: without one, only its startup hooks run."""

    program: ClassVar[str | None] = None
    """The program that it needs besides the platform, by its name in :mod:`determined.common.wire.agents`."""

    visits_are_use: ClassVar[bool] = True
    """True if a visit through the proxy counts as use; False: its own process reports use."""

    @property
    def plural(self) -> str:
        return f"{self.noun}s"

    def settle(self, config: dict[str, Any], cluster: ClusterConfig) -> None:
        """Has the last word on the complete configuration of a new task: sets its entrypoint, say, or raises
        BadRequest. It may be called for a preview."""

    async def remember(
        self, conn: AsyncConnection, asked: F, config: dict[str, Any], context: LaunchContext
    ) -> dict[str, Any] | None:
        """The data stored for a new task beside its configuration (``tasks.data``): keys, the experiments
        that it shows. ``config`` is complete and may be changed. Raises BadRequest, NotFound."""
        return None

    def idle_timeout_s(self, config: Mapping[str, Any], cluster: ClusterConfig) -> float | None:
        """After how long without use it ends; None: never. Its use is reported by
        :func:`determined_service.lifecycle.idle.note_use`."""
        given = config.get("idle_timeout")
        return None if given is None else durations.seconds(given)

    def is_ready(self, allocation: sa.Row[Any]) -> bool:
        """Once all its ports can be reached."""
        return super().is_ready(allocation) and bool(getattr(allocation, "ports_ready", True))

    async def started(self, change: Change, leg: sa.Row[Any]) -> None:
        """From now on it can be idle."""
        await super().started(change, leg)
        if self.visits_are_use:
            await change.conn.execute(_BEGIN_REST, {"id": leg.task_id})

    def shown(self, row: sa.Row[Any], *, owns: bool) -> dict[str, Any]:
        """Further fields of its JSON. ``row``: the task's, with ``data``; ``owns``: its owner asks, or an
        administrator, and no process of a task."""
        return {}

    def secrets(self, row: sa.Row[Any]) -> dict[str, Any]:
        """Further fields for its owner alone, where one task is asked for: not for administrators, nor for
        processes of tasks."""
        return {}

    def order(self, row: sa.Row[Any]) -> dict[str, Any]:
        """Override this in a kind that starts something else than its ``entrypoint``, or with more variables
        (``env``). One that serves ports adds the user's (:func:`user_ports`) to its own."""
        return {
            "entrypoint": _program(row.config["entrypoint"]),
            "config": row.config,
            "model_def_hash": row.model_def_hash,
            "ports": user_ports(row.config.get("environment") or {}),
            "work_dir": row.config.get("work_dir"),
            "environment_variables": variables_of(
                row.config.get("environment") or {}, row.slot_type or "cpu"
            ),
        }
