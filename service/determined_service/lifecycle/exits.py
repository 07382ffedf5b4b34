"""Decide the next step after a process has ended: :func:`decide_exit`, a pure function."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from determined.common.printable import cut, one_line
from determined.common.wire.last_words import EXITED, FAILED, FAILED_OTHERWISE
from determined.common.wire.legs import ExitKind, going_away
from determined_searchers import ExitReason
from determined_service.state import states

NO_WORDS = "the agent's cluster does not say why"
LOST_IN_A_ROW = 10
"""The number of consecutive lost legs after which the trial ends, so that it does not restart for ever."""
LOST_WAITS_S = (0.0, 0.0, 0.0, 5.0, 10.0, 20.0, 40.0, 60.0)
"""Seconds until the next leg, indexed by the number of consecutive lost legs; larger numbers use the last
value.

After the first two losses the trial starts again at once. A cause of three losses, such as a full disk,
usually lasts for a while.
"""


LONGEST_LEAVING = 1000
"""Characters of a supervisor's reason for which its machine goes away."""


class Outcome(StrEnum):
    """How a leg ended: the final state of its row."""

    COMPLETED = "COMPLETED"
    PREEMPTED = "PREEMPTED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"
    LOST = "LOST"
    UNPLACED = "UNPLACED"


class Next(StrEnum):
    """The trial's next step."""

    END = "end"  # the trial ends
    REQUEUE = "requeue"  # the trial requests slots again and goes on from its latest checkpoint
    REST = "rest"  # as REQUEUE at its place in line, after a rest: its agent's cluster had no room
    LATER = "later"  # as REQUEUE, after wait_after_losses(): the reconciler requests the slots
    WAIT = "wait"  # the trial holds no slots until the search or the user continues it


@dataclass(frozen=True, slots=True)
class LegExit:
    """The reported end of a process. ``leaving``: as in :class:`~determined.common.wire.legs.Exited`."""

    kind: ExitKind
    exit_code: int | None = None
    exit_signal: int | None = None
    reason: str | None = None
    leaving: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the process did not exit with code 0."""
        return bool(self.exit_signal or self.exit_code or self.kind is not ExitKind.EXITED)

    def knowing(self, leaving: str | None) -> LegExit:
        """This end with the whole reason. ``leaving``: why the machine goes away, as the service knows it.
        An agent may have said more than the supervisor, which knows of a signal only."""
        if self.leaving is None:
            return self
        why = leaving or cut(one_line(self.leaving), LONGEST_LEAVING)
        words = f"{going_away(why)}; {self.reason}"
        return replace(self, reason=words, leaving=None)


def of_gang(ends: Sequence[tuple[str, LegExit]]) -> LegExit:
    """Combine the ends of a gang's nodes, as pairs of agent and end in the order of their reports.

    The first failure counts, because it ended the nodes after it. But when the platform loses a node, the
    other nodes may fail before the loss is noticed, so a lost node counts before all failures. If there was
    no room for a node, the gang has not begun, and that counts first.
    """
    unplaced = [one for one in ends if one[1].kind is ExitKind.UNPLACED]
    lost = [one for one in ends if one[1].kind is ExitKind.INFRASTRUCTURE]
    agent_id, end = next(iter(unplaced or lost or [one for one in ends if one[1].failed]), ends[0])
    if not end.failed:
        return end
    where = f"on agent {agent_id}"
    reason = end.reason or where
    return replace(end, reason=reason if where[3:] in reason else f"{reason} ({where})")


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """The input of :func:`decide_exit`."""

    exit_code: int | None = 0
    exit_signal: int | None = None
    kind: ExitKind = ExitKind.EXITED
    reason: str | None = None
    started: bool = True
    preempt_requested: bool = False
    preempt_acked: bool = False
    preempted_for: str | None = None
    """The scheduler's reason for the preemption, as a sentence."""
    leaving: str | None = None
    """The reason for which its machine, or one of a gang's, went away after the order to store."""
    kill_requested: bool = False
    experiment_state: str = states.ACTIVE
    trial_state: str = states.ACTIVE
    reports_form: bool = False
    target: int | None = None
    """The length of the trial's latest operation."""
    came: float | None = None
    """The length trained according to the reports, in ``unit``; None: unknown."""
    unit: str | None = None
    op_complete: bool = True
    closed: bool = False
    stop_requested: bool = False
    early_exit: str | None = None
    restarts: int = 0
    max_restarts: int = 0
    lost_in_a_row: int = 0
    no_restart: str | None = None
    """The reason against a retry of a failure, as a sentence."""


@dataclass(frozen=True, slots=True)
class ExitDecision:
    """The result of :func:`decide_exit`: the leg's outcome, the trial's next step, the searcher's event if
    any."""

    outcome: Outcome
    reason: str
    next: Next
    trial_state: str | None = None
    event: ExitReason | None = None
    counts: bool = False
    """Whether this exit counts against ``max_restarts``. The failure that ends the trial does not count,
    because no restart follows it."""
    log: str | None = None
    """A line for the trial's log, if the log needs more detail than the reason."""


