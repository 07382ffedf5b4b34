"""The message about a search that was given up."""

from __future__ import annotations

import pytest

from determined_service.lifecycle.giving_up import in_words

OPEN = "process exited with code 1: OSError: no /tmp/{} (train.py, line 3: open(path))"
UUIDS = ("0b6f2f3e-51a0-4c1c-8a55-000000000001", "ffffffff-51a0-4c1c-8a55-00000000000a")


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ([OPEN.format(1)], f"1 trial failed {{}}, the last, trial 1: {OPEN.format(1)}. "),
        (
            [OPEN.format(name) for name in UUIDS],
            f"2 trials in a row failed {{}}, all of them as trial 2 did: {OPEN.format(UUIDS[1])}. ",
        ),
        (
            [OPEN.format(1), "killed", OPEN.format(3), "no memory"],
            f"4 trials in a row failed {{}}, 2 of them as trial 3 did: {OPEN.format(3)}. ",
        ),
        (["one", "two"], "2 trials in a row failed {}, the last, trial 2: two. "),
        (
            ["at 0x7f00", "at 0x8f11"],
            "2 trials in a row failed {}, all of them as trial 2 did: at 0x8f11. ",
        ),
    ],
)
def test_the_shared_error_is_named(reasons: list[str], said: str) -> None:
    found = in_words(list(enumerate(reasons, 1)), 2)
    assert found.startswith(said.format("before any trial reported a metric"))
    assert found.endswith("the limit is max_failures (2; null = none)")
