"""Our names in Prefect, which service, agents and flows must spell alike."""

from __future__ import annotations

import datetime

EXPERIMENT_FLOW = "experiment"
TRIAL_FLOW = "trial"
DELETION_FLOW = "checkpoint-gc"
RETRAINING_FLOW = "retrain"
PIPELINE_FLOW = "pipeline"
TASK_FLOWS = ("command", "notebook", "shell", "tensorboard", "generic")
"""Of the tasks that people launch, one for each kind."""

# A deployment has the name of its flow (prefect.yaml).
EXPERIMENT_DEPLOYMENT = f"{EXPERIMENT_FLOW}/{EXPERIMENT_FLOW}"
TRIAL_DEPLOYMENT = f"{TRIAL_FLOW}/{TRIAL_FLOW}"
DELETION_DEPLOYMENT = f"{DELETION_FLOW}/{DELETION_FLOW}"
RETRAINING_DEPLOYMENT = f"{RETRAINING_FLOW}/{RETRAINING_FLOW}"
PIPELINE_DEPLOYMENT = f"{PIPELINE_FLOW}/{PIPELINE_FLOW}"

EXPERIMENT_ENTRYPOINT = "determined_flows.experiment.run_experiment"

AWAITING_SLOTS = "AwaitingSlots"
"""The state of a trial's run (SCHEDULED by type) that waits for slots."""
FAR_FUTURE = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)
"""The time for which such a run is scheduled. Prefect hands out only runs whose time has come, so no worker
takes this run by itself, and Prefect's UI shows it in the queue.
"""

# A state's type is upper case; its name, where it is Prefect's own, is the same word.
SCHEDULED = "Scheduled"
PENDING = "Pending"
RUNNING = "Running"
PAUSED = "Paused"
COMPLETED = "Completed"
CANCELLED = "Cancelled"
FAILED = "Failed"


def task_deployment(flow: str) -> str:
    """The deployment of a kind of task."""
    return f"{flow}/{flow}"


def experiment_tags(experiment_id: int, owner: str | None) -> list[str]:
    """What the runs of an experiment and of its trials are found by."""
    return [f"experiment-{experiment_id}", *([f"owner-{owner}"] if owner else [])]


def pipeline_tags(pipeline_id: int) -> list[str]:
    """What the run of a pipeline and those of its experiments are found by."""
    return [f"pipeline-{pipeline_id}"]