def wait_after_losses(lost_in_a_row: int) -> float:
    """Return the seconds between a lost leg and the next leg; ``lost_in_a_row`` includes the lost leg."""
    return LOST_WAITS_S[min(lost_in_a_row, len(LOST_WAITS_S) - 1)]


def describe_exit(facts: ExitFacts) -> str:
    """Describe the end of the process in a sentence."""
    if facts.kind is ExitKind.INFRASTRUCTURE:
        return facts.reason or "lost by the platform"
    if facts.kind is ExitKind.UNPLACED:
        return f"its agent's cluster did not place it: {facts.reason or NO_WORDS}"
    if facts.kind is ExitKind.FAILED_TO_START:
        return f"could not start: {facts.reason or 'no reason given'}"
    if facts.exit_code is None and facts.exit_signal is None and facts.reason:
        return facts.reason
    if facts.exit_signal:
        words = (
            f"process was killed by signal {facts.exit_signal} ({_signal_name(facts.exit_signal)})"
        )
        unknown = not facts.reason and not facts.kill_requested
        if facts.exit_signal == signal.SIGKILL and unknown:
            words += ", perhaps out of memory"
    else:
        words = f"process exited with code {facts.exit_code or 0}"
    return f"{words}: {facts.reason}" if facts.reason else words


def last_line(end: LegExit) -> str:
    """Return the service's line about the end of a leg for the task's log.

    For a failed process the line has no reason, because the process or its supervisor has already written it
    to the log. For a leg that the platform lost the line has the reason, because the log does not.
    """
    if not end.failed:
        return EXITED
    if end.kind is ExitKind.UNPLACED:
        return f"it did not start: {end.reason or NO_WORDS}"
    if end.kind is ExitKind.INFRASTRUCTURE and end.reason:
        return f"{FAILED_OTHERWISE}: {end.reason}"
    if end.kind is not ExitKind.EXITED:
        return FAILED_OTHERWISE
    code, number = end.exit_code, end.exit_signal
    return f"{FAILED}: {describe_exit(ExitFacts(code, number, kill_requested=True))}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def decide_exit(facts: ExitFacts) -> ExitDecision:
    """Return the decision of the first rule that applies:

    1. the trial or its experiment is being killed or stopped: the trial ends;
    2. the trial reported its hyperparameters as invalid: completed, with an event for the searcher;
    3. its agent's cluster had no room for the leg: the trial runs again, uncounted, after a rest;
    4. the platform lost the leg (a failure while its machine goes away is a loss), or killed it because it
       did not exit after a preemption: the trial runs again, uncounted, and after several losses in a row
       only after a wait;
    5. exit code 0: see :func:`_clean_exit`;
    6. the leg could not start for a permanent reason, or must not be retried: error;
    7. any other end is a failure: the trial runs again while restarts are left, else error.
    """
    words = describe_exit(facts)
    failed = bool(facts.exit_signal or facts.exit_code or facts.kind is not ExitKind.EXITED)
    stopping = _stopping(facts)
    if stopping is not None:
        return _stopped(facts, stopping, words, failed)
    if facts.early_exit in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP):
        return ExitDecision(
            Outcome.COMPLETED,
            "the trial called its hyperparameters invalid",
            Next.END,
            states.COMPLETED,
            ExitReason(facts.early_exit),
        )
    if facts.stop_requested:
        return ExitDecision(
            Outcome.ERROR if failed else Outcome.COMPLETED,
            f"stopped early by the searcher; {words}"
            if failed
            else "stopped early by the searcher",
            Next.END,
            states.COMPLETED,
        )
    if facts.kind is ExitKind.UNPLACED:
        again = _again(facts)
        return ExitDecision(Outcome.UNPLACED, words, Next.REST if again is Next.REQUEUE else again)
    if facts.kind is ExitKind.INFRASTRUCTURE:
        return _lost(facts, words)
    if failed and facts.leaving is not None and facts.kind is ExitKind.EXITED:
        return _lost(facts, f"{going_away(facts.leaving)}; {words}")
    if failed and facts.kill_requested and facts.preempt_requested:
        return ExitDecision(
            Outcome.PREEMPTED,
            "did not exit in time after the preemption signal and was killed",
            _again(facts),
        )
    if not failed:
        return _clean_exit(facts, words)
    if facts.kind is ExitKind.FAILED_TO_START and facts.reason:
        return _error(words)
    if facts.no_restart is not None:
        log = (
            f"trial failed and matched logs to a don't retry policy: {facts.no_restart}; "
            f"the failure ({words}) therefore will not be retried"
        )
        return _error(f"{words}; no restart: {facts.no_restart}", log)
    if facts.restarts >= facts.max_restarts:
        return _error(words)
    return ExitDecision(Outcome.ERROR, words, _again(facts), counts=True)


