"""Why a request waits: one class for each cause, with the numbers that belong to it.

A scheduler makes them where it decides; :mod:`~.wording` turns them into text. The numbers are
those after the decision's placements. They count only agents that the request may run on.
"""

from __future__ import annotations

from determined_service.base.records import record
from determined_service.scheduling.snapshot import Request


@record
class NoAgent:
    """The pool has no agent that may be given work."""


@record
class NoneAdmitted:
    """The request's constraint admits none of the pool's ``agents`` agents, whose labels are ``labels``."""

    agents: int
    labels: tuple[str, ...]


@record
class ExcludedEverywhere:
    """The request must not run on any of the ``agents`` agents that the pool has, or that its constraint
    admits."""

    agents: int


@record
class TooWide:
    """No agent has as many enabled slots, free or not; the widest has ``widest``. It may not spread over
    several, or whole agents do not give what it wants."""

    widest: int


@record
class GroupAtLimit:
    """With this request its group would hold more than ``limit`` slots; it holds ``used``."""

    used: int
    limit: int


@record
class TooFewFree:
    """``free`` of ``total`` slots are free: fewer than the request wants."""

    free: int
    total: int


@record
class Fragmented:
    """``free`` of ``total`` slots are free, which would do, but at most ``most`` on one agent."""

    free: int
    total: int
    most: int


@record
class NotWhole:
    """Wider than every agent: ``free`` of ``total`` slots are free, which would do, but agents that are free
    as a whole, of the same size if they must be, have at most ``whole`` together."""

    free: int
    total: int
    whole: int


@record
class Behind:
    """Free slots are kept for ``first``, the first in line of those that may run on one of the same agents.

    ``ahead``: how many such requests of the pool are to be served before this one, ``first`` included.
    """

    ahead: int
    first: Request
    free: int
    total: int


@record
class SlotsComing:
    """``agent_id`` will have the slots, for a gang together with ``others``: ``free`` of them are free and
    kept for the request, ``coming`` are held by allocations that were asked to stop."""

    agent_id: str
    free: int
    coming: int
    others: tuple[str, ...] = ()


@record
class AgentsBusy:
    """A request for no slots: each of ``agents`` agents runs ``limit`` such allocations already."""

    agents: int
    limit: int


@record
class Unplaced:
    """It had its slots, and the agent's cluster had no room for it, as it says in ``words``. It rests for
    ``seconds`` more."""

    words: str
    seconds: float


Reason = (
    NoAgent
    | NoneAdmitted
    | ExcludedEverywhere
    | TooWide
    | GroupAtLimit
    | TooFewFree
    | Fragmented
    | NotWhole
    | Behind
    | SlotsComing
    | AgentsBusy
    | Unplaced
)
