"""What a training script installs is the leg's own, and the cluster's packages stay as they are."""

from __future__ import annotations

import importlib.metadata
import io
import sys
import zipfile
from pathlib import Path

from tests.unit.tasks.conftest import LegRunner
from tests.unit.tasks.fake_service import FakeService

PYTHON = Path(sys.executable).parent


def wheel(name: str, version: str) -> bytes:
    """A package of one module that knows its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return buffer.getvalue()


# psutil is imported in every fork server.
WHEELS: dict[str, str | bytes] = {
    f"{name}-1.0-py3-none-any.whl": wheel(name, "1.0") for name in ("tiny", "psutil")
}
SHOW = """
import importlib.metadata, psutil, tiny
print("tiny", tiny.__version__, "psutil", psutil.__version__, importlib.metadata.version("psutil"))
"""
INSTALL = "install --no-index -q ./tiny-1.0-py3-none-any.whl ./psutil-1.0-py3-none-any.whl"


def check(legs: LegRunner, service: FakeService) -> None:
    assert service.text("stdout").splitlines()[-1] == "tiny 1.0 psutil 1.0 1.0"
    site = legs.work_dir / "allocations/7.abc.1/packages/lib"
    assert f"pip installs into {site}" in service.text("stderr")
    assert "for this run only; the cluster's packages stay as they are" in service.text("stderr")
    assert importlib.metadata.version("psutil") != "1.0"
    assert not list(legs.work_dir.glob("allocations/*"))


def test_from_a_startup_hook(legs: LegRunner, service: FakeService) -> None:
    hook = f"pip {INSTALL}\npip uninstall -y numpy\n"
    ended = legs.run({"train.py": SHOW, "startup-hook.sh": hook, **WHEELS})
    assert ended["exit_code"] == 0, service.logs
    check(legs, service)
    assert importlib.metadata.version("numpy")
    assert "outside environment" in service.text("stdout") + service.text("stderr")


def test_from_the_training_script(legs: LegRunner, service: FakeService) -> None:
    script = f"""
import subprocess, sys
subprocess.check_call([sys.executable, "-m", "pip", *{INSTALL!r}.split()])
{SHOW}"""
    ended = legs.run({"train.py": script, **WHEELS})
    assert ended["exit_code"] == 0, service.logs
    check(legs, service)
    assert "train.py names pip install, so the program starts in a new interpreter" in (
        service.text("stderr", "agent")
    )


def test_by_the_agents_own_pip_and_from_a_fork(legs: LegRunner, service: FakeService) -> None:
    """The words are put together, so that the code does not look as if it installed anything."""
    words = INSTALL.split()
    script = f"""
import os, subprocess, sys
print("forked", "psutil" in sys.modules)
subprocess.check_call(["{PYTHON}/" + "p" + "ip", *{words!r}])
sys.modules.pop("psutil")
for name in [name for name in sys.modules if name.startswith("psutil.")]:
    del sys.modules[name]
{SHOW}"""
    ended = legs.run({"train.py": script, **WHEELS})
    assert ended["exit_code"] == 0, service.logs
    assert service.text("stdout").startswith("forked True")
    check(legs, service)


def test_an_environment_that_the_code_makes_is_its_own(
    legs: LegRunner, service: FakeService
) -> None:
    hook = f"""
python3 -m venv own
own/bin/pip {INSTALL}
own/bin/python3 -c 'import tiny; print("in", tiny.__file__)'
python3 -c 'import sys; sys.exit("psutil" if __import__("psutil").__version__ == "1.0" else 0)'
"""
    ended = legs.run({"train.py": "", "startup-hook.sh": hook, **WHEELS})
    assert ended["exit_code"] == 0, service.logs
    workdir = legs.work_dir / "allocations/7.abc.1/workdir/own"
    assert f"in {workdir}" in service.text("stdout")
    assert "pip installs into" not in service.text("stderr")
