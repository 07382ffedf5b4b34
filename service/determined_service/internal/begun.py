"""Runs that somebody started on Prefect's page: each begins the one thing that its token is good for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa

from determined.common.wire import serving
from determined.common.wire.pipeline import PipelineState
from determined.common.wire.serving import Served
from determined_service.base.errors import Forbidden
from determined_service.base.settings import Settings
from determined_service.pipelines import machine


def require_own(served: Served | None, flow_run_id: UUID) -> None:
    """Raises Forbidden for another run's id. ``served``: None for an agent, which serves everything."""
    if served is not None and served.id != str(flow_run_id):
        raise Forbidden(f"this token is good for {served} alone: send that run's id")


def state_of(served: Served | None, row: sa.Row[Any], settings: Settings) -> PipelineState:
    """The answer to the run that has begun a pipeline, with the token for that."""
    token = token_for(served, serving.PIPELINE, row.id, settings)
    is_open = row.state == machine.RUNNING
    return PipelineState(row.id, row.state, is_open, row.changes, row.reason, run_token=token)


def token_for(served: Served | None, kind: str, id: int, settings: Settings) -> str:
    """The token for the thing that the run has begun; an agent needs none."""
    if served is None:
        return ""
    return serving.sign(settings.agent_token.get_secret_value(), Served(kind, str(id)))
