"""Labels and annotations of our Jobs and pods: by labels they are found, annotations hold the rest."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from determined.common.wire.legs import LegSpec

PREFIX = "determined-prefect.io/"

AGENT = PREFIX + "agent"
POOL = PREFIX + "pool"
CLUSTER = PREFIX + "cluster"
ALLOCATION = PREFIX + "allocation"
TASK = PREFIX + "task"
EXPERIMENT = PREFIX + "experiment"
TRIAL = PREFIX + "trial"
USER = PREFIX + "user"
NODE = PREFIX + "node"
NODES = PREFIX + "nodes"
"""Of gangs alone: the number of their nodes. Network policies let pods that have it reach each other."""
MANAGED_BY, OURS = "app.kubernetes.io/managed-by", "determined-prefect"
"""Of everything that an agent makes."""

WORKER = "prefect.io/worker-name"
"""Prefect's, of the Jobs of users' deployments."""

LEG = PREFIX + "leg"
"""Annotation: ``LegSpec.name`` as it is."""
NOTE = PREFIX + "note"
"""Annotation: the job's note, as JSON."""
SLOTS = PREFIX + "slots"
"""Annotation: the ids of the leg's slots, as a JSON list."""
MACHINE = PREFIX + "machine"
"""Annotation: the node that the scheduler thought of."""
NAME = PREFIX + "name"
"""Annotation for people: the name of the experiment, or the description of the task."""
GATE = PREFIX + "gang"
"""The scheduling gate of a gang's pods."""

LONGEST = 63
MOST_NAME_CHARS = 1000
_NOT_IN_VALUES = re.compile(r"[^A-Za-z0-9_.-]+")


def value(text: str) -> str:
    """``text`` as a label's value. Another text has another value, also where it must be changed."""
    found = _NOT_IN_VALUES.sub("-", text).strip("-_.")
    if found == text and len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    head = found[: LONGEST - len(digest) - 1].rstrip("-_.")
    return f"{head}-{digest}" if head else digest


def selector(agent_id: str) -> str:
    """Selects what the agent has made."""
    return f"{AGENT}={value(agent_id)}"


def selector_of_runs(agent_id: str) -> str:
    """Selects the Jobs of users' deployments that Prefect's side of the agent has made."""
    return f"{WORKER}={value(agent_id)}"


def of_leg(spec: LegSpec, agent_id: str) -> dict[str, str]:
    """The labels of a leg's Job, of its pod and its Secrets."""
    found = {
        MANAGED_BY: OURS,
        AGENT: value(agent_id),
        POOL: value(spec.resource_pool),
        CLUSTER: value(spec.cluster_id),
        ALLOCATION: value(spec.allocation_id),
        TASK: value(spec.task_id),
        USER: value(spec.owner),
        NODE: str(spec.node),
    }
    if spec.nodes > 1:
        found[NODES] = str(spec.nodes)
    if spec.experiment_id is not None:
        found[EXPERIMENT] = str(spec.experiment_id)
    if spec.trial_id is not None:
        found[TRIAL] = str(spec.trial_id)
    return found


def notes_of_leg(spec: LegSpec, note: dict[str, Any], machine: str | None) -> dict[str, str]:
    """The annotations of a leg's Job and of its pod."""
    found = {LEG: spec.name, NOTE: json.dumps(note), SLOTS: json.dumps(spec.slot_ids)}
    if machine is not None:
        found[MACHINE] = machine
    name = spec.config.get("name") or spec.config.get("description")
    if name:
        found[NAME] = str(name)[:MOST_NAME_CHARS]
    return found
