"""The flow that trains a model again: it asks the service for one step after the other, and tells of them.

The service takes the steps, each in one transaction (docs/inside/workflows.md); the user's code runs in
experiments of its own. So this process has nothing that a ``kill -9`` could lose: another one asks for the
next step.
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
from determined.common.wire.prefect import RETRAINING_FLOW
from determined.common.wire.retraining import (
    AdvanceRetraining,
    BeginRetraining,
    RetrainingState,
)

from .service import open_session

POLL_S = 30.0


@prefect.flow(
    name=RETRAINING_FLOW,
    description="Trains a model again, and promotes the new version if it is better.",
    persist_result=False,
)
def retrain(run_id: int | None = None, model: str | None = None, force: bool = False) -> State[Any]:
    """Takes a run to its end.

    Args:
        run_id: a run that the service has begun.
        model: instead of it, the name of a model: a run begins now.
        force: with ``model``, train although the data has not changed.
    """
    token = ""
    if run_id is None:
        with open_session() as session:
            begun = _begin(session, model, force)
        run_id, token = begun.run_id, begun.run_token
    with open_session(token) as session:
        return _follow(session, run_id)


def _begin(session: Session, model: str | None, force: bool) -> RetrainingState:
    if not model:
        raise ValueError("give the model that is to be trained again (its name)")
    flow_run_id = uuid.UUID(str(current_flow_run.get_id()))
    body = BeginRetraining(model, flow_run_id, force).to_json()
    answer = session.post(paths.RETRAINING_RUNS, json=body)
    return RetrainingState.from_json(answer)


def _follow(session: Session, run_id: int) -> State[Any]:
    logger = get_run_logger()
    path = paths.ADVANCE_RETRAINING.format(run_id=run_id)
    state, experiment_id = "", None
    while True:
        given = AdvanceRetraining(state, experiment_id, POLL_S)
        answer = session.post(path, json=given.to_json(), timeout=POLL_S + 60)
        now = RetrainingState.from_json(answer)
        if (now.state, now.experiment_id) != (state, experiment_id):
            waits = f": waits for experiment {now.experiment_id}" if now.experiment_id else ""
            logger.info("run %s is %s%s", run_id, now.state, waits)
        state, experiment_id = now.state, now.experiment_id
        if not now.open:
            return _end(run_id, now)


def _end(run_id: int, now: RetrainingState) -> State[Any]:
    message = f"retraining run {run_id} {now.state}: {now.reason}"
    get_run_logger().info("%s", message)
    if now.state == "FAILED":
        return Failed(message=message)
    if now.state == "CANCELED":
        return Cancelled(message=message)
    return Completed(message=message)
