"""Who may import whom, and what `import determined` may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = {
    "determined": ROOT / "harness/determined",
    "determined_searchers": ROOT / "searchers/determined_searchers",
    "determined_registry": ROOT / "registry/determined_registry",
    "determined_service": ROOT / "service/determined_service",
    "determined_tasks": ROOT / "tasks/determined_tasks",
    "determined_flows": ROOT / "flows/determined_flows",
    "determined_deployments": ROOT / "deployments/determined_deployments",
}

# The harness' modules that the platform shares; everything else of it belongs to training processes
# and users.
CONFIG = {"determined.expconf", "determined.__version__"}
CLIENT = CONFIG | {"determined.common"}
# Who runs where checkpoint storage is reached: legs verify, a flow deletes.
STORAGE = {"determined.storage", "determined.errors"}

ALLOWED: dict[str, set[str]] = {
    "determined": {"determined"},
    "determined_searchers": {"determined_searchers"},
    "determined_registry": {"determined_registry"} | CONFIG,
    "determined_service": {"determined_service", "determined_registry", "determined_searchers"}
    | CONFIG,
    "determined_tasks": {"determined_tasks", "determined_searchers"} | CLIENT | STORAGE,
    "determined_flows": {"determined_flows", "determined_tasks", "determined_searchers"}
    | CLIENT
    | STORAGE,
    # Agents run legs, so they use the tasks; flows they know by name only.
    "determined_deployments": {"determined_deployments", "determined_tasks"} | CLIENT,
}


def imports_of(path: Path, package: str) -> Iterator[str]:
    """The absolute names of the modules that ``path`` imports, wherever in the file."""
    module_parts = (package, *path.relative_to(PACKAGES[package]).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(module_parts[: -node.level]) if node.level else []
            if path.name == "__init__.py" and node.level:
                base = list(module_parts[:-1][: len(module_parts) - node.level])
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            if origin in PACKAGES or origin == "determined":
                yield from (f"{origin}.{name.name}" for name in node.names)


def is_ours(name: str) -> bool:
    return name.split(".")[0] in PACKAGES


def is_allowed(name: str, allowed: set[str]) -> bool:
    return any(name == entry or name.startswith(entry + ".") for entry in allowed)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    files = list(PACKAGES[package].rglob("*.py"))
    assert files, f"no module found in {PACKAGES[package]}"
    allowed = ALLOWED[package]
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports_of(path, package)
        if is_ours(name)
        and not is_allowed(name, allowed)
        # `from determined import expconf` names the parent package too.
        and not any(entry.startswith(name + ".") for entry in allowed)
    ]
    assert wrong == []


def test_a_forbidden_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    bad = tmp_path / "sub" / "bad.py"
    bad.write_text("def f():\n    from determined_service import app\n")
    monkeypatch.setitem(PACKAGES, "determined_searchers", tmp_path)
    assert "determined_service.app" in set(imports_of(bad, "determined_searchers"))
    assert not is_allowed("determined_service.app", ALLOWED["determined_searchers"])


HEAVY = ["prefect", "sqlalchemy", "mlflow", "fastapi", "torch", "numpy", "alembic", "psycopg"]
HEAVY += ["boto3", "botocore", "google.cloud", "azure"]


@pytest.mark.parametrize(
    "statement",
    ["import determined", "import determined.core", "from determined.experimental import client"],
)
def test_training_images_need_no_platform(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
