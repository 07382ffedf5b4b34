"""The reasons why requests wait, in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from determined.common.printable import counted
from determined_service.base.spread import Spread
from determined_service.scheduling.reasons import (
    AgentsBusy,
    Behind,
    ExcludedEverywhere,
    Fragmented,
    GroupAtLimit,
    NoAgent,
    NoneAdmitted,
    NotWhole,
    SlotsComing,
    TooFewFree,
    TooWide,
    Unplaced,
)
from determined_service.scheduling.scheduler import Waiting
from determined_service.scheduling.snapshot import Constraint, Request

NAMED = 8
"""How many agents, labels or values a sentence names."""


def in_words(waiting: Waiting) -> str:
    """What the request wants, and why it has not got it."""
    request = waiting.request
    wanted = f"wants {counted(request.slots, 'slot')} of resource pool {request.pool!r}"
    such = ""
    if request.constraint is not None:
        wanted, such = f"{wanted} on {admitted(request.constraint)}", "such "
    match waiting.reason:
        case NoAgent():
            joint = "; the pool" if request.constraint else ", which"
            start = f"det agent start --pool {shlex.quote(request.pool)}"
            return f"{wanted}{joint} has no agent that is alive and enabled (`{start}` starts one)"
        case NoneAdmitted(agents, labels):
            have = f"labels there: {listed(labels)}" if labels else "none of them has a label"
            those = "the pool's only agent is not one" if agents == 1 else "the pool has none"
            return f"{wanted}; {those} ({have})"
        case ExcludedEverywhere(agents):
            every = "the pool's only agent" if agents == 1 else f"all {agents} agents of the pool"
            if request.constraint is not None:
                every = "the only such agent" if agents == 1 else f"all {agents} such agents"
            return f"{wanted}; log policies exclude it from {every}"
        case TooWide(widest):
            allowed = " that log policies allow" if request.excluded else ""
            widest_one = f"widest {such}agent{allowed} has {counted(widest, 'enabled slot')}"
            joint = "; the" if request.constraint else ", whose"
            return f"{wanted}{joint} {widest_one}: {_nowhere(request)}"
        case GroupAtLimit(used, limit):
            held = f"its experiment holds {used} of the {counted(limit, 'slot')}"
            return f"{wanted}; {held} that resources.max_slots allows"
        case TooFewFree(free, total):
            return f"{wanted}: {_free(free, total)}"
        case Fragmented(free, total, most):
            return f"{wanted}: {_free(free, total)}, but at most {most} on one agent"
        case NotWhole(free, total, whole):
            equal = " of equal size" if request.spread is Spread.EVEN else ""
            needs = f"wider than every agent, it needs whole agents{equal}, and those that are free"
            return f"{wanted}: {_free(free, total)}; {needs} have {counted(whole, 'slot')} together"
        case Behind(ahead, first, free, total):
            words = f"{wanted}: {_free(free, total)}, {ahead} ahead of it in the queue"
            if free < request.slots:
                return words
            first_wants = f"the first of which wants {counted(first.slots, 'slot')}"
            return f"{words}, {first_wants} and does not fit yet"
        case SlotsComing(_, _, coming):
            held = "slot, which is" if coming == 1 else "slots, which are"
            names, many = _agents(waiting.reason)
            frees = "free" if many else "frees"
            return f"{wanted}: {names} {frees} {coming} {held} held by what was asked to stop"
        case AgentsBusy(agents, limit):
            each = "the pool's only agent" if agents == 1 else f"each of the pool's {agents} agents"
            return f"{wanted}; {each} runs {counted(limit, 'allocation')} without slots, the most that it may"
        case Unplaced(words, seconds):
            again = f"it is tried again in {seconds:.0f} s"
            return f"{wanted}; its agent's cluster did not place it: {words}; {again}"


def in_short(waiting: Waiting, jobs_ahead: int) -> str:
    """As :func:`in_words`, for a line in the list of a resource pool. ``jobs_ahead``: jobs that are served
    before this one."""
    wanted = f"needs {waiting.request.slots}"
    ahead = f"; {counted(jobs_ahead, 'job')} ahead" if jobs_ahead else ""
    match waiting.reason:
        case NoAgent():
            return f"{wanted}, has no agent"
        case NoneAdmitted():
            return f"{wanted}, has no agent that resources.placement admits"
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
        case Unplaced(words, _):
            return f"{wanted}, no room: {words}"


def admitted(constraint: Constraint) -> str:
    """The agents that a constraint admits."""
    names = " or ".join(sorted(constraint.agents)[:NAMED])
    more = " …" if len(constraint.agents) > NAMED else ""
    labels = " and ".join(
        f"{key}={' or '.join(sorted(values)[:NAMED])}" for key, values in constraint.labels[:NAMED]
    )
    one = f"agent {names}{more}" if names else "an agent"
    return f"{one} with {labels}" if labels else one


def listed(words: Sequence[str]) -> str:
    """The first of the words, with commas."""
    return ", ".join(words[:NAMED]) + (", …" if len(words) > NAMED else "")


def _nowhere(request: Request) -> str:
    if request.spread is Spread.NONE:
        return "no agent can run it"
    equal = " of equal size" if request.spread is Spread.EVEN else ""
    return f"no agent can run it, nor do whole agents{equal} give {counted(request.slots, 'slot')}"


def _agents(coming: SlotsComing) -> tuple[str, bool]:
    """The agents that free slots, in words, and whether there are several."""
    names = [coming.agent_id, *coming.others]
    if len(names) == 1:
        return f"agent {names[0]}", False
    return f"agents {listed(names)}", True


def _free(free: int, total: int) -> str:
    return f"{free} of {total} are free"
