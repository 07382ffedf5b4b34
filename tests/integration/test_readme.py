"""README works as printed: every block, from the first to the last, for somebody who has just cloned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import page_session
from tests.local_cluster import LocalCluster
from tests.memory_folder import memory_folder

LIMIT_S = 1800


@pytest.fixture
def folder() -> Iterator[Path]:
    """With an empty home, and no cluster left after the test."""
    with memory_folder("determined-readme-") as name:
        place = Path(name)
        (place / "home").mkdir()
        try:
            yield place
        finally:
            LocalCluster(place / "home/.local/share/determined", {}).end()


@pytest.mark.timeout(LIMIT_S)
def test_readme_works_as_printed(folder: Path) -> None:
    checkout, home = folder / "checkout", folder / "home"
    page_session.clone(checkout)
    page_session.run(checkout / "README.md", checkout, folder, page_session.environment(home))
    # Git ignores the examples' output, or it lies elsewhere.
    assert page_session.git(checkout, "status", "--porcelain") == ""
