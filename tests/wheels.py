"""Packages to install without a network: made by hand, and our own."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.waiting import TIMEOUT_S

ROOT = Path(__file__).parent.parent


def wheel(name: str, version: str) -> bytes:
    """A package of one module that knows its version, with a program of the same name."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\ndef main():\n    print(__version__)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return buffer.getvalue()


def ours(folder: Path) -> Path:
    """The wheel of this checkout, built into ``folder`` by the tests' own hatchling."""
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "wheel", *options, str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    (found,) = folder.glob("determined_prefect-*.whl")
    return found
