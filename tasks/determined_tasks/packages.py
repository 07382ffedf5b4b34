"""A place for packages: what a leg's code installs goes there, and the cluster's stay as they are.

It is a virtual environment that sees the packages of the agent's interpreter as installed outside of itself:
pip takes them as they are, puts another version in front of one of them, and uninstalls none. On an
agent the trials of an experiment share one (:mod:`determined_tasks.experiment_dir`), any other leg has its
own. It is made without the module venv, which takes a hundred times as long.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from determined_tasks import install_lock

PARENT = "agents-packages.pth"
PIP_PYTHON = "python-of-pip"
# uv locks this file of a virtual environment too while it installs.
LOCK = ".lock"
FORMAT = 1
"""Grows when :func:`make` makes something else: what an older release has made is not used any more."""
WHOSE = "for this run only"
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
        """The directory in which packages are installed."""
        return Path(_site(self.root, "purelib"))

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """The variables, for a process with ``env``, by which pip, uv and Python find it."""
        rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
        return {
            "PATH": os.pathsep.join([str(self.bin), env.get("PATH", os.defpath)]),
            "VIRTUAL_ENV": str(self.root),
            # For programs whose first line names the agent's interpreter: pip, torchrun, accelerate.
            "PIP_PYTHON": str(self.bin / PIP_PYTHON),
            # Of the agent's container image, say: uv would install into the interpreter below.
            "UV_SYSTEM_PYTHON": "false",
            "PYTHONPATH": os.pathsep.join([*rest, str(self.site)]),
        }

    def has_interpreter(self) -> bool:
        """True if the files of :func:`make` still exist, as far as a look at two names tells."""
        return all(os.path.lexists(path) for path in (self.python, self.bin / PIP_PYTHON))

    def hidden_in_fork(self) -> str | None:
        """The name in here that a fork of this process would not see as a new interpreter does, if any.

        That is a module that is imported already, from elsewhere, and a .pth file, which is read when an
        interpreter starts.
        """
        try:
            entries = sorted(self.site.iterdir())
        except OSError:  # the code has destroyed it
            return None
        for entry in entries:
            if entry.suffix == ".pth" and entry.name != PARENT:
                return entry.name
            name = entry.name.partition(".")[0]
            if name in sys.modules:
                return name
        return None

    def in_path(self, path: list[str]) -> list[str]:
        """``sys.path`` of the agent's interpreter, with these packages before its own."""
        own = set(parent_sites())
        place = next((i for i, entry in enumerate(path) if entry in own), len(path))
        return [*path[:place], str(self.site), *path[place:]]


def _site(root: Path, kind: str) -> str:
    return sysconfig.get_path(kind, "venv", {"base": str(root), "platbase": str(root)})


def parent_sites() -> list[str]:
    """The directories of packages of the agent's interpreter."""
    return list(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))


def name_for(uid: int | None) -> str:
    """The name of the directory with packages of this interpreter that belong to the account ``uid``."""
    what = [
        FORMAT,
        _base(),
        sys.version,
        parent_sites(),
        install_lock.__file__,
        uid,
        _machines_uv(),
    ]
    return f"packages-{hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]}"


def _machines_uv() -> str | None:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return shutil.which("uv", path=beside)


def _base() -> str:
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def make(root: Path, whose: str = WHOSE) -> Packages:
    """Makes the environment in the new directory ``root``. ``whose``: for the task's log. Raises OSError."""
    made = Packages(root)
    base = _base()
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
    _program(made.bin / PIP_PYTHON, _pip_python(made, whose))
    uv = _machines_uv()
    if uv is not None:
        _program(made.bin / "uv", _uv(made, uv, whose))
    return made


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _pip_python(made: Packages, whose: str) -> str:
    """The program by which every pip runs itself (``PIP_PYTHON``), and that sends it here.

    Its first argument is where that pip lies. One of another environment, which the code has made for itself,
    stays there. One pip at a time installs: others wait (:mod:`determined_tasks.install_lock`).
    """
    ours = "|".join(f"{shlex.quote(str(path))}/*" for path in (made.root, *parent_sites()))
    note = f"pip installs into {made.site}, {whose}; the cluster's packages stay as they are"
    # The interpreter of the agent, without its packages: it starts in a few milliseconds.
    lock = shlex.join([_base(), "-I", "-S", install_lock.__file__, str(made.root / LOCK)])
    python = shlex.quote(str(made.python))
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
*" uninstall "*) ;;
*) exec {python} "$@" ;;
esac
exec {lock} {python} "$@"
"""


def _uv(made: Packages, uv: str, whose: str) -> str:
    """The program that runs the machine's ``uv``, so that it installs here when it is told ``--system``.

    Then it would take the interpreter below, past every virtual environment. UV_PYTHON is not set for all
    calls: it would win over an environment that the code has made for itself.
    """
    note = (
        f"uv installs into {made.site}, {whose}. It does not see the cluster's packages: what "
        "yours depend on is installed again, in front of them. pip takes the cluster's as they are"
    )
    return f"""#!/bin/sh
case " $* " in
*" pip "*)
  here=
  [ "$VIRTUAL_ENV" = {shlex.quote(str(made.root))} ] && here=1
  system=
  case " $* " in *" --system "*) system=1 ;; esac
  case "$UV_SYSTEM_PYTHON" in ""|0|[Ff]*|[Nn]*|[Oo][Ff]*) ;; *) system=1 ;; esac
  if [ -n "$system" ]; then
    UV_PYTHON={shlex.quote(str(made.python))}
    export UV_PYTHON
    here=1
  fi
  case " $* " in
  *" install "*|*" sync "*) [ -z "$here" ] || echo {shlex.quote(note)} >&2 ;;
  esac ;;
esac
exec {shlex.quote(uv)} "$@"
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
