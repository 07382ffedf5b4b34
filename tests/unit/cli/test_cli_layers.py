"""The packages of ``determined.cli`` import each other in one direction only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import determined.cli

ROOT = Path(determined.cli.__file__).parent
FRAME = {"completion", "errors", "option_groups", "printing", "state"}
MAY_IMPORT = {
    "output": FRAME,
    "arguments": FRAME | {"output"},
    "following": FRAME | {"output"},
    "submission": FRAME | {"output", "following"},
    "launched": FRAME | {"output", "arguments", "groups", "following"},
    "entering": FRAME | {"launched", "arguments"},
    "doctor": FRAME | {"output"},
    "option_groups.py": set(),
    "printing.py": set(),
    "errors.py": {"printing"},
    "cluster_message.py": {"printing"},
    "state.py": {"cluster_message", "errors"},
    "completion.py": {"state"},
    "groups.py": {"absent", "printing"},
    "absent.py": set(),
    "root.py": FRAME | {"groups"},
}


def _imported(folder: Path) -> Iterator[str]:
    """The parts of ``determined.cli`` that the files import, wherever in the file the import is."""
    for file in [folder] if folder.is_file() else folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            yield from (name.split(".")[2] for name in names if name.startswith("determined.cli."))


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_lower_parts(part: str) -> None:
    found = set(_imported(ROOT / part)) - {part}
    assert found <= MAY_IMPORT[part]


def test_every_package_without_commands_is_listed() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"experiment"} == {part for part in MAY_IMPORT if "." not in part}


CALLS = {"get", "post", "put", "patch", "delete", "request", "stream", "stream_batches", "open"}
# Modules that must send requests themselves: within a second, without a login, to a service that is not
# ready, for a browser alone.
ASK_THEMSELVES = {
    "cluster_message.py",
    "completion.py",
    "open.py",
    "state.py",
    "tunnel.py",
    "doctor/examine.py",
}


def _asks_the_service(file: Path) -> bool:
    """Whether a method of a session is called in it: ``session.get(…)``, ``shared.session.post(…)``."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
            if node.func.attr in CALLS and name.endswith("session"):
                return True
    return False


def test_commands_ask_the_service_through_the_sdk() -> None:
    asking = {
        path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if _asks_the_service(path)
    }
    assert asking == ASK_THEMSELVES


def test_a_call_past_the_sdk_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f(ctx):\n    state(ctx).session.post('/api/v1/x', json={})\n")
    assert _asks_the_service(file)
    file.write_text("def f(ctx):\n    state(ctx).client.get_trial(3)\n")
    assert not _asks_the_service(file)
