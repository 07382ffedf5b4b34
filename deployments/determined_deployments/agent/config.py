"""Settings of an agent: one JSON file, named by ``DET_AGENT_CONFIG``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from determined.common.wire import agents
from determined.common.wire.legs import LegSpec

CONFIG_VARIABLE = "DET_AGENT_CONFIG"


class Slot(BaseModel):
    """A slot: ``device`` is a GPU's uuid, or ``"cpu"``."""

    id: int
    device: str = "cpu"


class DefaultTask(BaseModel):
    """``security.default_task``, as in Determined's master.yaml: the account of tasks whose owner has none.

    Either number or name is enough; both must agree with the machine's accounts. Without a group: the
    account's own.
    """

    model_config = ConfigDict(extra="forbid")

    user: str | None = None
    uid: int | None = Field(default=None, ge=0)
    group: str | None = None
    gid: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _names_a_user(self) -> DefaultTask:
        if self.user is None and self.uid is None:
            raise ValueError("give user or uid: a group alone names nobody")
        return self


class Security(BaseModel):
    """``security``: as whom tasks run (docs/security.md)."""

    model_config = ConfigDict(extra="forbid")

    default_task: DefaultTask | None = None
    """None: tasks without an account of their owner's run as the agent itself."""
    allow_root: bool = False
    """Whether a task may run as root because an account says so."""


class AgentConfig(BaseModel):
    """What one agent process needs to know; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")

    agent_id: str
    resource_pool: str = "default"
    slots: int | list[int] | list[Slot] = Field(union_mode="left_to_right")
    """The number of slots, their ids, or slots with their devices."""
    slot_type: Literal["cpu", "cuda"] = "cpu"
    launcher: str = "fork_server"
    """The launcher that starts jobs: a name of ``launchers.built_in``, or ``module:Class`` of a Launcher."""
    master_url: str
    """The service, ``http://host:port``."""
    agent_token: SecretStr
    prefect_api_url: str | None = None
    """Prefect's API, ``http://host:port/api``. None: the agent runs trials only."""
    prefect_auth: SecretStr | None = None
    """``user:password`` of Prefect's API."""
    work_dir: Path
    """Scratch space: working directories of trials, model definitions, records of processes."""
    checkpoint_dir: Path | None = None
    """The cluster's own checkpoint storage, if it is a directory of this machine: opened to the accounts of
    tasks (mode 1777) when the first runs that is not the agent's."""
    security: Security = Field(default_factory=Security)

    @classmethod
    def load(cls) -> AgentConfig:
        """Reads the file named by ``DET_AGENT_CONFIG``. Raises pydantic.ValidationError."""
        path = os.environ.get(CONFIG_VARIABLE)
        if not path:
            raise SystemExit(f"{CONFIG_VARIABLE} must name the agent's settings file (JSON)")
        return cls.model_validate_json(Path(path).read_text())

    def slot_list(self) -> list[Slot]:
        """The slots, one by one."""
        if isinstance(self.slots, int):
            return [Slot(id=number) for number in range(self.slots)]
        return [Slot(id=slot) if isinstance(slot, int) else slot for slot in self.slots]

    def security_of_tasks(self) -> dict[str, Any]:
        """What supervisors need of it, as arguments of ``Place`` in JSON."""
        task = self.security.default_task
        return {
            "default_task": task.model_dump() if task else None,
            "allow_root": self.security.allow_root,
            "checkpoint_dir": str(self.checkpoint_dir) if self.checkpoint_dir else None,
        }

    def may_share(self, spec: LegSpec) -> bool:
        """Whether the leg's processes are the agent's own, so that it may prepare things with the user's
        environment variables, and hand memory on."""
        return spec.agent_user is None and self.security.default_task is None

    def device_uuids(self) -> dict[int, str]:
        """Slot id to device uuid, for slots that name one."""
        return {slot.id: slot.device for slot in self.slot_list() if slot.device != "cpu"}

    def devices(self) -> list[agents.Slot]:
        """The slots as the service is told of them."""
        return [
            agents.Slot(
                slot.id,
                agents.Device(self.slot_type, "" if slot.device == "cpu" else slot.device),
            )
            for slot in self.slot_list()
        ]
