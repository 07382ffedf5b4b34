"""The page of environment variables is that of its table, and the table has every variable of the sources."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from determined.cli.variables import GROUPS, page
from tests.printed import ROOT, pages

SOURCES = ("harness", "searchers", "registry", "service", "tasks", "flows", "deployments")
PAGE = ROOT / "docs" / "reference" / "environment.md"
OURS = re.compile(r"\b(?:DET|DETERMINED)_[A-Z0-9_]*[A-Z0-9]\b(?!_)")
TESTS = {"DET_TEST_PYTHONS", "DET_CHAOS_SECONDS", "DET_CHAOS_SEED"}
"""What only tests read."""
NO_VARIABLE = {"DET_USERNAME"}
"""How `det` calls an argument."""
OTHERS = {
    *("PATH", "SHELL", "TERM", "TMPDIR", "CUDA_VISIBLE_DEVICES", "TF_CONFIG", "OMP_NUM_THREADS"),
    *("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"),
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("HOROVOD_RANK", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE"),
}
"""Variables of systems and libraries, which mean here what they mean everywhere."""

KNOWN = {each.name for group in GROUPS for each in group.variables}


@functools.cache
def sources() -> dict[Path, str]:
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "deployments").rglob("*.sh")
    return {
        path: path.read_text()
        for path in files
        if path != ROOT / "harness/determined/cli/variables.py"
    }


def read_by_name(text: str) -> Iterator[str]:
    """``X`` of each ``os.environ["X"]``, ``os.environ.get("X")`` and similar expressions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Subscript):
            where, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            where, key = node.func.value, node.args[0]
        else:
            continue
        if (
            isinstance(key, ast.Constant)
            and isinstance(key.value, str)
            and ast.unparse(where) == "os.environ"
        ):
            yield key.value


def test_the_page_is_that_of_the_table() -> None:
    assert page() == PAGE.read_text(), "the page is not that of the table: run `make docs`"


def test_each_variable_of_the_sources_is_in_the_table() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in sources().items()
        for name in set(OURS.findall(text)) - KNOWN - NO_VARIABLE
    }
    assert missing == set(), (
        "describe them in harness/determined/cli/variables.py, then `make docs`"
    )


def test_each_variable_that_is_read_is_in_the_table_or_everybodys() -> None:
    read = {
        name
        for path, text in sources().items()
        if path.suffix == ".py" and "environ" in text
        for name in read_by_name(text)
    }
    assert {"DET_MASTER", "FORWARDED_ALLOW_IPS"} <= read  # the reading of sources works
    assert read - KNOWN - OTHERS == set()
    assert read - KNOWN >= OTHERS, "nobody reads these any more"


def test_each_variable_of_the_table_is_in_the_sources() -> None:
    everything = "\n".join(sources().values())
    assert [name for name in sorted(KNOWN) if not re.search(rf"\b{name}\b", everything)] == []


def test_documentation_names_no_other_variable() -> None:
    named = {name for path in pages() for name in OURS.findall(path.read_text())}
    assert named - KNOWN - TESTS - NO_VARIABLE == set()
