"""The allowed imports, and the cost of `import determined`."""

from __future__ import annotations

import ast
import collections
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.waiting import TIMEOUT_S

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

# The harness' modules that the platform shares; its other modules belong to training processes and users.
CONFIG = {"determined.expconf"}
VERSION = {"determined.__version__"}
BACKOFF = {"determined.common.backoff"}
# Text of other people, on a terminal and in the service's log.
PRINTABLE = {"determined.common.printable"}
# What to install, in errors.
INSTALLATION = {"determined.common.installation"}
# What a new experiment can start from, for `det init` and the pages.
EXAMPLES = {"determined.common.examples"}
# Who imports Prefect.
LEAN = {"determined.common.lean_jsonschema"}
# What both sides of the wire import.
WIRE = {"determined.common.wire"}
# The cluster's own configuration, which `det` checks before the service reads it.
CLUSTER = {"determined.common.cluster_config"}
# The rule by which a newly trained model is promoted, which the evaluation's process uses as well.
PROMOTION = {"determined.common.promotion"}
# Pipelines are read and resolved by `det`, the SDK and the service alike.
PIPELINE = {"determined.common.pipeline"}
CLIENT = CONFIG | {"determined.common"}
# Processes that reach checkpoint storage: legs verify, a flow deletes, a reader serves downloads.
STORAGE = {"determined.storage", "determined.errors"}

ALLOWED: dict[str, set[str]] = {
    "determined": {"determined"},
    "determined_searchers": {"determined_searchers"} | INSTALLATION,
    # The limits on names, tags and metadata are the wire's. The server of MLflow's pages, a separate process,
    # reads and writes files, and sends changes to the service.
    "determined_registry": {"determined_registry", "determined.common.api"}
    | CONFIG
    | WIRE
    | STORAGE,
    "determined_service": {"determined_service", "determined_registry", "determined_searchers"}
    | CONFIG
    | VERSION
    | BACKOFF
    | INSTALLATION
    | PRINTABLE
    | EXAMPLES
    | CLUSTER
    | PROMOTION
    | PIPELINE
    | LEAN
    | WIRE
    # Of the service only the process that reads checkpoint files; see the test below.
    | STORAGE,
    "determined_tasks": {"determined_tasks"} | CLIENT | STORAGE,
    "determined_flows": {"determined_flows", "determined_tasks", "determined_searchers"}
    | CLIENT
    | STORAGE
    # The blocks are for users' flows, and use what users have.
    | {"determined.experimental"},
    # Agents run legs, so they use the tasks; flows they know by name only.
    "determined_deployments": {"determined_deployments", "determined_tasks"} | CLIENT | VERSION,
}


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Everything in the module; each file is read once for all tests."""
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def files_of(folder: Path) -> list[Path]:
    return list(folder.rglob("*.py"))


def imports_of(path: Path, package: str) -> Iterator[str]:
    """The absolute names of the modules that ``path`` imports, wherever in the file."""
    module_parts = (package, *path.relative_to(PACKAGES[package]).with_suffix("").parts)
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(module_parts[: -node.level]) if node.level else []
            if path.name == "__init__.py" and node.level:
                base = list(module_parts[:-1][: len(module_parts) - node.level])
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            # A name that is imported from a package may be one of its modules.
            if is_ours(origin):
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
    imported = {name for path in files for name in imports_of(path, package)}
    unused = {one for one in allowed if not any(is_allowed(name, {one}) for name in imported)}
    assert unused == set(), "what nobody imports need not be allowed"
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


def test_of_the_shared_folder_the_service_may_not_import_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from determined.common import api\nfrom determined.common.wire import paths\n")
    monkeypatch.setitem(PACKAGES, "determined_service", tmp_path)
    allowed = ALLOWED["determined_service"]
    found = set(imports_of(bad, "determined_service"))
    assert {name for name in found if not is_allowed(name, allowed)} == {
        "determined.common",
        "determined.common.api",
    }


def test_only_a_separate_process_opens_storages_for_the_service() -> None:
    package = "determined_service"
    found = {
        path.relative_to(PACKAGES[package]).as_posix()
        for path in PACKAGES[package].rglob("*.py")
        for name in imports_of(path, package)
        if is_allowed(name, STORAGE)
    }
    assert found == {"downloads/reader.py"}


# The service's rooms, from the bottom to the top: a room imports only from rooms before it.
ROOMS = [
    "base",
    "access",
    "state",
    "ingest",
    "deleting",
    "lifecycle",
    "views",
    "downloads",
    "plots",
    "search",
    "scheduling",
    "submission",
    "recurring",
    "pipelines",
    "retraining",
    "prefect",
    "loops",
    "mlflow",
    "proxy",
    "web",
    "internal",
    "public",
    "front",
    "bootstrap",
    "app",
    "migration",
    "reference",
    "__main__",
]
SERVICE = PACKAGES["determined_service"]


def module_name(path: Path, package: str) -> str:
    parts = (package, *path.relative_to(PACKAGES[package]).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_within(package: str) -> dict[str, set[str]]:
    """Each module of the package, and its modules that this one imports, wherever in the file."""
    files = {module_name(path, package): path for path in PACKAGES[package].rglob("*.py")}
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        found[module] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    found[module] |= {name if name in files else node.module} & set(files)
            elif isinstance(node, ast.Import):
                found[module] |= {alias.name for alias in node.names} & set(files)
        found[module].discard(module)
    return found


def room(module: str) -> int:
    parts = module.split(".")
    return ROOMS.index(parts[1]) if len(parts) > 1 else 0


def test_rooms_of_the_service_import_downwards_only() -> None:
    imports = imports_within("determined_service")
    assert len(imports) > 100
    wrong = [
        f"{module} imports {name}"
        for module, names in imports.items()
        for name in names
        if room(name) > room(module)
    ]
    assert wrong == []


# Nouns of the SDK that give each other: an experiment lists its trials, a trial gets its experiment.
GIVE_EACH_OTHER = {"determined.experimental._experiment", "determined.experimental._trial"}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """Imports inside of functions and for type checkers count, too."""
    left = {
        module: {name for name in names if name != package}
        for module, names in imports_within(package).items()
    }
    for module in GIVE_EACH_OTHER & left.keys():
        left[module] -= GIVE_EACH_OTHER
    # Typed by both.
    left.get("determined.experimental._frames", set()).difference_update(GIVE_EACH_OTHER)
    while leaves := {module for module, names in left.items() if not names & left.keys()}:
        left = {module: names for module, names in left.items() if module not in leaves}
    # A module that only imports a circle is not part of it.
    while unused := left.keys() - set().union(*left.values()):
        left = {module: names for module, names in left.items() if module not in unused}
    assert sorted(left) == []


@pytest.mark.parametrize("room", ["web", "internal", "public"])
def test_routes_change_no_rows(room: str) -> None:
    """Routes call a room below, which writes: a route's module contains no writing statement."""
    files = list((SERVICE / room).rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files
        for node in nodes_of(path)
        if writes(node)
    ]
    assert wrong == []


