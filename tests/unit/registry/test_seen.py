"""The views of what one user sees."""

from __future__ import annotations

import pytest

from determined_registry.database.seen import ALL, CONDITIONS, NOTHING, OPEN, Seen, read, written
from determined_registry.database.tables import metadata

SHOWN = Seen("7", "0", "", *["{1,2}"] * 7, ALL)


def test_every_table_has_a_view_of_one_kind() -> None:
    """A new table is shown whole only where somebody has said so."""
    assert OPEN.isdisjoint(CONDITIONS)
    assert OPEN | CONDITIONS.keys() == metadata.tables.keys()


@pytest.mark.parametrize("seen", [None, NOTHING, SHOWN])
def test_what_is_written_is_read(seen: Seen | None) -> None:
    assert read(written(seen)) == seen


def test_equal_lists_of_workspaces_are_written_once() -> None:
    assert written(SHOWN).count("{1,2}") == 1


@pytest.mark.parametrize("line", ["{}", '{"{0}": ["user"]}', "nothing"])
def test_a_line_that_says_too_little_shows_nothing(line: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        read(line)
