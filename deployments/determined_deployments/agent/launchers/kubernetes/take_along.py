"""``python3 -m …take_along DIRECTORY``: copies this interpreter and its packages, to run from there.

What the init container of a pod does with ``container.harness: mounted``. The copy is a virtual environment
with its base beside it::

    DIRECTORY/bin/python3      a link into base
    DIRECTORY/lib/pythonX.Y    site-packages
    DIRECTORY/base             the interpreter and the standard library

Libraries of the system (the C library, OpenSSL) stay the image's.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

Ignore = Callable[[str, list[str]], list[str]]
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3")
"""Of the standard library."""
PACKAGES = ("site-packages", "dist-packages")


def main(target: str) -> None:
    root = Path(target)
    _base(root / "base")
    _environment(root)


def _base(base: Path) -> None:
    (base / "bin").mkdir(parents=True)
    shutil.copy2(Path(sys.executable).resolve(), base / "bin" / VERSION)
    standard = Path(os.__file__).parent

    def left_out(folder: str, names: list[str]) -> list[str]:
        if Path(folder) != standard:
            return []
        return [one for one in names if one in (*LEFT_OUT, *PACKAGES) or one.startswith("config-")]

    _copy(standard, base / "lib" / VERSION, left_out)
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        name = str(sysconfig.get_config_var("INSTSONAME"))
        folders = (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib")
        found = next((path for one in folders if (path := Path(str(one), name)).exists()), None)
        if found is not None:
            shutil.copy2(found, base / "lib" / name)


def _environment(root: Path) -> None:
    binaries, site = root / "bin", root / "lib" / VERSION / "site-packages"
    binaries.mkdir()
    (root / "pyvenv.cfg").write_text(
        f"home = {root}/base/bin\ninclude-system-site-packages = false\n"
    )
    for path in sys.path:
        if Path(path).name in PACKAGES and Path(path).is_dir():
            _copy(Path(path), site)
    for script in sorted(Path(sys.prefix, "bin").iterdir()):
        if not script.name.startswith("python") and script.is_file():
            _copy_script(script, binaries / script.name, f"{binaries}/python3")
    for name in ("python3", "python", VERSION):
        (binaries / name).symlink_to(Path("..", "base", "bin", VERSION))


def _copy_script(source: Path, target: Path, python: str) -> None:
    """A script that begins with this environment's interpreter begins with the copied one."""
    first, _, rest = source.read_bytes().partition(b"\n")
    own = f"#!{sys.prefix}/bin/python".encode()
    if first.startswith(own):
        target.write_bytes(b"#!" + python.encode() + b"\n" + rest)
        shutil.copymode(source, target)
    elif sys.prefix != sys.base_prefix:
        shutil.copy2(source, target)


def _copy(source: Path, target: Path, ignore: Ignore | None = None) -> None:
    """With the times of files, by which Python knows that what it has compiled is up to date."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignore)


if __name__ == "__main__":
    main(sys.argv[1])
