"""Programs that tests need and that are not dependencies of the project, installed on first use and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

TIMEOUT_S = 600


# Debian's servers are not on everybody's path.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


def _caches() -> Path:
    """The folder in which the tests of this user keep installed programs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    caches = home / "determined-prefect-tests"
    caches.mkdir(parents=True, exist_ok=True)
    return caches


def kept(name: str, install: Callable[[Path], None]) -> Path:
    """The directory ``name`` among the tests' caches; ``install`` fills it if it does not exist yet."""
    home = _caches() / name
    # Two test sessions may come here at once; the mark tells a whole installation from a begun one.
    with FileLock(f"{home}.lock"):
        if not (home / "installed").exists():
            shutil.rmtree(home, ignore_errors=True)
            install(home)
            (home / "installed").touch()
    return home


def from_debian(
    programs: Sequence[str], packages: Sequence[str], *, recommended: bool = False
) -> str | None:
    """Install Debian's ``packages`` if one of ``programs`` is missing. Returns the reason for a failure, or
    None. ``recommended``: with their recommended packages.

    The processes of a test run come here at the same time, and apt-get serves one at a time. Who finds the
    programs there waits for the end of an installation, too: they come before their configuration.
    """
    with FileLock(_caches() / "apt.lock"):
        if not (missing := _missing(programs)):
            return None
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            return f"there is no {missing[0]} here, and no apt-get (as root) to install it"
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        options = ["-q", "-o", f"DPkg::Lock::Timeout={TIMEOUT_S}"]
        if not recommended:
            options.append("--no-install-recommends")
        for command in (["update"], ["install", "--yes", *packages]):
            apt = ["apt-get", *options, *command]
            done = subprocess.run(apt, env=env, capture_output=True, text=True)
            if done.returncode:
                return f"{missing[0]} cannot be installed: {done.stderr.strip()[-300:]}"
        if missing := _missing(programs):
            return f"apt-get installed {' '.join(packages)}, but no {missing[0]}"
        return None


def _missing(programs: Sequence[str]) -> list[str]:
    return [name for name in programs if shutil.which(name, path=PATH) is None]


def run_or_skip(what: str, step: Sequence[str]) -> None:
    """One step of an installation; skips the test that asks when it fails."""
    try:
        done = subprocess.run(step, capture_output=True, text=True, timeout=TIMEOUT_S)
    except FileNotFoundError:
        pytest.skip(f"{what}: {step[0]} is not installed")
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what}: {step[0]} did not get it within {TIMEOUT_S} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"{what}: {step[0]} cannot get it: {last}")


def install_into(home: Path, what: str, *packages: Sequence[str]) -> Path:
    """Makes a virtual environment at ``home`` and installs into it, each of ``packages`` with one pip; its
    interpreter. Skips the test that asks when it fails.

    Without a separate pip, and without bytecode of modules that nobody imports: both take longer than the
    rest.
    """
    python = home / "bin" / "python"
    run_or_skip(what, [sys.executable, "-m", "venv", "--without-pip", str(home)])
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    for given in packages:
        run_or_skip(what, [*pip, "install", "--quiet", "--no-compile", *given])
    return python
