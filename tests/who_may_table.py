"""The rights of each kind of token, rule by rule: the table of docs/operate/security.md, and of the tests.

Three tests hold it true: the rules of access decide as it says (``unit/service/test_access_rules.py``, which
also compares it with the page), and so do all routes (``integration/service_api/test_all_tokens.py``).
``python -m tests.who_may_table`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator

from determined_service.access.rules import RULES, Action, Grant
from determined_service.access.targets import Kind

OTHER, OWNER, ADMINISTRATOR = "another user", "the owner", "administrator"
PROCESS, AGENT, SUPERVISOR, RUN = "training process", "agent", "supervisor", "Prefect run"
COLUMNS = (OTHER, OWNER, ADMINISTRATOR, PROCESS, AGENT, SUPERVISOR, RUN)

YES, NO = "yes", "no"
OWN = "its own"
MADE = "its task's"
"""A training process: what its own task submitted or stored."""

_CELLS: dict[Grant, tuple[str, ...]] = {
    Grant.LOGGED_IN: (YES, YES, YES, YES, YES, NO, NO),
    Grant.USER: (YES, YES, YES, NO, NO, NO, NO),
    Grant.OWNER: (NO, YES, YES, MADE, YES, NO, NO),
    Grant.OWNER_ALONE: (NO, YES, YES, NO, YES, NO, NO),
    Grant.OWNER_OR_TASKS: (NO, YES, YES, YES, YES, NO, NO),
    Grant.ITSELF: (NO, YES, YES, NO, YES, NO, NO),
    Grant.SENDER: (NO, YES, YES, OWN, YES, NO, NO),
    Grant.ADMINISTRATOR: (NO, NO, YES, NO, YES, NO, NO),
    Grant.AGENT: (NO, NO, NO, NO, YES, NO, NO),
}


def cells(action: Action, kind: Kind) -> dict[str, str]:
    """By column, the rule's answer for a thing of this kind: :data:`YES`, :data:`NO`, :data:`OWN`, …"""
    grant = RULES[action, kind]
    if grant == Grant.SERVING:
        supervised = kind == Kind.ALLOCATION
        row = (NO, NO, NO, NO, YES, OWN if supervised else NO, NO if supervised else OWN)
    else:
        row = _CELLS[grant]
    found = dict(zip(COLUMNS, row, strict=True))
    if action == Action.SUBMIT:
        found[RUN] = OWN  # one that was started in Prefect by hand
    return found


def lines() -> Iterator[str]:
    """The table in Markdown: rules of one action that say the same stand in one row."""
    yield "| action | target | " + " | ".join(COLUMNS) + " |"
    yield "|---" * (len(COLUMNS) + 2) + "|"
    rows: dict[tuple[Action, tuple[str, ...]], list[str]] = {}
    for action, kind in RULES:
        row = tuple(cells(action, kind).values())
        rows.setdefault((action, row), []).append(kind.value)
    for (action, row), kinds in rows.items():
        everything = action == Action.READ and len(kinds) > len(Kind) // 2
        yield f"| {action} | {'everything else' if everything else ', '.join(kinds)} | {' | '.join(row)} |"


if __name__ == "__main__":
    print("\n".join(lines()))
