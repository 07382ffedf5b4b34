"""Patterns of log policies: what they match, and how long that may take."""

from __future__ import annotations

import pytest

from determined_service.ingest.log_policies import PatternError, Policy, check

LINES = ["epoch 1 loss 0.5", "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", "bye"]


def find(pattern: str, lines: list[str] = LINES) -> str | None:
    policy = Policy.compile({"name": "p", "pattern": pattern})
    assert policy is not None
    return policy.find(lines, "\n".join(lines))


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
    assert find(pattern) == (None if line is None else LINES[line])


def test_a_policy_without_a_pattern_is_switched_off() -> None:
    assert Policy.compile({"name": "CUDA OOM", "pattern": None}) is None


def test_a_policy_without_a_name_goes_by_its_pattern() -> None:
    policy = Policy.compile({"name": None, "pattern": "a.c", "action": "exclude_node"})
    assert policy is not None
    assert (policy.name, policy.action) == ("a.c", "exclude_node")


def test_what_cannot_be_used_is_said_with_its_place() -> None:
    with pytest.raises(
        PatternError, match=r"log_policies\[1\]\.pattern: 'a\(\?!b\)' cannot be used"
    ):
        check([{"name": "good", "pattern": "a"}, {"name": "bad", "pattern": "a(?!b)"}])


def test_no_pattern_takes_for_ever() -> None:
    # As this one does where every alternative is tried in turn: 2 to the power of 20,000 of them.
    assert find("(a+)+$", ["a" * 20_000 + "b"]) is None
