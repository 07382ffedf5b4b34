"""The long suites, and the sources that concern them.

`make test` runs everything but the long suites, and `make test-all` everything. `.ci/run` also runs the long
suites concerned by the changes since the commit in `tests/GREEN`, the last commit at which everything was
green. After a green run of `make test-all`, write that commit's id there.

``python -m tests.tiers [COMMIT]`` prints pytest's options: without a commit, options that leave out all long
suites; with one, options that leave out the suites not concerned by the changes since then, and prints these
suites on standard error.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHAOS = "chaos"
CLUSTERS = "clusters"
CONTAINERS = "containers"
KUBERNETES = "kubernetes"
GANGS = "gangs"
FRAMEWORKS = "frameworks"
PUBLISHED = "published"
PAGES = "pages"

LONG: dict[str, tuple[str, ...]] = {
    # Processes die all the time.
    CHAOS: ("tests/chaos", "tests/integration/agent/test_recovery.py"),
    # Separate clusters that start, stop, break and grow.
    CLUSTERS: (
        "tests/integration/deployments",
        "tests/integration/disposable",
        "tests/integration/test_local_cluster_ports.py",
        "tests/integration/test_several_machines.py",
        "tests/integration/test_slots_change.py",
        "tests/integration/test_fencing.py",
    ),
    CONTAINERS: ("tests/integration/containers",),
    KUBERNETES: ("tests/kubernetes/test_runs.py", "tests/kubernetes/test_truths.py"),
    GANGS: (
        "tests/integration/test_deepspeed.py",
        "tests/integration/test_distributed.py",
        "tests/integration/test_framework_gangs.py",
        "tests/integration/test_interrupted.py",
    ),
    FRAMEWORKS: ("tests/integration/test_frameworks.py", "tests/training/frameworks"),
    # What Determined published, installed from its wheels.
    PUBLISHED: ("tests/compat",),
    # The blocks of the book's pages, as printed.
    PAGES: ("tests/integration/test_pages.py",),
}
"""By suite, its files and folders."""

ALL = tuple(LONG)
_TRAINING = (GANGS, FRAMEWORKS, PUBLISHED)
_LEGS = (CHAOS, CLUSTERS, CONTAINERS, KUBERNETES, GANGS)

CONCERNS: dict[str, tuple[str, ...]] = {
    "constraints.txt": ALL,
    "pyproject.toml": ALL,
    "prefect.yaml": (CLUSTERS,),
    "Makefile": (),
    ".ci": (),
    "benchmarks": (),
    "docs": (PAGES,),
    "docs/inside": (),
    "docs/reference": (),
    "examples": (FRAMEWORKS, PAGES),
    "deployments/docker": (CONTAINERS,),
    "deployments/helm": (),
    "deployments/determined_deployments": (CLUSTERS,),
    "deployments/determined_deployments/agent": _LEGS,
    "deployments/first_install.py": (),
    "flows": (CHAOS, CLUSTERS),
    "harness/determined": _TRAINING,
    "harness/determined/cli": (PUBLISHED, PAGES),
    "harness/determined/common": (CHAOS, *_TRAINING),
    "harness/determined/common/wire": ALL,
    "harness/determined/core": (CHAOS, *_TRAINING),
    "harness/determined/exec": (CHAOS, GANGS, CONTAINERS),
    "harness/determined/expconf": (PUBLISHED,),
    "harness/determined/experimental": (PUBLISHED, PAGES),
    "harness/determined/keras": (GANGS, FRAMEWORKS),
    "harness/determined/launch": (GANGS, CONTAINERS, CLUSTERS),
    "harness/determined/lightning": (GANGS, FRAMEWORKS),
    "harness/determined/pytorch": _TRAINING,
    "harness/determined/storage": (CHAOS, CONTAINERS),
    "harness/determined/tensorboard": (),
    "harness/determined/transformers": (GANGS, FRAMEWORKS),
    "registry/determined_registry": (CHAOS,),
    "registry/determined_registry/mlflow": (),
    "registry/determined_registry/models": (PUBLISHED,),
    "searchers": (CHAOS, PUBLISHED),
    "service/determined_service": (CHAOS, CLUSTERS),
    "service/determined_service/downloads": (),
    "service/determined_service/lifecycle": ALL,
    "service/determined_service/mlflow": (),
    "service/determined_service/pipelines": (),
    "service/determined_service/plots": (),
    "service/determined_service/proxy": (CONTAINERS, PUBLISHED),
    "service/determined_service/public": (PUBLISHED,),
    "service/determined_service/recurring": (),
    "service/determined_service/retraining": (),
    "service/determined_service/state": ALL,
    "service/determined_service/submission": (CHAOS, PUBLISHED),
    "service/determined_service/views": (PUBLISHED,),
    "tasks/determined_tasks": _LEGS,
    "tasks/determined_tasks/containers": (CONTAINERS,),
    "tests": ALL,
    "tests/README.md": (),
    "tests/GREEN": (),
    "tests/fixtures": (PUBLISHED,),
    "tests/fuzz": (),
    "tests/hostile": (),
    "tests/templates.py": (FRAMEWORKS,),
    "tests/wheels.py": (CLUSTERS,),
    "tests/integration": (),
    "tests/kubernetes": (KUBERNETES,),
    "tests/integration/conftest.py": (CLUSTERS, CONTAINERS),
    "tests/integration/gangs": (GANGS,),
    "tests/page_session.py": (PAGES,),
    "tests/printed.py": (PAGES,),
    "tests/programs": (),
    "tests/training": (),
    "tests/unit": (),
}
"""By file or folder, the long suites that a change there concerns. The longest name counts."""


def row_of(path: str) -> str | None:
    """The name in :data:`CONCERNS` that counts for ``path``; None: there is none."""
    parts = path.split("/")
    names = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in CONCERNS), None)


def concerned(paths: Iterable[str]) -> set[str]:
    """The long suites that run for a change of ``paths``: suites that the table names, and changed suites."""
    found: set[str] = set()
    for path in paths:
        of_suite = {name for name, places in LONG.items() if any(_is_in(path, p) for p in places)}
        row = row_of(path)
        # A document at the top concerns no suite; an unlisted path concerns every suite.
        rest = () if "/" not in path and path.endswith((".md", "LICENSE")) else ALL
        found |= of_suite or set(CONCERNS[row] if row is not None else rest)
    return found


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def left_out(wanted: Iterable[str]) -> list[str]:
    """pytest's options without the other long suites."""
    places = [place for name in LONG if name not in set(wanted) for place in LONG[name]]
    return [f"--ignore={place}" for place in places]


def changed_since(commit: str) -> list[str] | None:
    """Files, also uncommitted changes; None: the history does not reach so far."""
    command = ["git", "diff", "--name-only", "-z", commit, "--"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode else [path for path in done.stdout.split("\0") if path]


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    wanted: set[str] = set()
    if arguments:
        paths = changed_since(arguments[0].strip())
        wanted = set(ALL) if paths is None else concerned(paths)
        what = "an unknown commit" if paths is None else f"{len(paths)} files changed"
        names = ", ".join(sorted(wanted)) or "none"
        print(f"long suites, for {what} since the last green commit: {names}", file=sys.stderr)
    print(*left_out(wanted))


if __name__ == "__main__":
    main(sys.argv[1:])
