"""The reasons why requests wait, in words."""

from __future__ import annotations

from determined_service.base.spread import Spread
from determined_service.scheduling.reasons import (
    AgentsBusy,
    Behind,
    ExcludedEverywhere,
    Fragmented,
    GroupAtLimit,
    NoAgent,
    NotWhole,
    SlotsComing,
    TooFewFree,
    TooWide,
)
from determined_service.scheduling.scheduler import Waiting
from determined_service.scheduling.snapshot import Request


def in_words(waiting: Waiting) -> str:
    """What the request wants, and why it has not got it."""
    request = waiting.request
    wanted = f"wants {_count(request.slots, 'slot')} of resource pool {request.pool!r}"
    match waiting.reason:
        case NoAgent():
            return f"{wanted}, which has no agent that is alive and enabled"
        case ExcludedEverywhere(agents):
            every = "the pool's only agent" if agents == 1 else f"all {agents} agents of the pool"
            return f"{wanted}; log policies exclude it from {every}"
        case TooWide(widest):
            allowed = " that log policies allow" if request.excluded else ""
            widest_one = f"whose widest agent{allowed} has {_count(widest, 'enabled slot')}"
            return f"{wanted}, {widest_one}: {_nowhere(request)}"
        case GroupAtLimit(used, limit):
            held = f"its experiment holds {used} of the {_count(limit, 'slot')}"
            return f"{wanted}; {held} that resources.max_slots allows"
        case TooFewFree(free, total):
            return f"{wanted}: {_free(free, total)}"
        case Fragmented(free, total, most):
            return f"{wanted}: {_free(free, total)}, but at most {most} on one agent"
        case NotWhole(free, total, whole):
            equal = " of equal size" if request.spread is Spread.EVEN else ""
            needs = f"wider than every agent, it needs whole agents{equal}, and those that are free"
            return f"{wanted}: {_free(free, total)}; {needs} have {whole} slots together"
        case Behind(ahead, first, free, total):
            words = f"{wanted}: {_free(free, total)}, {ahead} ahead of it in the queue"
            if free < request.slots:
                return words
            first_wants = f"the first of which wants {_count(first.slots, 'slot')}"
            return f"{words}, {first_wants} and does not fit yet"
        case SlotsComing(_, _, coming):
            held = "slot, which is" if coming == 1 else "slots, which are"
            names, many = _agents(waiting.reason)
            frees = "free" if many else "frees"
            return f"{wanted}: {names} {frees} {coming} {held} held by what was asked to stop"
        case AgentsBusy(agents, limit):
            each = "the pool's only agent" if agents == 1 else f"each of the pool's {agents} agents"
            return f"{wanted}; {each} runs {limit} allocations without slots, the most that it may"


def in_short(waiting: Waiting, jobs_ahead: int) -> str:
    """As :func:`in_words`, for a line in a list. ``jobs_ahead``: jobs that are served before this one."""
    request = waiting.request
    wanted = f"resource pool {request.pool!r}: needs {request.slots}"
    ahead = f"; {_count(jobs_ahead, 'job')} ahead" if jobs_ahead else ""
    match waiting.reason:
        case NoAgent():
            return f"{wanted}, has no agent"
        case ExcludedEverywhere():
            return f"{wanted}, log policies exclude every agent"
        case TooWide(widest):
            return f"{wanted}, no agent has more than {widest}"
        case GroupAtLimit(used, limit):
            return f"{wanted}, its experiment has {used} of {limit} (max_slots)"
        case TooFewFree(free, _) | Behind(_, _, free, _):
            return f"{wanted}, {free} free{ahead}"
        case Fragmented(free, _, most):
            return f"{wanted}, {free} free, but at most {most} on one agent{ahead}"
        case NotWhole(free, _, whole):
            return f"{wanted}, {free} free, but at most {whole} on whole agents{ahead}"
        case SlotsComing():
            names, many = _agents(waiting.reason)
            return f"{wanted}, {names} {'are' if many else 'is'} freeing them"
        case AgentsBusy():
            return f"{wanted}, every agent runs as many tasks without slots as it may"


def _nowhere(request: Request) -> str:
    if request.spread is Spread.NONE:
        return "no agent can run it"
    equal = " of equal size" if request.spread is Spread.EVEN else ""
    return f"no agent can run it, nor do whole agents{equal} give {request.slots} slots"


NAMED = 5


def _agents(coming: SlotsComing) -> tuple[str, bool]:
    """The agents that free slots, in words, and whether there are several."""
    names = [coming.agent_id, *coming.others]
    if len(names) == 1:
        return f"agent {names[0]}", False
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"agents {', '.join(names[:NAMED])}{more}", True


def _free(free: int, total: int) -> str:
    return f"{free} of {total} are free"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
