"""Packages that a training script installs are its experiment's, and the cluster's packages stay as they
are."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService
from tests.wheels import wheel

PYTHON = Path(sys.executable).parent


# psutil is imported in every fork server.
WHEELS: dict[str, str | bytes] = {
    f"{name}-1.0-py3-none-any.whl": wheel(name, "1.0") for name in ("tiny", "psutil")
}
SHOW = """
import importlib.metadata, psutil, tiny
print("tiny", tiny.__version__, "psutil", psutil.__version__, importlib.metadata.version("psutil"))
"""
# Whether all of the agent's packages go together, pip would look up for seconds.
INSTALL = (
    "install --no-index --no-warn-conflicts -q"
    " ./tiny-1.0-py3-none-any.whl ./psutil-1.0-py3-none-any.whl"
)


def check(legs: LegRunner, service: FakeService) -> None:
    assert service.text("stdout").splitlines()[-1] == "tiny 1.0 psutil 1.0 1.0"
    (shared,) = legs.work_dir.glob("experiments/7.c/packages-????????????")
    assert f"pip installs into {shared}/lib" in service.text("stderr")
    assert "this machine share; the cluster's packages stay as they are" in service.text("stderr")
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
    """The words are joined at run time, so that the code contains no installation."""
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


# What uv would get to see.
FAKE_UV = """#!/bin/sh
echo "uv $* UV_PYTHON=$UV_PYTHON"
"""


def test_uv_installs_for_the_leg_too(
    legs: LegRunner, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(FAKE_UV)
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("UV_SYSTEM_PYTHON", "1")  # of the agent's image
    hook = """
echo "leg: $VIRTUAL_ENV $UV_SYSTEM_PYTHON"
uv pip install a
uv -q pip install --system b
UV_SYSTEM_PYTHON=true uv pip install c
VIRTUAL_ENV=own uv pip install d
uv --version --system
"""
    ended = legs.run({"train.py": "", "startup-hook.sh": hook})
    assert ended["exit_code"] == 0, service.logs
    (made,) = legs.work_dir.glob("experiments/*/packages-*/pyvenv.cfg")
    own = made.parent
    assert service.text("stdout").splitlines() == [
        f"leg: {own} false",
        "uv pip install a UV_PYTHON=",
        f"uv -q pip install --system b UV_PYTHON={own}/bin/python3",
        f"uv pip install c UV_PYTHON={own}/bin/python3",
        "uv pip install d UV_PYTHON=",
        "uv --version --system UV_PYTHON=",
    ]
    assert service.text("stderr").count("uv installs into") == 3
    assert "It does not see the cluster's packages" in service.text("stderr")
