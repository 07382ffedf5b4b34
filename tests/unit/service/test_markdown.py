"""Texts on Prefect's pages are shown, never read as markup."""

from __future__ import annotations

from determined_service.prefect.pages import markdown


def test_markup_is_shown_as_it_is() -> None:
    shown = markdown.text("<img src=x> [a](javascript:b) `c` *d* e_f | g\nh\x1b[0m")
    assert "\n" not in shown
    assert "\x1b" not in shown
    for found in "<>[]()`*_|":
        assert shown.count(found) == shown.count(f"\\{found}")


def test_long_texts_are_cut() -> None:
    assert len(markdown.text("a" * 10_000)) == markdown.MOST_CHARACTERS
    assert markdown.text("a" * 10, 5) == "aaaa…"


def test_a_fence_is_longer_than_the_fences_in_it() -> None:
    assert markdown.fenced(["a", "````", "b"]) == "`````text\na\n````\nb\n`````"
    assert markdown.fenced(["a"]) == "```text\na\n```"


def test_a_table_has_a_row_a_line() -> None:
    found = markdown.table(["name", "value"], [["a\nb", 0.1234567891], ["c|d", {"e": [1]}]])
    assert found.splitlines() == [
        "| name | value |",
        "|---|---|",
        r"| a b | 0\.123457 |",
        r'| c\|d | \{"e"\:\[1\]\} |',
    ]


def test_numbers_are_short() -> None:
    assert [markdown.number(one) for one in (1, 0.1 + 0.2, float("nan"), True, "x")] == [
        "1",
        "0.3",
        "nan",
        "True",
        "x",
    ]
