"""Our names in Prefect, which service, agents and flows must spell alike."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from determined.common.wire.kinds import GENERIC, TaskKind
from determined.common.wire.serving import RUN_TOKEN

EXPERIMENT_FLOW = "experiment"
TRIAL_FLOW = "trial"
DELETION_FLOW = "checkpoint-gc"
RETRAINING_FLOW = "retrain"
PIPELINE_FLOW = "pipeline"
TASK_FLOWS = (*(kind.value for kind in TaskKind), GENERIC)
"""Of the tasks that people launch, one for each kind."""

# A deployment has the name of its flow (prefect.yaml).
EXPERIMENT_DEPLOYMENT = f"{EXPERIMENT_FLOW}/{EXPERIMENT_FLOW}"
TRIAL_DEPLOYMENT = f"{TRIAL_FLOW}/{TRIAL_FLOW}"
DELETION_DEPLOYMENT = f"{DELETION_FLOW}/{DELETION_FLOW}"
RETRAINING_DEPLOYMENT = f"{RETRAINING_FLOW}/{RETRAINING_FLOW}"
PIPELINE_DEPLOYMENT = f"{PIPELINE_FLOW}/{PIPELINE_FLOW}"

EXPERIMENT_ENTRYPOINT = "determined_flows.experiment.run_experiment"
TRIAL_ENTRYPOINT = "determined_flows.trial.run_trial"
DELETION_ENTRYPOINT = "determined_flows.checkpoint_gc.delete_from_storage"
RETRAINING_ENTRYPOINT = "determined_flows.retrain.retrain"
PIPELINE_ENTRYPOINT = "determined_flows.pipeline.run_pipeline"

PREFECT_PASSWORD = "PREFECT_API_AUTH_STRING"
"""The variable with the password of Prefect's API: an administrator's right, for flow runs alone."""

AWAITING_SLOTS = "AwaitingSlots"
"""The state of a run (SCHEDULED by type) that waits for slots. Its name may go on with the reason, see
:func:`awaiting_slots`.
"""
FAR_FUTURE = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)
"""The time for which such a state, but the first one, is scheduled. Prefect hands out only runs whose time
has come, so no worker takes this run by itself.
"""
STATE_NAME_LENGTH = 80
"""Prefect's pages show the name of a state in one piece."""

# A state's type is upper case; its name, where it is Prefect's own, is the same word.
SCHEDULED = "Scheduled"
PENDING = "Pending"
RUNNING = "Running"
PAUSED = "Paused"
COMPLETED = "Completed"
CANCELLED = "Cancelled"
FAILED = "Failed"


def awaiting_slots(reason: str = "") -> str:
    """The name of the state of a run that waits for slots, with the reason."""
    name = f"{AWAITING_SLOTS}: {reason}" if reason else AWAITING_SLOTS
    return name if len(name) <= STATE_NAME_LENGTH else f"{name[: STATE_NAME_LENGTH - 1]}…"


def is_awaiting_slots(state_name: str) -> bool:
    """Whether a state of that name is one of :func:`awaiting_slots`."""
    return state_name == AWAITING_SLOTS or state_name.startswith(f"{AWAITING_SLOTS}: ")


def job_variables(token: str) -> dict[str, Any] | None:
    """Gives the process of one run its token, also where a stock worker starts it; None: it has none.

    Prefect keeps it with the run, for whoever has Prefect's password. An agent gives the same one.
    """
    return {"env": {RUN_TOKEN: token}} if token else None


def waiting_run(
    *,
    flow_id: UUID,
    deployment_id: UUID,
    work_pool: str | None,
    parameters: dict[str, Any],
    name: str,
    tags: Iterable[str],
    key: str,
    parent_task_run_id: UUID | None = None,
    token: str = "",
) -> dict[str, Any]:
    """The body of ``POST /flow_runs/`` that makes a run which waits for slots, once per ``key``, in the work
    pool ``work_pool``.

    It is scheduled for now, because Prefect's pages show and sort by the first time that a run was scheduled
    for. No worker takes it all the same: Prefect's query for them passes over runs whose policy says
    ``in_process``, as those have a process that looks after them (here the service and its agents).
    ``token``: see :func:`job_variables`.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat()
    return {
        "flow_id": str(flow_id),
        "deployment_id": str(deployment_id),
        "work_pool_name": work_pool,
        "parameters": parameters,
        "name": name,
        "tags": list(dict.fromkeys(tags)),
        "idempotency_key": key,
        "parent_task_run_id": None if parent_task_run_id is None else str(parent_task_run_id),
        "empirical_policy": {"retry_type": "in_process"},
        "job_variables": job_variables(token),
        "state": {
            "type": "SCHEDULED",
            "name": AWAITING_SLOTS,
            "state_details": {"scheduled_time": now},
        },
    }


def task_deployment(flow: str) -> str:
    """The deployment of a kind of task."""
    return f"{flow}/{flow}"


def experiment_tags(experiment_id: int, owner: str | None) -> list[str]:
    """The tags of the runs of an experiment and of its trials."""
    return [f"experiment-{experiment_id}", *([f"owner-{owner}"] if owner else [])]


def pipeline_tags(pipeline_id: int) -> list[str]:
    """The tags of the run of a pipeline and of the runs of its experiments."""
    return [f"pipeline-{pipeline_id}"]


WORKSPACE_TAG, PROJECT_TAG = "workspace:", "project:"


def place_tags(workspace: str, project: str = "") -> list[str]:
    """The tags of the runs in a workspace and its project. Those in Uncategorized have no such tags."""
    if workspace == "Uncategorized":
        return []
    return [f"{WORKSPACE_TAG}{workspace}", *([f"{PROJECT_TAG}{project}"] if project else [])]


def is_place_tag(tag: str) -> bool:
    """True for what :func:`place_tags` makes."""
    return tag.startswith((WORKSPACE_TAG, PROJECT_TAG))
