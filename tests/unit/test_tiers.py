"""The suites that run for a change."""

from __future__ import annotations

import subprocess

import pytest

from tests import tiers


def tracked() -> list[str]:
    command = ["git", "ls-files", "-z"]
    done = subprocess.run(command, cwd=tiers.ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("the tree is no clone of git's")
    return [path for path in done.stdout.split("\0") if path]


def test_every_source_has_a_row() -> None:
    """Otherwise a change there would run nothing of the long tier, or everything."""
    without = [path for path in tracked() if "/" in path and tiers.row_of(path) is None]
    assert without == []


def test_every_row_and_every_long_suite_exists() -> None:
    places = {place for of_suite in tiers.LONG.values() for place in of_suite}
    assert [name for name in (*tiers.CONCERNS, *places) if not (tiers.ROOT / name).exists()] == []
    assert not [
        name for suites in tiers.CONCERNS.values() for name in suites if name not in tiers.LONG
    ]


@pytest.mark.parametrize(
    ("path", "suites"),
    [
        ("docs/reference/cli.md", ()),
        ("README.md", ()),
        ("searchers/determined_searchers/asha.py", (tiers.CHAOS, tiers.PUBLISHED)),
        ("harness/determined/common/wire/limits.py", tiers.ALL),
        ("service/determined_service/lifecycle/exits.py", tiers.ALL),
        ("tests/integration/containers/conftest.py", (tiers.CONTAINERS,)),
        ("tests/integration/test_deepspeed.py", (tiers.GANGS,)),
        ("tests/integration/test_search.py", ()),
        ("tests/local_cluster.py", tiers.ALL),
        ("something/new.py", tiers.ALL),
    ],
)
def test_the_suites_of_a_change(path: str, suites: tuple[str, ...]) -> None:
    assert tiers.concerned([path]) == set(suites)


def test_without_a_commit_all_long_suites_are_left_out() -> None:
    options = tiers.left_out(())
    assert "--ignore=tests/chaos" in options
    assert len(options) == sum(map(len, tiers.LONG.values()))
    assert tiers.left_out(tiers.ALL) == []


def test_a_missing_commit_runs_all() -> None:
    assert tiers.changed_since("0" * 40) is None