def _preempted(facts: ExitFacts) -> str:
    if facts.leaving is not None:
        return going_away(facts.leaving)
    return "preempted" if facts.preempted_for is None else f"preempted: {facts.preempted_for}"


def _again(facts: ExitFacts) -> Next:
    return Next.REQUEUE if facts.experiment_state == states.ACTIVE else Next.WAIT


def _error(words: str, log: str | None = None) -> ExitDecision:
    return ExitDecision(Outcome.ERROR, words, Next.END, states.ERROR, ExitReason.ERRORED, log=log)


def _stopping(facts: ExitFacts) -> str | None:
    """Return the more severe of the trial's and the experiment's stopping states, if any."""
    severity = (
        states.STOPPING_KILLED,
        states.STOPPING_ERROR,
        states.STOPPING_CANCELED,
        states.STOPPING_COMPLETED,
    )
    found = {facts.trial_state, facts.experiment_state}
    return next((state for state in severity if state in found), None)


def _stopped(facts: ExitFacts, stopping: str, words: str, failed: bool) -> ExitDecision:
    all_done = facts.op_complete and facts.closed and not facts.reports_form
    if not failed and (all_done or stopping == states.STOPPING_COMPLETED):
        return ExitDecision(Outcome.COMPLETED, words, Next.END, states.COMPLETED)
    verb = {
        states.STOPPING_KILLED: "killed by the user",
        states.STOPPING_ERROR: "stopped because the experiment failed",
        states.STOPPING_CANCELED: "canceled by the user",
        states.STOPPING_COMPLETED: "stopped because the search is complete",
    }[stopping]
    crashed = failed and not facts.kill_requested
    return ExitDecision(
        Outcome.ERROR if crashed else Outcome.CANCELED,
        f"{verb}; {words}" if crashed else verb,
        Next.END,
        states.CANCELED,
        ExitReason.USER_CANCELED,
    )


def _lost(facts: ExitFacts, words: str) -> ExitDecision:
    if facts.lost_in_a_row + 1 >= LOST_IN_A_ROW:
        return ExitDecision(
            Outcome.LOST,
            f"given up after {LOST_IN_A_ROW} legs in a row that the platform lost; the last: {words}",
            Next.END,
            states.ERROR,
            ExitReason.ERRORED,
        )
    again = _again(facts)
    if again is Next.REQUEUE and wait_after_losses(facts.lost_in_a_row + 1):
        again = Next.LATER
    return ExitDecision(Outcome.LOST, words, again)


def _clean_exit(facts: ExitFacts, words: str) -> ExitDecision:
    """Decide after exit code 0. An acknowledged exit is not final: the trial was preempted, or has no
    operation.

    * the training code asked to stop: completed;
    * operations form, all operations complete and the trial closed: completed;
    * acknowledged: the trial runs again if it has an operation, else it waits for the search;
    * not acknowledged: the training code ended by itself. In the operations form this is an early end, with
      an event for the searcher; in the reports form every trial ends this way.
    """
    done = ExitDecision(Outcome.COMPLETED, words, Next.END, states.COMPLETED)
    early = ExitDecision(
        Outcome.COMPLETED,
        _ended_by_itself(facts) if facts.early_exit is None else "the training code asked to stop",
        Next.END,
        states.COMPLETED,
        ExitReason.USER_REQUESTED_STOP,
    )
    if facts.early_exit == ExitReason.USER_REQUESTED_STOP:
        return early
    if facts.reports_form:
        if facts.preempt_acked and facts.preempt_requested:
            return ExitDecision(Outcome.PREEMPTED, _preempted(facts), _again(facts))
        return done
    if facts.op_complete and facts.closed:
        return done
    if not facts.preempt_acked:
        return early
    if facts.op_complete:
        return ExitDecision(Outcome.COMPLETED, "out of operations", Next.WAIT)
    words = _preempted(facts) if facts.preempt_requested else "out of operations"
    outcome = Outcome.PREEMPTED if facts.preempt_requested else Outcome.COMPLETED
    return ExitDecision(outcome, words, _again(facts))


def _ended_by_itself(facts: ExitFacts) -> str:
    """Describe the end of training code that still had an operation, or had to ask for one, in the operations
    form."""
    target = "the searcher's target"
    if facts.target is not None and facts.unit is not None:
        target += f" of {facts.target} {facts.unit}"
    if facts.op_complete:
        return f"the training code ended after {target} without asking for the next operation"
    if facts.came is None or facts.target is None:
        return f"the training code ended before {target} was reported as completed"
    if facts.came < facts.target:
        return f"the training code ended before {target}, after {facts.came:g}"
    how = "reached" if facts.came == facts.target else f"trained to {facts.came:g}, past"
    return (
        f"the training code {how} {target}, but never completed that operation (op.report_completed): the "
        "searcher knows of no result"
    )
