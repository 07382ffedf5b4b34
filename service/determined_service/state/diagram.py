"""Draws the transition tables into ``docs/inside/lifecycle.md``.

``python -m determined_service.state.diagram``: between the markers the page is what the tables of
:mod:`.states` say, and nothing else; with ``--check``, exit code 1 when it is not, and nothing is
written. For a checkout: the wheel has no ``docs``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from determined_service.state.states import ACTIVE, DELETING, MACHINES, PAUSED, REQUESTED, Machine

PAGE = Path(__file__).parents[3] / "docs" / "inside" / "lifecycle.md"
BEGIN = "<!-- drawn by `python -m determined_service.state.diagram` -->"
END = "<!-- end of what is drawn -->"

# A row's first state is not a move, so it is not in the tables.
_FIRST = {
    "experiment": (ACTIVE, PAUSED),
    "trial": (ACTIVE,),
    "task": (ACTIVE,),
    "allocation": (REQUESTED,),
}
# Nor is the end of the row itself.
_GONE = {DELETING}


def draw(machine: Machine) -> str:
    """The Mermaid text of one table: a line per move, states in the order in which they are reached."""
    first = _FIRST[machine.noun]
    order = dict.fromkeys(first)
    lines = ["stateDiagram-v2", *(f"    [*] --> {state}" for state in first)]
    # The tables hold sets: only a sorted one is the same in every process.
    waiting = list(first)
    while waiting:
        state = waiting.pop(0)
        following = sorted(machine.moves[state])
        new = [each for each in following if each not in order]
        order.update(dict.fromkeys(new))
        waiting += new
        lines += [f"    {state} --> {each}" for each in following]
        if not following or state in _GONE:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines)


def section() -> str:
    """The text between the markers, markers included."""
    parts = [BEGIN]
    for noun, machine in MACHINES.items():
        parts.append(f"### {noun.capitalize()}\n\n```mermaid\n{draw(machine)}\n```")
    return "\n\n".join([*parts, END])


def redraw(page: str) -> str:
    """``page`` with its section drawn anew. Raises ValueError unless each marker occurs exactly once."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must have the lines {BEGIN!r} and {END!r}, once each")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{section()}{after}"


def main() -> int:
    page = PAGE.read_text()
    drawn = redraw(page)
    if "--check" in sys.argv[1:]:
        return int(page != drawn)
    if page != drawn:
        PAGE.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
