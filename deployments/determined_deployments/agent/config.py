"""Settings of an agent: one JSON file, named by ``DET_AGENT_CONFIG``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from determined.common.wire import agents

CONFIG_VARIABLE = "DET_AGENT_CONFIG"


class Slot(BaseModel):
    """A slot: ``device`` is a GPU's uuid, or ``"cpu"``."""

    id: int
    device: str = "cpu"


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
