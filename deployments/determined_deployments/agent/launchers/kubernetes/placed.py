"""A leg that runs in a pod, and what is to be done about it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

from determined.common.wire.legs import LegSpec, of_leg_id
from determined_deployments.agent.launchers.base import Exit, Job, Running
from determined_deployments.agent.launchers.kubernetes import ends, labels
from determined_deployments.agent.launchers.kubernetes.client import Json


@dataclass(eq=False)
class Placed(Running):
    """A leg and its Job, whose name is the identifier. ``uid``: the Job's; empty until it is made.

    ``nodes``: of its gang; 0: an agent before this one knew it. ``is_second``: another start of the leg has
    the Job. ``is_listed``: the watch has told of the Job. ``job``, ``pod``: as they were seen last.
    ``secrets``: the names of those that do not go with the Job yet. ``order``: how this agent has ended the
    leg. ``words``: what it waits for; ``node``: that of its pod, once there is one; ``leaving``: why somebody
    else ends its pod. ``stuck_since``: since when it waits for anything; ``gone_since``: since when it seems
    to have ended, while later news may say more.
    """

    allocation: str
    slot_ids: list[int]
    machine: str | None = None
    nodes: int = 0
    uid: str = ""
    is_second: bool = False
    is_listed: bool = False
    job: Json | None = None
    pod: Json | None = None
    secrets: list[str] = field(default_factory=list)
    order: Exit | None = None
    words: str | None = None
    node: str | None = None
    leaving: str | None = None
    stuck_since: float | None = None
    gone_since: float | None = None
    began: float = field(default_factory=time.monotonic)
    ended: asyncio.Future[Exit] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    busy: set[str] = field(default_factory=set)
    """The names of what is being done about it right now."""

    @classmethod
    def of(cls, job: Job, spec: LegSpec, name: str) -> Placed:
        return cls(
            "leg",
            job.id,
            name,
            job.note,
            spec.allocation_id,
            list(spec.slot_ids),
            spec.machine,
            spec.nodes,
        )

    @classmethod
    def adopted(cls, found: Json) -> Placed:
        """From the Job that an agent before this one has made. Raises KeyError and ValueError."""
        told = found["metadata"]["annotations"]
        leg_id = told[labels.LEG]
        leg = cls(
            "leg",
            leg_id,
            found["metadata"]["name"],
            json.loads(told.get(labels.NOTE) or "{}"),
            of_leg_id(leg_id)[0],
            json.loads(told.get(labels.SLOTS) or "[]"),
            told.get(labels.MACHINE),
        )
        leg.has(found)
        leg.is_listed = True
        return leg

    def has(self, job: Json) -> None:
        """The leg's Job exists."""
        self.job, self.uid = job, job["metadata"]["uid"]

    def saw(self, pod: Json) -> bool:
        """Takes news of a pod of the Job. False: it is a second one."""
        if self.pod is None or self.pod["metadata"]["uid"] == pod["metadata"]["uid"]:
            self.pod = pod
            return True
        return False

    def end(self, ended: Exit) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)
        self.words = None

    @property
    def takes_slots(self) -> bool:
        return not self.ended.done() and not self.is_second

    @property
    def is_fenced(self) -> bool:
        """Whether no controller makes a pod of the Job any more."""
        return self.job is not None and (self.job.get("spec") or {}).get("parallelism") == 0

    @property
    def is_held(self) -> bool:
        """Whether its pod is held back for the rest of its gang."""
        gates = ((self.pod or {}).get("spec") or {}).get("schedulingGates") or ()
        return any(one.get("name") == labels.GATE for one in gates) or self.is_suspended

    @property
    def is_suspended(self) -> bool:
        return bool(self.job and (self.job.get("spec") or {}).get("suspend"))

    @property
    def has_started(self) -> bool:
        return ends.has_started(self.pod)
