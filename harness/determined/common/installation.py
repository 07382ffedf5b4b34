"""How this package was installed, and so how an extra of it is added; what it can do on this system."""

from __future__ import annotations

# Imported by what every training imports, for an error that is rare: the rest is imported when it is needed.
import json
import shlex
import sys
from pathlib import Path

from determined.__version__ import __version__

NAME = "determined-prefect"
CONSTRAINTS = "constraints.txt"
_PLATFORM = ("prefect", "psycopg", "uvicorn")  # some of what the extra `cluster` brings


def no_agents_here() -> str | None:
    """Why this machine's system cannot run agents, and so no local cluster; None: it can."""
    system = str(sys.platform)  # mypy takes it for a constant otherwise
    if system == "linux":
        return None
    return (
        f"agents run on Linux, and this is {system}: use a cluster on another machine (-m URL or "
        "DET_MASTER), or Linux within this one (on Windows: WSL 2); docs/start/install.md says what works"
    )


def no_platform(*extras: str) -> str | None:
    """Why this Python can run neither a cluster nor an agent: the wheel without its extra; None: it can.

    Args:
        extras: what is to be installed besides the extra ``cluster``.
    """
    import importlib.util

    if all(importlib.util.find_spec(name) is not None for name in _PLATFORM):
        return None
    return f"the platform is not installed here: {command('cluster', *extras)}"


def command(*extras: str) -> str:
    """The command line that adds ``extras`` to this Python's environment, for a shell in any directory.

    It installs the extras from the place that this package came from: a checkout, with the versions of its
    constraints; a wheel's file or address; a repository. Without such a place it names the package alone.
    Pip then reads the extras of what is installed and asks no index for the package itself.
    """
    return f"{_pip()} install {_arguments(','.join(extras), _origin())}"


def release() -> str:
    """The version, and for an installed wheel a hash of its files: two builds may have one version.

    Sources of a checkout may change while they run, so of these it is the version alone.
    """
    import hashlib
    from importlib import metadata

    folder = _origin().get("dir_info")
    if isinstance(folder, dict) and folder.get("editable"):
        return __version__
    try:
        record = metadata.distribution(NAME).read_text("RECORD") or ""
    except (metadata.PackageNotFoundError, OSError):
        return __version__
    # Without what pip adds, which says where the wheel was and what has been compiled.
    lines = [
        line for line in record.splitlines() if ",sha256=" in line and ".dist-info/" not in line
    ]
    code = "\n".join(sorted(line for line in lines if line.startswith("determined")))
    return f"{__version__}+{hashlib.sha256(code.encode()).hexdigest()[:8]}" if code else __version__


def _pip() -> str:
    """``pip`` where a shell finds this environment's, else this Python's by its path."""
    import shutil

    python = _interpreter()
    found = shutil.which("pip")
    if found is not None and Path(found) == python.with_name("pip"):
        return "pip"
    return f"{shlex.quote(str(python))} -m pip"


def _interpreter() -> Path:
    """The Python of the environment that this package is in.

    In a task that is not this process's: the task has its own environment on top, which ends with it.
    """
    from importlib import metadata

    own = Path(sys.executable)
    try:
        site = Path(str(metadata.distribution(NAME).locate_file("")))
    except metadata.PackageNotFoundError:
        return own
    if Path(sys.prefix) in site.parents or len(site.parents) < 3:
        return own
    below = site.parents[2] / "bin" / "python3"
    return below if below.exists() else own


def _origin() -> dict[str, object]:
    """What pip wrote down of the place (PEP 610); {} if the package came from an index."""
    from importlib import metadata

    try:
        text = metadata.distribution(NAME).read_text("direct_url.json")
        found = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _arguments(extras: str, origin: dict[str, object]) -> str:
    url = str(origin.get("url", ""))
    local = _path(url)
    folder, repository = origin.get("dir_info"), origin.get("vcs_info")
    if local is not None and local.is_dir() and isinstance(folder, dict):
        pinned = local / CONSTRAINTS
        with_pins = f"-c {shlex.quote(str(pinned))} " if pinned.is_file() else ""
        option = "-e " if folder.get("editable") else ""
        return f"{with_pins}{option}{shlex.quote(f'{local}[{extras}]')}"
    if local is not None and local.is_file():
        return shlex.quote(f"{local}[{extras}]")
    if isinstance(repository, dict):
        kind, commit = repository.get("vcs"), repository.get("commit_id")
        return shlex.quote(f"{NAME}[{extras}] @ {kind}+{url}@{commit}")
    if url.startswith(("http://", "https://")):
        return shlex.quote(f"{NAME}[{extras}] @ {url}")
    # From an index, or the file is not there any more.
    return shlex.quote(f"{NAME}[{extras}]")


def _path(url: str) -> Path | None:
    import urllib.parse
    import urllib.request

    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "file":
        return None
    return Path(urllib.request.url2pathname(parts.path))
