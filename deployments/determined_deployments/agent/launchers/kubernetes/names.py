"""Names of the Kubernetes objects of a leg."""

from __future__ import annotations

import hashlib
import re

from determined.expconf.pod_spec import OUR_SECRETS

PREFIX, (_ORDER, _PULL) = OUR_SECRETS
"""No ``pod_spec`` may use a Secret with such a name."""
LONGEST = 50
"""Leaves room for the endings below, and for the one of a Job's pod, within 63 characters."""


def job(leg_name: str, agent_id: str, cluster_id: str) -> str:
    """The name of a leg's Job: the same at each try, and no other leg's in the namespace, which several
    agents and clusters may share."""
    digest = hashlib.sha256("\0".join((cluster_id, agent_id, leg_name)).encode()).hexdigest()[:12]
    slug = re.sub("[^a-z0-9]+", "-", leg_name.lower()).strip("-")
    head = f"{PREFIX}{slug}"[: LONGEST - len(digest) - 1].rstrip("-")
    return f"{head}-{digest}"


def order(job_name: str) -> str:
    """The Secret with the supervisor's order."""
    return f"{job_name}{_ORDER}"


def registry(job_name: str) -> str:
    """The Secret with the user's credentials for the image's registry."""
    return f"{job_name}{_PULL}"


def gang(allocation_id: str, agent_id: str, cluster_id: str) -> str:
    """The group of a gang's pods, for Volcano and for the coscheduling plug-in."""
    return job(allocation_id, agent_id, cluster_id)
