"""Patterns of log policies: their matches and their time limit."""

from __future__ import annotations

import pytest

from determined_service.ingest import pattern_search
from determined_service.ingest.log_patterns import Pattern, PatternError, literal
from determined_service.ingest.log_policies import LogPolicyRule, check
from determined_service.ingest.pattern_search import PatternSearch

LINES = ["epoch 1 loss 0.5", "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", "bye"]
# Seconds for each 10 KiB of these: 2 ** 300 states of an automaton, and more that are looked at one by one.
COSTLY = "(?:[ab]*a[ab]{1000}){5}c"


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (".*CUDA out of memory.*", 1),
        ("CUDA", 1),
        ("^bye$", 2),
        (r"\Abye\z", 2),
        ("loss 0.5$", 0),
        ("(?i)cuda OUT", 1),
        ("GiB|loss", 0),
        # A line each: no match goes from one to the next.
        (r"GiB\s+bye", None),
        ("(?s)GiB.*bye", None),
        ("nothing like it", None),
        ("^CUDA", None),
    ],
)
def test_a_pattern_is_looked_for_in_each_line(pattern: str, line: int | None) -> None:
    assert Pattern.compile(pattern).find(LINES) == line
    text = literal(pattern)
    if text is not None:
        assert [text in one for one in LINES].count(True) == (line is not None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (".*CUDA out of memory.*", "CUDA out of memory"),
        ("uncorrectable ECC error", "uncorrectable ECC error"),
        ("a.c", None),
        ("a+", None),
        ("^a", None),
        ("(?i)a", None),
        (r"\w", None),
        (".*", None),
    ],
)
def test_plain_text_is_known_as_such(pattern: str, text: str | None) -> None:
    assert literal(pattern) == text


def test_a_policy_without_a_pattern_is_switched_off() -> None:
    assert LogPolicyRule.of({"name": "CUDA OOM", "pattern": None}) is None


def test_a_policy_without_a_name_goes_by_its_pattern() -> None:
    policy = LogPolicyRule.of({"name": None, "pattern": "a.c", "action": "exclude_node"})
    assert policy is not None
    assert (policy.name, policy.action) == ("a.c", "exclude_node")


async def test_invalid_entries_are_reported_with_their_place() -> None:
    with pytest.raises(
        PatternError, match=r"log_policies\[1\]\.pattern: 'a\(\?!b\)' cannot be used"
    ):
        await check([{"name": "good", "pattern": "a+"}, {"name": "bad", "pattern": "a(?!b)"}])


async def test_backtracking_does_not_happen() -> None:
    # A backtracking engine would try every alternative: 2 to the power of 20,000.
    search = PatternSearch()
    try:
        assert await search.find(["(a+)+$", "b$"], ["a" * 20_000 + "b"]) == {"b$": 0}
    finally:
        await search.close()


async def test_a_costly_pattern_is_given_up_and_the_others_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pattern_search, "PATTERN_S", 0.05)
    monkeypatch.setattr(pattern_search, "PIECE_CHARS", 60_000)
    search = PatternSearch()
    try:
        lines = ["ab" * 10_000, "x", "ba" * 20_000, "the end\ud800"]
        found = await search.find(["^x$", COSTLY, "^the end"], lines)
        # The next piece, after the process was ended, counts on.
        assert found == {"^x$": 1, "^the end": 3}
        assert search.is_slow(COSTLY)
        assert not search.is_slow("^x$")
        assert await search.find([COSTLY, "b{3}"], ["abbbc"]) == {"b{3}": 0}
    finally:
        await search.close()


async def test_a_process_that_dies_is_followed_by_another() -> None:
    search = PatternSearch()
    try:
        assert await search.find(["a+"], ["a"]) == {"a+": 0}
        assert search._process is not None
        search._process.kill()
        await search._process.wait()
        assert await search.find(["a+"], ["b", "a"]) == {"a+": 1}
    finally:
        await search.close()
