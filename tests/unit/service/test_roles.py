"""The table of roles: what each allows, and the page that says so."""

from __future__ import annotations

import pytest

from determined_service.access.permissions import CLUSTER_WIDE, Permission, Rights
from determined_service.access.principal import ALLOCATION, USER, AllocationRef, Principal
from determined_service.access.roles import ROLES, least, rights_within, standing
from determined_service.access.rules import PERMITS, RULES, Action, Grant, authorise
from determined_service.access.targets import HomeWorkspace, Kind, Owner, Target
from determined_service.base.errors import Forbidden
from tests import roles_table
from tests.roles_table import ALL, NONE, OWN

HERE, THERE = HomeWorkspace(7, "vision"), HomeWorkspace(8, "o'hara")


def who(role: str, place: int | None = HERE.id) -> Principal:
    admin, rights = standing(False, [(role, None if role in EVERYWHERE else place)], True)
    return Principal(USER, 1, "ann", admin, rights=rights)


EVERYWHERE = {role.name for role in ROLES.values() if role.cluster_wide}


def refused(subject: Principal, action: Action, target: Target) -> str | None:
    try:
        authorise(subject, action, target)
    except Forbidden as error:
        return error.message
    return None


def target(action: Action, kind: Kind, owner: int, place: HomeWorkspace) -> Target:
    """A thing of that owner in that place, or one that is to be made there."""
    if action in (Action.CREATE, Action.SUBMIT, Action.ASSIGN):
        return Target(kind, into=place)
    return Target(kind, 3, Owner(owner, "bob", place=place))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("action", "kind"), PERMITS)
def test_rights(role: str, action: Action, kind: Kind) -> None:
    """One's own, another's, and one's own in another workspace."""
    cell = roles_table.cell(ROLES[role], action, kind)
    made = action in (Action.CREATE, Action.SUBMIT, Action.ASSIGN)
    for owner, place, allowed in (
        (1, HERE, cell in (ALL, OWN)),
        (2, HERE, cell == ALL or (made and cell != NONE)),
        (1, THERE, role in EVERYWHERE and cell != NONE),
    ):
        said = refused(who(role), action, target(action, kind, owner, place))
        assert (said is None) == allowed, (owner, place, said)


@pytest.mark.parametrize(("action", "kind"), PERMITS)
def test_a_refusal_names_the_role_that_would_do(action: Action, kind: Kind) -> None:
    there = target(action, kind, 1, THERE)
    said = refused(who("ModelRegistryViewer"), action, there) or ""
    role = said.partition("that needs the role ")[2].partition(" ")[0].rstrip(";")
    where, option = ' in workspace "o\'hara"', " -w 'o'\"'\"'hara'"
    if role in EVERYWHERE:
        where, option = "", ""
    assert f"{role}{where}; who may assign it runs" in said
    assert f"`det rbac assign-role {role} -u ann{option}`" in said
    assert refused(who(role, THERE.id), action, there) is None


def test_the_least_role_is_the_least_of_those_that_everybody_knows() -> None:
    ladder = [ROLES[name] for name in ("Viewer", "Editor", "WorkspaceAdmin", "ClusterAdmin")]
    for permission in Permission:
        role = least(permission, in_one=True)
        assert permission in role.allows
        if role in ladder:
            lower = ladder[: ladder.index(role)]
            assert not any(one.permits(permission, in_one=True) for one in lower), permission


def test_a_role_everywhere_holds_in_every_workspace() -> None:
    editor = who("Editor", place=None)
    for place in (HERE, THERE):
        assert refused(editor, Action.CHANGE, target(Action.CHANGE, Kind.MODEL, 2, place)) is None


def test_rights_in_one_workspace_are_none_in_the_cluster() -> None:
    for role in ROLES.values():
        _, rights = standing(False, [(role.name, 7)], True)
        assert rights is not None
        assert not any(rights.allow(one, 7) or rights.allow(one) for one in CLUSTER_WIDE)


def test_rights_within_a_workspace_are_those_that_hold_there() -> None:
    _, rights = standing(False, [("Viewer", None), ("Editor", 7), ("WorkspaceAdmin", 8)], True)
    for place, may_change in ((7, True), (9, False)):
        left = rights_within(place, False, rights)
        assert left.workspaces(Permission.VIEW_WORKSPACE) == {place}
        assert left.allow(Permission.UPDATE_EXPERIMENT, place) is may_change
        assert not left.allow(Permission.DELETE_WORKSPACE, 8)
    administrator = rights_within(7, True, None)
    assert administrator.workspaces(Permission.VIEW_EXPERIMENT_METADATA) == {7}
    assert not any(administrator.allow(one, 7) or administrator.allow(one) for one in CLUSTER_WIDE)


def test_a_role_of_a_later_release_gives_nothing() -> None:
    assert standing(False, [("Emperor", None)], True) == (False, Rights())


def test_a_training_process_begins_nothing_that_its_owner_may_not() -> None:
    viewer = who("Viewer")
    process = Principal(
        ALLOCATION, 1, "ann", False, AllocationRef("7.a.1", "7.a", 7, 9, 1), rights=viewer.rights
    )
    made = Owner(1, "ann", ("7.a",), HERE)
    for action, kind in PERMITS:
        said = refused(process, action, Target(kind, 3, made))
        if action in (Action.CREATE, Action.SUBMIT, Action.REGISTER):
            assert "that needs the role" in (said or ""), (action, kind)
        elif RULES[action, kind] == Grant.OWNER:
            assert said is None, (action, kind)


def test_the_tables_in_the_docs_are_the_tables() -> None:
    page = roles_table.PAGE.read_text()
    assert roles_table.filled(page) == page, "python -m tests.roles_table"
