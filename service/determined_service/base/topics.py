"""Topics that Postgres announces when a change commits; they wake long polls and loops."""

from __future__ import annotations

SCHEDULER = "scheduler"
"""Slots or requests for slots have changed."""
OUTBOX = "outbox"
"""There is something to tell Prefect."""
RECONCILER = "reconciler"
"""Makes the reconciler's next pass come soon."""
KEPT_RUNS = "kept runs"
"""A flow run that is kept alive is to be made, to be started again, or to get its end."""
DELETIONS = "deletions"
"""A deletion from checkpoint storage has ended."""
RETRAININGS = "retrainings"
"""A model is to be trained again, or a run of that has changed."""

PIPELINES = "pipelines"
"""A schedule of a pipeline has changed, or a pipeline has another state."""

SERVICE_LOG = "service log"
"""Of one process alone, which announces it to itself: there is a new line in its log."""

ROLES = "roles"
"""A group has other members or other roles; a single user's roles are announced as the user's."""

POLICIES = "policies"
"""A config policy was set or taken away."""

CLUSTER_MESSAGE = "cluster message"
"""The message of the cluster was set or cleared."""

CLUSTER = "cluster"
"""Another cluster configuration is in force."""


def experiment(experiment_id: int) -> str:
    """The experiment, or a shown part of it, has changed."""
    return f"experiment:{experiment_id}"


def trial(trial_id: int) -> str:
    """The trial has changed: its operation, its placement."""
    return f"trial:{trial_id}"


def task(task_id: str) -> str:
    """The task has changed, or asks for slots; other changes of a trial are announced as a trial's."""
    return f"task:{task_id}"


def allocation(allocation_id: str) -> str:
    """The allocation has changed: its state, its signals, its gang's rendezvous."""
    return f"allocation:{allocation_id}"


def search(experiment_id: int) -> str:
    """Wakes what drives the search: it has new events, another driver, another state."""
    return f"search:{experiment_id}"


def committed(experiment_id: int) -> str:
    """The search has answered events: trials that wait for their next operation may go on."""
    return f"committed:{experiment_id}"


def logs(task_id: str) -> str:
    """The task has printed something."""
    return f"logs:{task_id}"


def user(user_id: int) -> str:
    """The user's sessions, rights or state have changed."""
    return f"user:{user_id}"


def agent(agent_id: str) -> str:
    """There is something for the agent to start or to kill."""
    return f"agent:{agent_id}"


def pipeline(pipeline_id: int) -> str:
    """The pipeline has changed."""
    return f"pipeline:{pipeline_id}"


def pool(name: str) -> str:
    """Prefect has a run for agents of the resource pool."""
    return f"pool:{name}"
