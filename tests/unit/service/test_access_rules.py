"""The table of rules: who is admitted, and the messages to others."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import pytest

from determined.common.wire.serving import NEW_EXPERIMENT, Served
from determined_service.access import rules
from determined_service.access.dependencies import ClusterAdmin
from determined_service.access.principal import (
    AGENT,
    ALLOCATION,
    SERVING,
    USER,
    AllocationRef,
    Principal,
)
from determined_service.access.rules import RULES, Action, authorise, owner_decides
from determined_service.access.targets import Id, Kind, Owner, Target
from determined_service.base.errors import ApiError, Forbidden, Unauthenticated
from tests import who_may_table

may_administer = get_args(ClusterAdmin)[1].dependency

ALICE = Principal(USER, 1, "alice", False)
BOB = Principal(USER, 2, "bob", False)
ROOT = Principal(USER, 3, "root", True)
AGENTS = Principal(AGENT, 4, "determined", True)
PROCESS = Principal(ALLOCATION, 1, "alice", False, AllocationRef("7.a.1", "7.a", 7, 9, 1))
SUPERVISOR = Principal(SERVING, 4, "determined", False, serves=Served("allocation", "7.a.1"))
RUN = Principal(SERVING, 4, "determined", False, serves=Served("experiment", "7"))
EVERYBODY = {
    who_may_table.OTHER: BOB,
    who_may_table.OWNER: ALICE,
    who_may_table.ADMINISTRATOR: ROOT,
    who_may_table.PROCESS: PROCESS,
    who_may_table.AGENT: AGENTS,
    who_may_table.SUPERVISOR: SUPERVISOR,
    who_may_table.RUN: RUN,
}

THING: dict[Kind, Id] = {
    Kind.USER: 1,
    Kind.EXPERIMENT: 7,
    Kind.TRIAL: 9,
    Kind.TASK: "7.a",
    Kind.ALLOCATION: "7.a.1",
    Kind.CHECKPOINT: "c",
    Kind.MODEL: "m",
    Kind.PIPELINE: 5,
    Kind.TEMPLATE: "t",
    Kind.DELETION: 13,
    Kind.WORKSPACE: 3,
    Kind.PROJECT: 4,
}
"""Each belongs to alice; trial, task and allocation are the process' own."""


def refusal(who: Principal, action: Action, target: Target, verb: str = "") -> ApiError | None:
    try:
        authorise(who, action, target, verb)
    except ApiError as error:
        return error
    return None


def who_serves(column: str, action: Action, kind: Kind) -> Principal:
    """The subject of the column; of Prefect runs the one with the most rights about such a thing."""
    if column != who_may_table.RUN or kind in (Kind.ALLOCATION, Kind.CLUSTER):
        return EVERYBODY[column]
    new = action == Action.SUBMIT
    served = Served(NEW_EXPERIMENT, "some-run") if new else Served(kind, str(THING.get(kind)))
    return dataclasses.replace(RUN, serves=served)


@pytest.mark.parametrize(("action", "kind"), RULES)
def test_rights(action: Action, kind: Kind) -> None:
    """As the table says, whether the owner's task has made the thing or not."""
    for tasks, passing in (
        ((), {who_may_table.YES, who_may_table.OWN}),
        (("7.a",), {who_may_table.YES, who_may_table.OWN, who_may_table.MADE}),
    ):
        target = Target(kind, THING.get(kind), Owner(1, "alice", tasks))
        for column, cell in who_may_table.cells(action, kind).items():
            found = refusal(who_serves(column, action, kind), action, target)
            assert (found is None) == (cell in passing), f"{column}: {found}"


def test_the_table_in_the_docs_is_the_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "operate" / "security.md"
    assert "\n".join(who_may_table.lines()) in page.read_text(), (
        "put into the page what `python -m tests.who_may_table` prints"
    )


@pytest.mark.parametrize("kind", [kind for action, kind in RULES if action == Action.SERVE])
def test_a_token_serves_one_thing_only(kind: Kind) -> None:
    """Neither another thing of the same kind, nor a thing of another kind with the same number, nor all
    things."""
    for column in (who_may_table.SUPERVISOR, who_may_table.RUN):
        who = who_serves(column, Action.SERVE, kind)
        assert who.serves is not None
        for other in (k for action, k in RULES if action == Action.SERVE):
            for one in ("8", "7.a.2", None, *([who.serves.id] if other != who.serves.kind else [])):
                found = refusal(who, Action.SERVE, Target(other, one))
                assert isinstance(found, Forbidden), (who, other, one)


def test_a_refused_supervisor_hears_its_tokens_purpose() -> None:
    found = refusal(SUPERVISOR, Action.CHANGE, Target(Kind.EXPERIMENT, 7, Owner(4, "x")), "kill")
    assert isinstance(found, Forbidden)
    assert found.message == (
        "this token is good for allocation 7.a.1 alone: it may not kill experiment 7"
    )


@pytest.mark.parametrize(("action", "kind"), RULES)
def test_a_target_whose_owner_is_needed_and_not_known_is_refused(
    action: Action, kind: Kind
) -> None:
    for who in EVERYBODY.values():
        if owner_decides(who, action, kind):
            assert isinstance(refusal(who, action, Target(kind, THING[kind])), Forbidden)


