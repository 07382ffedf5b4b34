"""The consequences of an exit, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from determined_service.lifecycle.exits import (
    LOST_IN_A_ROW,
    ExitFacts,
    ExitKind,
    LegExit,
    Next,
    Outcome,
    decide_exit,
    describe_exit,
    of_gang,
)

CLEAN = LegExit(ExitKind.EXITED, 0)
AS_ASKED = LegExit(ExitKind.EXITED, None, 9, "as asked for")
GONE = LegExit(ExitKind.INFRASTRUCTURE, reason="agent b lost for 31 s")
NO_ROOM = LegExit(ExitKind.UNPLACED, reason="no nodes")
BROKEN = LegExit(ExitKind.EXITED, 3, None, "ValueError: no")

# the ends of a gang's nodes in the order of their reports → the gang's end
GANGS: dict[str, tuple[list[tuple[str, LegExit]], LegExit]] = {
    "all well": ([("b", CLEAN), ("a", CLEAN)], CLEAN),
    "the first failure": (
        [("a", CLEAN), ("c", BROKEN), ("b", AS_ASKED)],
        LegExit(ExitKind.EXITED, 3, None, "ValueError: no (on agent c)"),
    ),
    "a signal without a reason": (
        [("b", LegExit(ExitKind.EXITED, None, 11)), ("a", AS_ASKED)],
        LegExit(ExitKind.EXITED, None, 11, "on agent b"),
    ),
    "what was lost, though another failed for the want of it": ([("a", BROKEN), ("b", GONE)], GONE),
    "no room for a node, whatever became of the others": (
        [("a", BROKEN), ("c", GONE), ("b", NO_ROOM)],
        LegExit(ExitKind.UNPLACED, reason="no nodes (on agent b)"),
    ),
    "what cannot start": (
        [("a", LegExit(ExitKind.FAILED_TO_START, reason="no train.py")), ("b", AS_ASKED)],
        LegExit(ExitKind.FAILED_TO_START, reason="no train.py (on agent a)"),
    ),
}


@pytest.mark.parametrize("case", GANGS)
def test_a_gang_ends_as_its_nodes_did(case: str) -> None:
    ends, found = GANGS[case]
    assert of_gang(ends) == found


LOST = {"exit_code": None, "kind": ExitKind.INFRASTRUCTURE, "reason": "agent a lost for 31 s"}
UNPLACED = {"exit_code": None, "kind": ExitKind.UNPLACED, "reason": "0/3 nodes are available"}
FAILED = {"exit_code": 3, "max_restarts": 1, "op_complete": False}
BUSY = {"op_complete": False}
DONE = {"op_complete": True, "closed": True}
KILLED = {"exit_code": None, "exit_signal": 9, "kill_requested": True}

# facts → outcome of the leg, next step, state of the trial, event to the searcher, counted
CASES: dict[str, tuple[dict[str, Any], tuple[str, str, str | None, str | None, bool]]] = {
    "all done": (DONE, ("COMPLETED", "end", "COMPLETED", None, False)),
    "all done and acknowledged": (
        {**DONE, "preempt_acked": True},
        ("COMPLETED", "end", "COMPLETED", None, False),
    ),
    "out of operations, the searcher may promote": (
        {"op_complete": True, "preempt_acked": True},
        ("COMPLETED", "wait", None, None, False),
    ),
    "promoted while it was leaving": (
        {"op_complete": False, "preempt_acked": True},
        ("COMPLETED", "requeue", None, None, False),
    ),
    "left without a word, work undone": (
        BUSY,
        ("COMPLETED", "end", "COMPLETED", "USER_REQUESTED_STOP", False),
    ),
    "left without a word, not closed": (
        {"op_complete": True},
        ("COMPLETED", "end", "COMPLETED", "USER_REQUESTED_STOP", False),
    ),
    "preempted but not acknowledged": (
        {**BUSY, "preempt_requested": True, "experiment_state": "PAUSED"},
        ("COMPLETED", "end", "COMPLETED", "USER_REQUESTED_STOP", False),
    ),
    "asked to stop from code": (
        {**BUSY, "early_exit": "USER_REQUESTED_STOP", "preempt_acked": True},
        ("COMPLETED", "end", "COMPLETED", "USER_REQUESTED_STOP", False),
    ),
    "preempted, paused": (
        {
            **BUSY,
            "preempt_requested": True,
            "preempt_acked": True,
            "experiment_state": "PAUSED",
            "trial_state": "PAUSED",
        },
        ("PREEMPTED", "wait", None, None, False),
    ),
    "preempted, active again": (
        {**BUSY, "preempt_requested": True, "preempt_acked": True},
        ("PREEMPTED", "requeue", None, None, False),
    ),
    "fails with restarts left": (FAILED, ("ERROR", "requeue", None, None, True)),
    "fails with restarts left while paused": (
        {**FAILED, "experiment_state": "PAUSED"},
        ("ERROR", "wait", None, None, True),
    ),
    "fails with none left": (
        {**FAILED, "restarts": 1},
        ("ERROR", "end", "ERROR", "ERRORED", False),
    ),
    "fails after its work was done": (
        {**DONE, **FAILED, "op_complete": True},
        ("ERROR", "requeue", None, None, True),
    ),
    "killed by the kernel": (
        {**BUSY, "exit_code": None, "exit_signal": 9, "max_restarts": 5},
        ("ERROR", "requeue", None, None, True),
    ),
    "cannot start": (
        {**FAILED, "kind": ExitKind.FAILED_TO_START, "reason": "entrypoint not found"},
        ("ERROR", "end", "ERROR", "ERRORED", False),
    ),
    "cannot start, nobody knows why": (
        {**FAILED, "kind": ExitKind.FAILED_TO_START},
        ("ERROR", "requeue", None, None, True),
    ),
    "lost": ({**BUSY, **LOST}, ("LOST", "requeue", None, None, False)),
    "lost three times in a row": (
        {**BUSY, **LOST, "lost_in_a_row": 2},
        ("LOST", "later", None, None, False),
    ),
    "lost three times in a row, the last while paused": (
        {**BUSY, **LOST, "lost_in_a_row": 2, "experiment_state": "PAUSED"},
        ("LOST", "wait", None, None, False),
    ),
    "lost while paused": (
        {**BUSY, **LOST, "experiment_state": "PAUSED"},
        ("LOST", "wait", None, None, False),
    ),
    "lost too often": (
        {**BUSY, **LOST, "lost_in_a_row": LOST_IN_A_ROW - 1},
        ("LOST", "end", "ERROR", "ERRORED", False),
    ),
    "no room": ({**BUSY, **UNPLACED}, ("UNPLACED", "rest", None, None, False)),
    "no room, however often legs were lost": (
        {**BUSY, **UNPLACED, "lost_in_a_row": LOST_IN_A_ROW},
        ("UNPLACED", "rest", None, None, False),
    ),
    "no room while paused": (
        {**BUSY, **UNPLACED, "experiment_state": "PAUSED"},
        ("UNPLACED", "wait", None, None, False),
    ),
    "invalid hyperparameters": (
        {**FAILED, "early_exit": "INVALID_HP"},
        ("COMPLETED", "end", "COMPLETED", "INVALID_HP", False),
    ),
    "invalid hyperparameters, lingered": (
        {**BUSY, **KILLED, "early_exit": "INIT_INVALID_HP"},
        ("COMPLETED", "end", "COMPLETED", "INIT_INVALID_HP", False),
    ),
    "stopped by the searcher": (
        {"reports_form": True, "stop_requested": True, "preempt_acked": True},
        ("COMPLETED", "end", "COMPLETED", None, False),
    ),
    "stopped by the searcher, crashed": (
        {"reports_form": True, "stop_requested": True, "exit_code": 1},
        ("ERROR", "end", "COMPLETED", None, False),
    ),
    "reports form, ran its course": (
        {"reports_form": True, **BUSY},
        ("COMPLETED", "end", "COMPLETED", None, False),
    ),
    "reports form, preempted": (
        {"reports_form": True, "preempt_requested": True, "preempt_acked": True},
        ("PREEMPTED", "requeue", None, None, False),
    ),
    "canceled, left": (
        {
            **BUSY,
            "preempt_acked": True,
            "preempt_requested": True,
            "experiment_state": "STOPPING_CANCELED",
            "trial_state": "STOPPING_CANCELED",
        },
        ("CANCELED", "end", "CANCELED", "USER_CANCELED", False),
    ),
    "canceled after all was done": (
        {**DONE, "experiment_state": "STOPPING_CANCELED"},
        ("COMPLETED", "end", "COMPLETED", None, False),
    ),
    "canceled, crashed on the way": (
        {**FAILED, "experiment_state": "STOPPING_CANCELED"},
        ("ERROR", "end", "CANCELED", "USER_CANCELED", False),
    ),
    "killed": (
        {**BUSY, **KILLED, "experiment_state": "STOPPING_KILLED"},
        ("CANCELED", "end", "CANCELED", "USER_CANCELED", False),
    ),
    "only the trial killed": (
        {**BUSY, **KILLED, "trial_state": "STOPPING_KILLED"},
        ("CANCELED", "end", "CANCELED", "USER_CANCELED", False),
    ),
    "lost while being canceled": (
        {**BUSY, **LOST, "experiment_state": "STOPPING_CANCELED"},
        ("ERROR", "end", "CANCELED", "USER_CANCELED", False),
    ),
    "the search is over": (
        {**BUSY, "experiment_state": "STOPPING_COMPLETED"},
        ("COMPLETED", "end", "COMPLETED", None, False),
    ),
    "did not heed a preemption": (
        {**FAILED, **KILLED, "preempt_requested": True, "experiment_state": "PAUSED"},
        ("PREEMPTED", "wait", None, None, False),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_exit(case: str) -> None:
    facts, wanted = CASES[case]
    found = decide_exit(ExitFacts(**facts))
    got = (found.outcome, found.next, found.trial_state, found.event, found.counts)
    assert got == wanted
    assert found.reason
    # A trial has a last state exactly if it ends.
    assert (found.trial_state is not None) == (found.next == "end")


@pytest.mark.parametrize("restarts", range(4))
def test_max_restarts_is_the_number_of_further_runs(restarts: int) -> None:
    runs, count = 0, 0
    while True:
        runs += 1
        found = decide_exit(ExitFacts(exit_code=1, restarts=count, max_restarts=restarts))
        count += found.counts
        if found.next == "end":
            break
    assert runs == restarts + 1
    assert count == restarts


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"exit_code": 3}, "process exited with code 3"),
        ({"exit_code": 1, "reason": "ValueError: x"}, "process exited with code 1: ValueError: x"),
        ({"exit_code": None, "reason": "said so"}, "said so"),
        (
            {"exit_code": None, "exit_signal": 9, "reason": "the machine is out of memory"},
            "process was killed by signal 9 (SIGKILL): the machine is out of memory",
        ),
        (
            {"exit_code": None, "exit_signal": 9},
            "process was killed by signal 9 (SIGKILL), perhaps out of memory",
        ),
        ({"exit_code": None, "exit_signal": 11}, "process was killed by signal 11 (SIGSEGV)"),
        ({"exit_code": None, "exit_signal": 99}, "process was killed by signal 99 (unknown)"),
        ({**KILLED}, "process was killed by signal 9 (SIGKILL)"),
        (
            {"kind": ExitKind.FAILED_TO_START, "reason": "no such file"},
            "could not start: no such file",
        ),
        (LOST, "agent a lost for 31 s"),
    ],
)
def test_words(facts: dict[str, Any], words: str) -> None:
    assert describe_exit(ExitFacts(**facts)) == words


EIGHT = {"op_complete": False, "target": 8, "unit": "batches"}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({**EIGHT, "came": 3}, "ended before the searcher's target of 8 batches, after 3"),
        (EIGHT, "ended before the searcher's target of 8 batches was reported as completed"),
        (BUSY, "ended before the searcher's target was reported as completed"),
        (
            {**EIGHT, "came": 8},
            "reached the searcher's target of 8 batches, but never completed that operation "
            "(op.report_completed): the searcher knows of no result",
        ),
        (
            {**EIGHT, "came": 20.0},
            "trained to 20, past the searcher's target of 8 batches, but never completed that operation "
            "(op.report_completed): the searcher knows of no result",
        ),
        (
            {**EIGHT, "came": 8, "op_complete": True},
            "ended after the searcher's target of 8 batches without asking for the next operation",
        ),
    ],
)
def test_an_early_end_tells_its_place(facts: dict[str, Any], words: str) -> None:
    assert decide_exit(ExitFacts(**facts)).reason == f"the training code {words}"


@pytest.mark.parametrize(
    ("facts", "outcome", "next", "reason"),
    [
        (
            {"exit_code": 0, "preempt_requested": True, "preempt_acked": True},
            Outcome.PREEMPTED,
            Next.REQUEUE,
            "its machine is going away: n1 is drained",
        ),
        (
            {"exit_code": 1, "preempt_requested": True},
            Outcome.LOST,
            Next.REQUEUE,
            "its machine is going away: n1 is drained; process exited with code 1",
        ),
        (
            {"exit_code": None, "kind": ExitKind.FAILED_TO_START, "reason": "no train.py"},
            Outcome.ERROR,
            Next.END,
            "could not start: no train.py",
        ),
    ],
)
def test_a_machine_that_goes_away(
    facts: dict[str, Any], outcome: Outcome, next: Next, reason: str
) -> None:
    found = decide_exit(ExitFacts(leaving="n1 is drained", reports_form=True, **facts))
    assert (found.outcome, found.next, found.reason) == (outcome, next, reason)
    assert not found.counts
