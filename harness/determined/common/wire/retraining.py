"""The messages between the flow that trains a model again and the service."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from determined.common.wire.message import Message, checked


@checked
@dataclass(frozen=True, slots=True)
class BeginRetraining(Message):
    """A run that somebody began on Prefect's page. ``model``: its name or id."""

    model: str
    flow_run_id: UUID
    force: bool = False