def test_pages_read_no_table() -> None:
    """They ask REST in their visitor's name; who logs in or out changes a session. ``plots.hparams`` only
    computes: axes are the same on pages and in plots."""
    allowed = ("access", "base", "web", "front", "public.login", "plots.hparams")
    wrong = [
        f"{module} imports {name}"
        for module, names in imports_within("determined_service").items()
        if module.startswith("determined_service.front")
        for name in names
        if not name.removeprefix("determined_service").lstrip(".").startswith(allowed)
        and name != "determined_service"
    ]
    assert wrong == []
    files = list((SERVICE / "front").rglob("*.py"))
    assert files
    for path in files:
        imported = set(imports_of(path, "determined_service"))
        assert not [
            one for one in imported if one.startswith(("sqlalchemy", "determined_registry"))
        ]


def writes(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.split(" ")[0].strip() in ("INSERT", "UPDATE", "DELETE")
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id == "sa" and node.attr in ("insert", "update", "delete")
    return isinstance(node, ast.ImportFrom) and node.module == "sqlalchemy.dialects.postgresql"


NAMES = "determined_registry.mlflow.names"


def test_only_mlflows_own_server_imports_mlflow() -> None:
    """It takes seconds and 170 MB: neither the service nor an agent, a fork server or `det` may import it."""
    served = ROOT / "registry/determined_registry/mlflow"
    harmless = {"determined_registry.mlflow", NAMES}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            if path.is_relative_to(served):
                continue
            found = {
                name
                for name in imports_of(path, package)
                if name.split(".")[0] == "mlflow" or name.startswith("determined_registry.mlflow")
            }
            others = {name for name in found - harmless if not name.startswith(f"{NAMES}.")}
            assert others == set(), path
    for module in ("__init__", "names"):
        text = (served / f"{module}.py").read_text()
        assert "import mlflow" not in text and "from mlflow" not in text


HEAVY = ["prefect", "sqlalchemy", "mlflow", "fastapi", "torch", "numpy", "alembic", "psycopg"]
HEAVY += ["boto3", "botocore", "google.cloud", "azure"]


@pytest.mark.parametrize(
    "statement",
    ["import determined", "import determined.core", "from determined.experimental import client"],
)
def test_training_images_need_no_platform(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    assert done.stdout.strip() == "[]"


# Public class names that two classes share, and why. Only ever take one out.
SHARED_NAMES = {
    # Determined's own names for different things.
    *("DeterminedCallback", "DownloadMode", "ExperimentConfig", "Trainer"),
    # Custom searchers in Determined's words, beside the cluster's own searchers, which import no harness.
    *("Close", "Create", "SearchMethod", "Shutdown", "ValidateAfter"),
    # What blocks answer: flows of users may have pickled some.
    *("Checkpoint", "Command", "Evaluation", "Experiment", "Record"),
    # Left to rename.
    *("ApiError", "Change", "Form", "Problem", "Section", "Source"),
}


def shared_names(folders: Iterable[Path]) -> set[str]:
    """The public class names that more than one class in ``folders`` has."""
    found = collections.Counter(
        node.name
        for folder in folders
        for path in files_of(folder)
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name for name, count in found.items() if count > 1}


def test_a_class_name_means_one_thing() -> None:
    """If this fails with a name that is not in SHARED_NAMES, give the newer class another name; if it fails
    with one that is, take that out of SHARED_NAMES."""
    assert shared_names(PACKAGES.values()) == SHARED_NAMES


def test_a_class_name_that_is_used_twice_is_seen(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Agent: ...\nclass _Own: ...\n")
    (tmp_path / "two.py").write_text("class Agent: ...\nclass _Own: ...\nclass Other: ...\n")
    assert shared_names([tmp_path]) == {"Agent"}
