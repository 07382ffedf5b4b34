"""Packages that offer searchers, for tests of plug-ins."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import TIMEOUT_S

TOY = Path(__file__).parent / "fixtures/toy_searcher"


def install_toy_searcher(target: Path) -> None:
    """Installs ``tests/fixtures/toy_searcher`` into the folder ``target``, as pip does it."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir"]
    subprocess.run([*command, "--target", str(target), str(TOY)], check=True, timeout=TIMEOUT_S)


@contextlib.contextmanager
def toy_site(folder: Path) -> Iterator[Path]:
    """``folder`` on this process's search path, with the toy package installed in it."""
    install_toy_searcher(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("toy_searcher", None)


def offer(target: Path, package: str, name: str, value: str, source: str = "") -> None:
    """Makes a package in ``target`` that offers ``name``; ``source`` is its module, if any."""
    metadata = target / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[determined.searchers]\n{name} = {value}\n")
    if source:
        (target / f"{value.partition(':')[0]}.py").write_text(source)
