"""Reads from a Prefect run's parameters what it serves: its token is for that alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from determined.common.wire import serving
from determined.common.wire.prefect import (
    DELETION_ENTRYPOINT,
    EXPERIMENT_ENTRYPOINT,
    PIPELINE_ENTRYPOINT,
    RETRAINING_ENTRYPOINT,
    TRIAL_ENTRYPOINT,
)
from determined.common.wire.serving import Served

_BY_ID = {
    EXPERIMENT_ENTRYPOINT: ("experiment_id", serving.EXPERIMENT),
    TRIAL_ENTRYPOINT: ("trial_id", serving.TRIAL),
    PIPELINE_ENTRYPOINT: ("pipeline_id", serving.PIPELINE),
    RETRAINING_ENTRYPOINT: ("pipeline_id", serving.PIPELINE),
    DELETION_ENTRYPOINT: ("deletion_id", serving.DELETION),
}
"""By a flow's entrypoint, the parameter that names what the run serves, and of which kind that is."""
_NEW = {
    EXPERIMENT_ENTRYPOINT: serving.NEW_EXPERIMENT,
    RETRAINING_ENTRYPOINT: serving.NEW_RETRAINING,
    PIPELINE_ENTRYPOINT: serving.NEW_PIPELINE,
}
"""Flows that make what they serve, if no parameter names it."""


def served_by(
    entrypoint: str | None, parameters: Mapping[str, Any], flow_run_id: UUID
) -> Served | None:
    """What the run serves; None for a flow that is not ours, for one that asks the service nothing, and where
    the parameter is not a number.

    ``entrypoint``: ``module.function`` of one of our flows, or None.
    """
    if entrypoint not in _BY_ID:
        return None
    parameter, kind = _BY_ID[entrypoint]
    given = parameters.get(parameter)
    if given is None:
        new = _NEW.get(entrypoint)
        return None if new is None else Served(new, str(flow_run_id))
    try:
        return Served(kind, str(int(given)))
    except (TypeError, ValueError):
        return None  # the flow's own check of its parameters says so
