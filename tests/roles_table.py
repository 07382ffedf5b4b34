"""What each role allows: the tables of docs/operate/roles.md, and of the tests.

``python -m tests.roles_table`` writes them into the page. Two tests hold them true: the rules of access
decide as they say (``unit/service/test_roles.py``, which also compares them with the page), and so do all
routes that change something (``integration/service_api/test_role_by_route.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from determined_service.access.permissions import CLUSTER_WIDE, Permission
from determined_service.access.roles import CLUSTER_ADMIN, ROLES, Role
from determined_service.access.rules import PERMITS, RULES, Action, Grant
from determined_service.access.targets import Kind

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "roles.md"

ALL, OWN, NONE = "yes", "own", "no"
"""Of a thing in the workspace of the role: anybody's, one's own alone, nobody's."""

_OTHERS = {Permission.DELETE_MODEL_REGISTRY: Permission.DELETE_OTHER_USER_MODEL_REGISTRY}
_BY_OWNERS = (Grant.OWNER_ALONE, Grant.SENDER)
_PLACES = (Kind.WORKSPACE, Kind.PROJECT)
"""What a role allows the owner alone, but for places."""


def cell(role: Role, action: Action, kind: Kind) -> str:
    """What the role allows where it was assigned in one workspace; ClusterAdmin: everywhere."""
    if role.name == CLUSTER_ADMIN:
        return ALL
    needed = PERMITS[action, kind]
    in_one = not role.cluster_wide
    if not role.permits(needed, in_one):
        return NONE
    if RULES[action, kind] in _BY_OWNERS and kind not in _PLACES:
        return OWN
    return ALL if role.permits(_OTHERS.get(needed, needed), in_one) else OWN


def actions() -> Iterator[str]:
    """The table of actions, in Markdown: those that the same roles allow stand in one row."""
    yield "| action | target | permission | " + " | ".join(ROLES) + " |"
    yield "|---" * (len(ROLES) + 3) + "|"
    rows: dict[tuple[str, ...], list[str]] = {}
    for (action, kind), needed in PERMITS.items():
        cells = [cell(role, action, kind) for role in ROLES.values()]
        rows.setdefault((action, needed.name, *cells), []).append(kind.value)
    for (action, name, *cells), kinds in rows.items():
        yield f"| {action} | {', '.join(kinds)} | `{name}` | {' | '.join(cells)} |"


def roles() -> Iterator[str]:
    """The table of roles, in Markdown."""
    yield "| role | number | assigned | what it is for |"
    yield "|---|---|---|---|"
    for role in ROLES.values():
        where = "everywhere" if role.cluster_wide else "in a workspace, or everywhere"
        yield f"| `{role.name}` | {role.id} | {where} | {role.says} |"


def permissions() -> Iterator[str]:
    """The table of permissions, in Markdown: those that the same roles have stand in one row."""
    yield "| permissions | roles |"
    yield "|---|---|"
    rows: dict[str, list[str]] = {}
    for one in Permission:
        having = ", ".join(role.name for role in ROLES.values() if one in role.allows)
        rows.setdefault(having, []).append(_name(one))
    for having, names in rows.items():
        yield f"| {', '.join(names)} | {having} |"


def _name(permission: Permission) -> str:
    return f"`{permission.name}`{'*' if permission in CLUSTER_WIDE else ''}"


def filled(page: str) -> str:
    """The page with the tables of today."""
    for name, lines in (("roles", roles()), ("permissions", permissions()), ("actions", actions())):
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(start)
        _, ended, after = rest.partition(end)
        assert found and ended, f"the page has no place for {name}"
        page = before + start + "\n".join(lines) + "\n" + end + after
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
