"""What the flow that trains a model again says, and is told."""

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


@checked
@dataclass(frozen=True, slots=True)
class AdvanceRetraining(Message):
    """The flow asks for the next steps. It waits ``timeout_s`` while the run is in ``state`` and waits for
    the experiment ``experiment_id``."""

    state: str = ""
    experiment_id: int | None = None
    timeout_s: float = 0.0


@checked
@dataclass(frozen=True, slots=True)
class RetrainingState(Message):
    """Where the run is. ``open``: there is something left to do. ``experiment_id``: what it waits for.

    ``run_token``: to whoever has begun the run with a token for that alone, the token for the run.
    """

    run_id: int
    state: str
    open: bool
    reason: str | None = None
    experiment_id: int | None = None
    failed_step: str | None = None
    run_token: str = ""
