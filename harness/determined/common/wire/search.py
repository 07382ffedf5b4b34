"""Requests and commits of the flow that drives a search.

``determined_searchers`` reads and writes the JSON of events and operations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from determined.common.wire.message import Message, checked

NEVER_STOP = frozenset({"single", "random", "grid"})
"""Searchers whose trials all train to the end."""


class NoOperation(StrEnum):
    """Why a trial that asks for its next operation is told that there is none now."""

    OVER = "OVER"
    """Nothing will be asked of it any more: the searcher closed it, or it is being stopped."""
    DECIDED = "DECIDED"
    """The searcher has answered its last report, and has nothing for it now."""
    UNDECIDED = "UNDECIDED"
    """The searcher has not answered its last report within the time that a trial may wait."""
    RUNNER_WAITS = "RUNNER_WAITS"
    """The runner of its custom search waits for slots in the pool, so nobody will answer before."""


@checked
@dataclass(frozen=True, slots=True)
class Attachment(Message):
    """A new driver: its own id, and the Prefect run that it runs in."""

    driver: UUID
    flow_run_id: UUID | None = None


@checked
@dataclass(frozen=True, slots=True)
class TrialRef(Message):
    """The data that a trial's Prefect run is made from. ``run_token``: what the run shows the service if a
    stock worker of Prefect executes it; empty from a service of the release before."""

    trial_id: int
    request_id: str
    name: str = ""
    hparams: dict[str, Any] = field(default_factory=dict)
    resource_pool: str | None = None
    run_token: str = ""


@checked
@dataclass(frozen=True, slots=True)
class ExperimentFacts(Message):
    """The experiment whose search is driven."""

    id: int
    state: str
    config: dict[str, Any]
    reason: str | None = None
    name: str | None = None
    resource_pool: str | None = None
    flow_run_id: UUID | None = None
    owner: str | None = None


@checked
@dataclass(frozen=True, slots=True)
class Attached(Message):
    """All that a driver needs to continue where the last driver stopped.

    ``snapshot`` is the searcher after the event ``snapshot_event_id``, ``operations_digest`` of the
    operations since.
    """

    experiment: ExperimentFacts
    snapshot_event_id: int
    committed_event_id: int
    snapshot: dict[str, Any] | None = None
    operations_digest: str | None = None
    trials_without_run: list[TrialRef] = field(default_factory=list)


@checked
@dataclass(frozen=True, slots=True)
class Driven(Message):
    """The driver of a search, and how far the search is."""

    state: str
    committed_event_id: int
    last_event_id: int
    reason: str | None = None
    flow_run_id: UUID | None = None
    driver: UUID | None = None
    driver_seen_at: Any = None


@checked
@dataclass(frozen=True, slots=True)
class EventItem(Message):
    """An event and its number in the experiment's log."""

    id: int
    event: dict[str, Any]


@checked
@dataclass(frozen=True, slots=True)
class Events(Message):
    """The events that the driver has not seen yet, and the experiment's state."""

    state: str
    events: list[EventItem] = field(default_factory=list)
    reason: str | None = None
    ended: bool = False


@checked
@dataclass(frozen=True, slots=True)
class Followed(Message):
    """The same for a custom search: trials that have no Prefect run yet. Its events go to its own client."""

    state: str
    trials: list[TrialRef] = field(default_factory=list)
    reason: str | None = None
    ended: bool = False


@checked
@dataclass(frozen=True, slots=True)
class Commit(Message):
    """The searcher's answer to all events up to ``last_event_id`` (0: its first operations).

    If ``snapshot`` is left out, ``operations_digest`` covers all operations since the last snapshot.
    """

    driver: UUID
    last_event_id: int
    operations: list[dict[str, Any]]
    snapshot: dict[str, Any] | None = None
    operations_digest: str | None = None
    progress: float = 0.0


@checked
@dataclass(frozen=True, slots=True)
class Committed(Message):
    """The new trials, whose Prefect runs the driver makes next. ``duplicate``: this answer was committed
    before.
    """

    state: str
    trials: list[TrialRef] = field(default_factory=list)
    duplicate: bool = False


@checked
@dataclass(frozen=True, slots=True)
class SearchFailure(Message):
    """Why the searcher cannot go on."""

    driver: UUID
    error: str


@checked
@dataclass(frozen=True, slots=True)
class TrialRun(Message):
    """The trial's run in Prefect."""

    flow_run_id: UUID
