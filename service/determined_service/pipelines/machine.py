"""The states of pipelines, steps and tries, and which move comes next: :func:`next_moves`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from determined.common.pipeline import PipelinePlan, PlannedStep, Result
from determined.common.pipeline.kinds import APPROVAL, PROMOTE

# A pipeline is RUNNING, or AWAITING while all that is left waits for people, and ends in one of the others. A
# step waits for those that it needs, and is SKIPPED when one of these did not complete, or its condition is
# false. A try of an experiment waits for its submission; STOPPING: its experiment is to be killed. A try of
# an approval, and of a promotion that asks, is RUNNING until a person has answered.
WAITING, RUNNING, STOPPING = "WAITING", "RUNNING", "STOPPING"
AWAITING = "WAITING_FOR_APPROVAL"
OPEN = (RUNNING, AWAITING)
COMPLETED, FAILED, SKIPPED, CANCELED = "COMPLETED", "FAILED", "SKIPPED", "CANCELED"
ENDED = (COMPLETED, FAILED, SKIPPED, CANCELED)


@dataclass(frozen=True, slots=True)
class Try:
    """The last try of one item of a step; a step without ``for_each`` has one item.

    ``task_id``: of a command. ``result``: what it has found so far.
    """

    item: int
    attempt: int
    state: str
    reason: str | None = None
    experiment_id: int | None = None
    cached: bool = False
    task_id: str | None = None
    result: Result | None = None


@dataclass(frozen=True, slots=True)
class StepState:
    """Where a step is."""

    state: str
    tries: tuple[Try, ...] = ()


@dataclass(frozen=True, slots=True)
class Expand:
    """All that the step needs has completed: find out its items, and begin."""

    step: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The step has ended."""

    step: int
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class End:
    """The pipeline has ended."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Await:
    """Whatever is left waits for people, so no flow is needed until one of them has answered."""

    reason: str


Move = Expand | Finish | End | Await


def next_moves(plan: PipelinePlan, standings: Sequence[StepState]) -> list[Move]:
    """What can be written now; once it is, ask again. Empty: the pipeline waits for its experiments."""
    states = {
        step.name: standing.state for step, standing in zip(plan.steps, standings, strict=True)
    }
    moves: list[Move] = []
    for place, (step, standing) in enumerate(zip(plan.steps, standings, strict=True)):
        if standing.state == WAITING:
            lacking = [name for name in step.needs if states[name] in ENDED[1:]]
            if lacking:
                words = " and ".join(f"step {name} {_HOW[states[name]]}" for name in lacking)
                moves.append(Finish(place, SKIPPED, words))
            elif all(states[name] == COMPLETED for name in step.needs):
                moves.append(Expand(place))
        elif standing.state == RUNNING and all(one.state in ENDED for one in standing.tries):
            moves.append(_finish(place, standing.tries))
    if not moves and all(state in ENDED for state in states.values()):
        moves.append(_end(states))
    if not moves and (asking := _asking(plan, standings)):
        moves.append(Await(f"waits for an approval: {', '.join(asking)}"))
    return moves


def _asking(plan: PipelinePlan, standings: Sequence[StepState]) -> list[str]:
    """The steps that wait for a person; none while anything else is to be done or waited for."""
    left = [
        (step, one.state)
        for step, standing in zip(plan.steps, standings, strict=True)
        if standing.state == RUNNING
        for one in standing.tries
        if one.state not in ENDED
    ]
    if all(asks(step, state) for step, state in left):
        return [step.name for step, _ in left]
    return []


def asks(step: PlannedStep, state: str) -> bool:
    """Whether a try of the step, in that state, waits for a person."""
    return step.kind in (APPROVAL, PROMOTE) and state == RUNNING


_HOW = {FAILED: "failed", SKIPPED: "was skipped", CANCELED: "was canceled"}


def _finish(place: int, tries: Sequence[Try]) -> Finish:
    failed = [one for one in tries if one.state != COMPLETED]
    if not failed:
        return Finish(place, COMPLETED, tries[0].reason if len(tries) == 1 else None)
    reason = failed[0].reason or "no reason is known"
    if len(tries) > 1:
        reason = f"{len(failed)} of {len(tries)} experiments failed; the first: {reason}"
    return Finish(place, FAILED, reason)


def _end(states: dict[str, str]) -> End:
    failed = [name for name, state in states.items() if state == FAILED]
    skipped = sum(state == SKIPPED for state in states.values())
    if failed:
        words = (
            f"step {failed[0]} failed" if len(failed) == 1 else f"steps {', '.join(failed)} failed"
        )
        return End(FAILED, words + (f", {skipped} skipped" if skipped else ""))
    if skipped:
        return End(
            COMPLETED,
            f"{len(states) - skipped} of {len(states)} steps completed, {skipped} skipped",
        )
    every = "its only step" if len(states) == 1 else f"all {len(states)} steps"
    return End(COMPLETED, f"{every} completed")


def to_submit(plan: PipelinePlan, standings: Sequence[StepState]) -> list[tuple[int, Try]]:
    """The tries whose experiments are to be submitted now, each with its step."""
    found: list[tuple[int, Try]] = []
    for place, (step, standing) in enumerate(zip(plan.steps, standings, strict=True)):
        if standing.state != RUNNING:
            continue
        waiting = [one for one in standing.tries if one.state == WAITING]
        if step.max_concurrent is not None:
            running = sum(one.state == RUNNING for one in standing.tries)
            waiting = waiting[: max(step.max_concurrent - running, 0)]
        found += [(place, one) for one in waiting]
    return found


def waited_for(standings: Sequence[StepState]) -> list[Try]:
    """The tries whose experiment's or task's end is waited for."""
    return [
        one
        for standing in standings
        for one in standing.tries
        if one.state == RUNNING and (one.experiment_id is not None or one.task_id is not None)
    ]
