"""The subject of a request: :class:`Principal`.

A user asks with a session's token, or an access token. An allocation (a training process) asks with its own
token, and only while the allocation lives: it reports for its own trial, submits in its owner's name, and
changes what its own task made, never as an administrator. An agent asks with the cluster's shared secret; it
acts as the user ``determined``, with an administrator's rights. A supervisor, and a Prefect run of one of our
flows, asks with a signed token (:mod:`determined.common.wire.serving`) for the one thing that it
serves; it reads nothing that users read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from determined.common.wire.serving import Served
from determined_service.access.permissions import Rights
from determined_service.base.errors import Conflict

USER = "user"
ALLOCATION = "allocation"
AGENT = "agent"
SERVING = "serving"


@dataclass(frozen=True, slots=True)
class AllocationRef:
    """The allocation whose token was sent."""

    id: str
    task_id: str
    experiment_id: int | None
    trial_id: int | None
    run_id: int


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run of an unmanaged trial; ``str()`` of it is the cookie's value."""

    trial_id: int
    run_id: int

    @classmethod
    def read(cls, text: str) -> RunRef | None:
        """The run that the text names; None if it names no run."""
        found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", text, re.ASCII)
        return None if found is None else cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.trial_id}.{self.run_id}"

    def superseded(self, run_count: int) -> Conflict | None:
        """The refusal of this run if it is not the trial's last one, ``run_count``."""
        if self.run_id >= run_count:
            return None
        return Conflict(
            f"run {self.run_id} of trial {self.trial_id} has ended: "
            f"its script has started again, as run {run_count}"
        )

    def require_last(self, run_count: int) -> None:
        """Raises Conflict when the script has started again: ``run_count`` is the trial's last run."""
        refusal = self.superseded(run_count)
        if refusal is not None:
            raise refusal


@dataclass(frozen=True, slots=True)
class Principal:
    """The subject of a request. For an allocation, ``user_id`` and ``username`` are those of its
    task's owner; ``active``: whether that owner has not been deactivated (of users, who could not ask then,
    always true). ``serves``: of a supervisor or a run, the one thing that it may ask about; ``user_id`` is
    then that of the agents' user, in whose name a run may submit an experiment.
    """

    kind: str  # USER, ALLOCATION, AGENT or SERVING
    user_id: int
    username: str
    admin: bool
    allocation: AllocationRef | None = None
    run: RunRef | None = None  # of an unmanaged trial's process
    active: bool = True
    serves: Served | None = None
    by_access_token: bool = False
    read_only: bool = False  # by an access token that was made so
    workspace_id: int | None = None  # the one that its access token is good for
    rights: Rights | None = None  # None: no roles hold for it, and it sees everything

    @property
    def is_platform(self) -> bool:
        """True for a process of this project that acts for no user: an agent, a supervisor or a run."""
        return self.kind in (AGENT, SERVING)

    def run_of(self, trial_id: int) -> RunRef | None:
        """The run of that unmanaged trial whose process asks, if the process named it."""
        return self.run if self.run is not None and self.run.trial_id == trial_id else None

    @property
    def task(self) -> str | None:
        """The task whose process asks; None: a user or an agent."""
        return None if self.allocation is None else self.allocation.task_id

    @property
    def sender(self) -> str | None:
        """The allocation whose process asks; None: a user or an agent."""
        return None if self.allocation is None else self.allocation.id


def ended(allocation_id: str) -> Conflict:
    """The refusal of every request with an ended allocation's token."""
    return Conflict(f"allocation {allocation_id} has ended")
