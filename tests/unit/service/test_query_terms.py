"""Queries of experiments are read as terms, and refused with the place and what is allowed."""

from __future__ import annotations

import pytest

from determined_service.base.errors import BadRequest
from determined_service.views.query_terms import Comparison, Field, Term, Word, read_query


def test_terms() -> None:
    assert read_query("") == read_query("  ") == []
    assert read_query('resnet  "two words" -label:a,b "label:x" -') == [
        Term(Word("resnet"), False),
        Term(Word("two words"), False),
        Term(Field("label", ("a", "b")), True),
        Term(Word("label:x"), False),
        Term(Word("-"), False),
    ]
    assert read_query('lr<0.01 hp.optimizer=adam -"val loss">=1e-3 name:"a, b",c') == [
        Term(Comparison("lr", "<", "0.01", 0.01), False),
        Term(Comparison("hp.optimizer", "=", "adam", None), False),
        Term(Comparison("val loss", ">=", "1e-3", 0.001), True),
        Term(Field("name", ("a, b", "c")), False),
    ]
    assert read_query("https://x.example") == [Term(Word("https://x.example"), False)]
    assert read_query(r'"a \"b\" \\"') == [Term(Word('a "b" \\'), False)]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ('x "two', "at character 3, '\"two': the quotation mark has no second one"),
        ("owner:", "a value follows the colon: owner:VALUE"),
        ("a foo:bar", "at character 3, 'foo:bar': there is no field foo; choose id, name"),
        ("lr<x", "'x' is not a number; texts are compared with = only"),
        ("lr<", "a value follows one of the signs"),
        ("lr==1", "a value follows one of the signs"),
        ("< 3", "without a space: lr<0.01"),
        ("x\0", "a NUL character is not allowed"),
        ("x" * 1001, "1001 characters, at most 1000 are allowed"),
        ("x " * 21, "at most 20 terms are allowed"),
        ("label:" + "a," * 51, "51 values, at most 50 are allowed"),
    ],
)
def test_refusals_say_the_place_and_what_is_allowed(query: str, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_query(query)
    assert said in refused.value.message, refused.value.message


def test_a_long_query_is_read_in_little_time() -> None:
    """Gains: a pattern that tries again and again would take minutes for these."""
    for text in ('"' * 1000, "-" * 1000, "\\" * 1000, "<" * 1000, 'a"' * 500, "a:" * 500):
        try:
            read_query(text)
        except BadRequest:
            continue
