"""The diagrams of docs/inside/lifecycle.md match the tables."""

from __future__ import annotations

import re

import pytest

from determined_service.state import diagram
from determined_service.state.states import ALLOCATION, MACHINES


def test_the_page_is_up_to_date() -> None:
    page = diagram.PAGE.read_text()
    assert diagram.redraw(page) == page, "run `python -m determined_service.state.diagram`"


@pytest.mark.parametrize("noun", MACHINES)
def test_every_move_is_drawn_and_no_other(noun: str) -> None:
    machine = MACHINES[noun]
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", diagram.draw(machine), re.MULTILINE))
    assert drawn == {(old, new) for old, following in machine.moves.items() for new in following}
    last = set(re.findall(r"(\w+) --> \[\*\]", diagram.draw(machine)))
    assert last - {"DELETING"} == {state for state, next_ in machine.moves.items() if not next_}


def test_an_allocation() -> None:
    assert diagram.draw(ALLOCATION).splitlines()[:3] == [
        "stateDiagram-v2",
        "    [*] --> REQUESTED",
        "    REQUESTED --> ASSIGNED",
    ]


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="once each"):
        diagram.redraw("no markers")


def test_only_the_section_changes() -> None:
    page = f"before\n{diagram.BEGIN}\nold\n{diagram.END}\nafter\n"
    drawn = diagram.redraw(page)
    assert drawn.startswith("before\n")
    assert drawn.endswith("\nafter\n")
    assert "old" not in drawn
    assert diagram.redraw(drawn) == drawn