@pytest.mark.parametrize(
    ("action", "target", "verb", "message"),
    [
        (
            Action.CHANGE,
            Target(Kind.EXPERIMENT, 7, Owner(1, "alice")),
            "pause",
            "only its owner alice or an administrator may pause experiment 7",
        ),
        (
            Action.CHANGE,
            Target(Kind.USER, 1, Owner(1, "alice")),
            "",
            "only user alice or an administrator may change user 1",
        ),
        (
            Action.DELETE,
            Target(Kind.CHECKPOINT, "c"),
            "",
            "only an administrator may delete checkpoint c: it belongs to no user",
        ),
        (Action.CREATE, Target(Kind.USER), "", "only an administrator may create users"),
        (
            Action.ADMINISTER,
            Target(Kind.CLUSTER),
            may_administer.verb,
            "only an administrator may enable or disable agents and slots of the cluster",
        ),
        (
            Action.REPORT,
            Target(Kind.ALLOCATION),
            "report checkpoints of",
            "only an administrator may report checkpoints of allocations without naming one",
        ),
    ],
)
def test_a_refusal_names_the_allowed_users(
    action: Action, target: Target, verb: str, message: str
) -> None:
    found = refusal(BOB, action, target, verb)
    assert isinstance(found, Forbidden)
    assert found.message == message


def test_a_training_process_reports_for_its_own_trial_only() -> None:
    for target in (
        Target(Kind.TRIAL, 10, Owner(1, "alice")),
        Target(Kind.TASK, "7.b", Owner(1, "alice")),
        Target(Kind.ALLOCATION, "7.a.2", Owner(1, "alice")),
        Target(Kind.TRIAL, None),
    ):
        found = refusal(PROCESS, Action.REPORT, target)
        assert isinstance(found, Forbidden)
        assert "7.a.1" in found.message


@pytest.mark.parametrize("kind", [Kind.EXPERIMENT, Kind.TRIAL, Kind.CHECKPOINT])
def test_a_process_may_change_its_own_tasks_objects(kind: Kind) -> None:
    for tasks, may in ((("7.a",), True), (("7.b", "7.a"), True), (("7.b",), False), ((), False)):
        target = Target(kind, THING[kind], Owner(1, "alice", tasks))
        assert (refusal(PROCESS, Action.CHANGE, target) is None) is may
    # A task of the same name that acted for another user gives no right to alice's things.
    bobs = Principal(ALLOCATION, 2, "bob", False, PROCESS.allocation)
    assert refusal(bobs, Action.CHANGE, Target(kind, THING[kind], Owner(1, "alice", ("7.a",))))


def test_a_refused_process_hears_its_rights() -> None:
    found = refusal(PROCESS, Action.CHANGE, Target(Kind.EXPERIMENT, 7, Owner(1, "alice")), "kill")
    assert isinstance(found, Forbidden)
    assert found.message == (
        "this is the token of allocation 7.a.1, which may change only what its own task submitted or "
        "stored: only alice, logged in, or an administrator may kill experiment 7"
    )


def test_reading_and_reporting_cost_no_look_at_the_database() -> None:
    for kind in Kind:
        assert not any(owner_decides(who, Action.READ, kind) for who in EVERYBODY.values())
    for kind in (Kind.TRIAL, Kind.TASK, Kind.ALLOCATION):
        assert not owner_decides(PROCESS, Action.REPORT, kind)
        assert owner_decides(ALICE, Action.REPORT, kind)


def test_a_user_is_not_an_agent() -> None:
    found = refusal(ROOT, Action.SERVE, Target(Kind.CLUSTER))
    assert isinstance(found, Unauthenticated)


def test_the_table_in_the_docstring_is_the_table() -> None:
    assert rules.__doc__ is not None
    rows = [line.split("|")[1:-1] for line in rules.__doc__.splitlines() if line.startswith("| ")]
    named = {
        (Action(action.strip()), Kind(kind.strip()))
        for action, kinds, _ in rows[1:]
        for kind in (Kind if kinds.strip() == "everything" else kinds.split(","))
    }
    assert named == RULES.keys()


@pytest.mark.parametrize(
    ("action", "kind", "verb"),
    [
        (Action.CREATE, Kind.EXPERIMENT, ""),
        (Action.CREATE, Kind.TASK, ""),
        (Action.CREATE, Kind.PIPELINE, ""),
        (Action.CREATE, Kind.MODEL, ""),
        (Action.REGISTER, Kind.CHECKPOINT, ""),
        (Action.CHANGE, Kind.EXPERIMENT, "continue"),
    ],
)
def test_a_task_whose_owner_is_deactivated_begins_nothing(
    action: Action, kind: Kind, verb: str
) -> None:
    target = Target(kind, 7, Owner(1, "alice", ("7.a",)))
    authorise(PROCESS, action, target, verb)
    with pytest.raises(Forbidden, match="user alice, in whose name this task runs, is deactivated"):
        authorise(dataclasses.replace(PROCESS, active=False), action, target, verb)


def test_a_task_whose_owner_is_deactivated_goes_on_with_its_training() -> None:
    own = dataclasses.replace(PROCESS, active=False)
    authorise(own, Action.REPORT, Target(Kind.TRIAL, 9))
    authorise(own, Action.READ, Target(Kind.EXPERIMENT, 7))
