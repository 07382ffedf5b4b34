"""By what the agent's settings ``limits`` hold on this machine: found out once, when it starts."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from determined_deployments.agent.config import AgentConfig
from determined_tasks import leg_groups
from determined_tasks.leg_groups import GroupsUnavailable
from determined_tasks.limits import OPEN_FILES, Limits

logger = logging.getLogger(__name__)


def prepare(config: AgentConfig) -> Limits:
    """The limits of each leg; says in the agent's log by what they hold. Runs a program: for a thread."""
    given = config.limits
    limits = Limits(
        given.processes, int(given.memory), given.open_files or OPEN_FILES, cpus=given.cpus
    )
    words = (
        f"each leg has at most {limits.processes} processes and threads, {int(given.memory) >> 20} MiB of"
        f" memory, {limits.open_files} open files per process"
    )
    try:
        homes = leg_groups.homes(home_name(config.work_dir))
    except GroupsUnavailable as error:
        by = "processes are not limited for root" if os.geteuid() == 0 else "processes by account"
        logger.warning(
            "%s; without control groups (%s): memory is looked at each second, %s, processor time is "
            "not limited (docs/operate/agent.md)",
            words,
            error,
            by,
        )
        return limits
    cpu = "processor time is divided by slots"
    if limits.cpus is not None:
        cpu += f", and a leg computes on {limits.cpus:g} processors at most"
    if not leg_groups.share_cpu(homes):
        cpu = "processor time is not limited: no control group for it can be made"
    logger.info("%s; by control groups in %s; %s", words, ", ".join(map(str, homes)), cpu)
    return dataclasses.replace(limits, homes=tuple(map(str, homes)))


def home_name(work_dir: Path) -> str:
    """Of the folder that an agent's legs have their control groups in: no other agent's on this machine."""
    return f"determined-{hashlib.sha256(str(work_dir).encode()).hexdigest()[:12]}"


def sweep(limits: Limits, legs: Iterable[str]) -> None:
    """Ends what legs left that nobody knows any more. ``legs``: those that are known."""
    for name in leg_groups.sweep(map(Path, limits.homes), legs):
        logger.warning("ended what was left of %s", name)


def leave(limits: Limits) -> None:
    """Removes the agent's own folders, if no leg goes on."""
    for home in limits.homes:
        with contextlib.suppress(OSError):
            Path(home).rmdir()
