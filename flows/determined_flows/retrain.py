"""The flow that trains a model again: a pipeline of the steps check, train, evaluate and promote.

It goes as any other pipeline's does (:mod:`.pipeline`); when it was begun on Prefect's page it has the
service make that pipeline first.
"""

from __future__ import annotations

import uuid
from typing import Any

import prefect
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as current_flow_run

from determined.common.api import Session
from determined.common.wire import paths
from determined.common.wire.pipeline import PipelineState
from determined.common.wire.prefect import RETRAINING_FLOW
from determined.common.wire.retraining import BeginRetraining

from .pipeline import follow
from .service import open_session


@prefect.flow(
    name=RETRAINING_FLOW,
    description="Trains a model again, and promotes the new version if it is better.",
    persist_result=False,
)
def retrain(
    pipeline_id: int | None = None, model: str | None = None, force: bool = False
) -> State[Any]:
    """Takes a run to its end.

    Args:
        pipeline_id: of a run that the service has begun.
        model: instead of it, the name of a model: a run begins now.
        force: with ``model``, train although the data has not changed.
    """
    token = ""
    if pipeline_id is None:
        with open_session() as session:
            begun = _begin(session, model, force)
        pipeline_id, token = begun.pipeline_id, begun.run_token
    with open_session(token) as session:
        return follow(session, pipeline_id, noun="")


def _begin(session: Session, model: str | None, force: bool) -> PipelineState:
    if not model:
        raise ValueError("give the model that is to be trained again (its name)")
    flow_run_id = uuid.UUID(str(current_flow_run.get_id()))
    body = BeginRetraining(model, flow_run_id, force).to_json()
    return PipelineState.from_json(session.post(paths.RETRAINING_RUNS, json=body))
