"""The flow of a pipeline of experiments: it asks the service for one step after the other, and tells of them.

The service takes the steps, each in one transaction, and makes the experiments' runs subflows of this one
(docs/inside/workflows.md). So this process has nothing that a ``kill -9`` could lose: another one asks for
the next step.
"""

from __future__ import annotations

import uuid
from typing import Any

import prefect
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run as current_flow_run
from prefect.states import Cancelled, Completed, Failed

from determined.common.api import Session
from determined.common.wire import paths
from determined.common.wire.pipeline import (
    AdvancePipeline,
    PipelineState,
    PipelineStep,
    RunPipelineAgain,
)
from determined.common.wire.prefect import PIPELINE_FLOW

from .service import open_session

POLL_S = 30.0


@prefect.flow(
    name=PIPELINE_FLOW,
    description="A pipeline of experiments, each of which is a subflow.",
    persist_result=False,
)
def run_pipeline(pipeline_id: int | None = None, again: int | None = None) -> State[Any]:
    """Takes a pipeline to its end.

    Args:
        pipeline_id: one that was submitted (`det pipeline run`).
        again: instead of it, the number of a pipeline that runs again now, as a new one.
    """
    token = ""
    if pipeline_id is None:
        with open_session() as session:
            begun = _begin(session, again)
        pipeline_id, token = begun.pipeline_id, begun.run_token
    with open_session(token) as session:
        return follow(session, pipeline_id)


def _begin(session: Session, again: int | None) -> PipelineState:
    if again is None:
        raise ValueError("give the number of the pipeline that is to run again (again)")
    flow_run_id = uuid.UUID(str(current_flow_run.get_id()))
    body = RunPipelineAgain(again, flow_run_id).to_json()
    return PipelineState.from_json(session.post(paths.PIPELINES, json=body))


def follow(session: Session, pipeline_id: int, *, noun: str = "pipeline") -> State[Any]:
    """Takes the pipeline to its end. ``noun``: empty if the reason of its end says whose end that is."""
    logger = get_run_logger()
    path = paths.ADVANCE_PIPELINE.format(pipeline_id=pipeline_id)
    changes = -1
    known: dict[str, PipelineStep] = {}
    while True:
        given = AdvancePipeline(changes, POLL_S)
        answer = session.post(path, json=given.to_json(), timeout=POLL_S + 120)
        now = PipelineState.from_json(answer)
        changes = now.changes
        for step in now.steps:
            if known.get(step.name) != step:
                logger.info("%s", _in_words(step))
                known[step.name] = step
        if not now.open:
            return _end(now, noun)


def _in_words(step: PipelineStep) -> str:
    words = f"step {step.name} is {step.state}"
    if step.experiments:
        several = "s" if len(step.experiments) > 1 else ""
        words += f" (experiment{several} {', '.join(map(str, step.experiments))})"
    return words + (f": {step.reason}" if step.reason else "")


def _end(now: PipelineState, noun: str) -> State[Any]:
    message = now.reason or now.state
    if noun:
        message = f"{noun} {now.pipeline_id} {now.state}: {now.reason}"
    get_run_logger().info("%s", message)
    if now.state == "FAILED":
        return Failed(message=message)
    if now.state == "CANCELED":
        return Cancelled(message=message)
    return Completed(message=message)
