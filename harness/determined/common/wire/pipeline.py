"""The messages between the flow of a pipeline and the service."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from determined.common.wire.message import Message, checked


@checked
@dataclass(frozen=True, slots=True)
class RunPipelineAgain(Message):
    """Somebody began the flow on Prefect's page: the pipeline ``again`` runs again, as a new one."""

    again: int
    flow_run_id: UUID


@checked
@dataclass(frozen=True, slots=True)
class AdvancePipeline(Message):
    """The flow asks for the next steps. It waits ``timeout_s`` while there have been ``changes`` changes."""

    changes: int = -1
    timeout_s: float = 0.0


@checked
@dataclass(frozen=True, slots=True)
class PipelineStep(Message):
    """``experiments``: of its items, as far as they have begun."""

    name: str
    state: str
    reason: str | None = None
    experiments: list[int] = field(default_factory=list)


@checked
@dataclass(frozen=True, slots=True)
class PipelineState(Message):
    """The state of the pipeline. ``open``: there is something left to do.

    ``run_token``: to whoever has begun it with a token for that alone, the token for the pipeline.
    """

    pipeline_id: int
    state: str
    open: bool
    changes: int
    reason: str | None = None
    steps: list[PipelineStep] = field(default_factory=list)
    run_token: str = ""
