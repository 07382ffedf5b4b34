"""A leg's own place for packages: what its code installs goes there, and the cluster's stay as they are.

It is a virtual environment that sees the packages of the agent's interpreter as installed outside of itself:
pip takes them as they are, puts another version in front of one of them, and uninstalls none. The
directory is made anew for each leg, without the module venv, which takes a hundred times as long.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PARENT = "agents-packages.pth"
PIP_PYTHON = "python-of-pip"
MOST_FILES = 500
LARGEST_FILE = 1 << 20
_INSTALLS = re.compile(rb"\bpip3?\b.{0,200}?\binstall\b", re.DOTALL)


@dataclass(frozen=True)
class Packages:
    """The virtual environment in ``root``; :func:`make` makes it."""

    root: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python3"

    @property
    def site(self) -> Path:
        """Where packages are installed."""
        return Path(_site(self.root, "purelib"))

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """The variables, for a process with ``env``, by which pip, uv and Python find it."""
        rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
        return {
            "PATH": os.pathsep.join([str(self.bin), env.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(self.root),
            # For programs whose first line names the agent's interpreter: pip, torchrun, accelerate.
            "PIP_PYTHON": str(self.bin / PIP_PYTHON),
            "PYTHONPATH": os.pathsep.join([*rest, str(self.site)]),
        }

    def in_path(self, path: list[str]) -> list[str]:
        """``sys.path`` of the agent's interpreter, with these packages before its own."""
        own = set(parent_sites())
        place = next((i for i, entry in enumerate(path) if entry in own), len(path))
        return [*path[:place], str(self.site), *path[place:]]


def _site(root: Path, kind: str) -> str:
    return sysconfig.get_path(kind, "venv", {"base": str(root), "platbase": str(root)})


def parent_sites() -> list[str]:
    """Where the agent's interpreter has its packages."""
    return list(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))


def make(root: Path) -> Packages:
    """Makes the environment in the new directory ``root``. Raises OSError."""
    made = Packages(root)
    base = str(getattr(sys, "_base_executable", None) or sys.executable)
    made.bin.mkdir(parents=True)
    for kind in ("purelib", "platlib"):
        Path(_site(root, kind)).mkdir(parents=True, exist_ok=True)
    version = ".".join(map(str, sys.version_info[:3]))
    (root / "pyvenv.cfg").write_text(
        f"home = {Path(base).parent}\ninclude-system-site-packages = false\nversion = {version}\n"
    )
    made.python.symlink_to(base)
    for name in ("python", f"python3.{sys.version_info.minor}"):
        (made.bin / name).symlink_to("python3")
    # As the agent's interpreter does it, with .pth files in there.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in parent_sites()]
    (made.site / PARENT).write_text("".join(lines))
    script = made.bin / PIP_PYTHON
    script.write_text(_pip_python(made))
    script.chmod(0o755)
    return made


def _pip_python(made: Packages) -> str:
    """The program by which every pip runs itself (``PIP_PYTHON``), and that sends it here.

    Its first argument is where that pip lies. One of another environment, which the code has made for itself,
    stays there.
    """
    ours = "|".join(f"{shlex.quote(str(path))}/*" for path in (made.root, *parent_sites()))
    note = (
        f"pip installs into {made.site}, for this run only; the cluster's packages stay as they are"
    )
    return f"""#!/bin/sh
case "$1" in
{ours}) ;;
*)
  for own in "${{1%/lib/*}}" "${{1%/lib64/*}}"; do
    [ "$own" != "$1" ] && [ -x "$own/bin/python3" ] && exec "$own/bin/python3" "$@"
  done ;;
esac
case " $* " in
*" install "*) echo {shlex.quote(note)} >&2 ;;
esac
exec {shlex.quote(str(made.python))} "$@"
"""


def installer(workdir: Path) -> str | None:
    """The file in ``workdir`` that looks as if it called pip to install something, if there is one."""
    for path in _sources(workdir):
        try:
            if path.stat().st_size <= LARGEST_FILE and _INSTALLS.search(path.read_bytes()):
                return str(path.relative_to(workdir))
        except OSError:
            continue
    return None


def _sources(workdir: Path) -> Iterable[Path]:
    seen = 0
    for folder, names, files in os.walk(workdir):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in sorted(files):
            seen += 1
            if seen > MOST_FILES:
                return
            if name.endswith((".py", ".sh")):
                yield Path(folder) / name
