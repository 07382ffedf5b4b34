"""The flow of a pipeline of experiments: it asks the service for one step after the other, and tells of them.

The service takes the steps, each in one transaction, and makes the experiments' runs subflows of this one
(docs/inside/workflows.md). So this process has nothing that a ``kill -9`` could lose: another one asks for
the next step.
"""

from __future__ import annotations

from typing import Any

import prefect
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed

from determined.common.wire import paths
from determined.common.wire.pipeline import AdvancePipeline, PipelineState, PipelineStep
from determined.common.wire.prefect import PIPELINE_FLOW

from .service import open_session

POLL_S = 30.0


@prefect.flow(
    name=PIPELINE_FLOW,
    description="A pipeline of experiments, each of which is a subflow.",
    persist_result=False,
)
def run_pipeline(pipeline_id: int) -> State[Any]:
    """Takes a pipeline that was submitted (`det pipeline run`) to its end."""
    logger = get_run_logger()
    path = paths.ADVANCE_PIPELINE.format(pipeline_id=pipeline_id)
    changes = -1
    known: dict[str, PipelineStep] = {}
    with open_session() as session:
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
                return _end(now)


def _in_words(step: PipelineStep) -> str:
    words = f"step {step.name} is {step.state}"
    if step.experiments:
        several = "s" if len(step.experiments) > 1 else ""
        words += f" (experiment{several} {', '.join(map(str, step.experiments))})"
    return words + (f": {step.reason}" if step.reason else "")


def _end(now: PipelineState) -> State[Any]:
    message = f"pipeline {now.pipeline_id} {now.state}: {now.reason}"
    get_run_logger().info("%s", message)
    if now.state == "FAILED":
        return Failed(message=message)
    if now.state == "CANCELED":
        return Cancelled(message=message)
    return Completed(message=message)
