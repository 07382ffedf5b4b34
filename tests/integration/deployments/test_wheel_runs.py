"""An installation that has our wheel and no file of the checkout: a template on a local cluster.

Dependencies come from the tests' environment. With `DET_TEST_PYTHONS="python3.12 /path/of/python3.13"` these
Pythons are tried instead, with what pip installs for them: from an index, six gigabytes for each.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.memory_folder import memory_folder
from tests.waiting import TIMEOUT_S
from tests.wheels import ours

PYTHONS = os.environ.get("DET_TEST_PYTHONS", "").split()
DOWNLOAD_S = 3600


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ours(tmp_path_factory.mktemp("wheel"))


def run(*command: object, timeout: float = TIMEOUT_S, **kwargs: object) -> str:
    """Return its standard output; its standard error is shown if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, **kwargs)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return str(done.stdout)


def installed(python: str | None, wheel: Path, home: Path) -> Path:
    """The folder of the programs of a new environment, in which pip has installed the wheel."""
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile"]
    if python is not None:
        run(python, "-m", "venv", home)
        run(home / "bin/python", *pip, f"{wheel}[local]", timeout=DOWNLOAD_S)
        return home / "bin"
    run(sys.executable, "-m", "venv", "--without-pip", home)
    onto = [sys.executable, "-m", "pip", "--python", home / "bin/python", *pip[2:]]
    run(*onto, "--no-deps", "--no-index", wheel)
    # It adds a folder, but does not read `.pth` files in that folder: one of them names the checkout.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return home / "bin"


@pytest.mark.parametrize("python", PYTHONS or [None])
@pytest.mark.timeout(DOWNLOAD_S)
def test_a_template_runs(
    wheel: Path, tmp_path: Path, python: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in os.environ if name.startswith(("DET_", "PREFECT_", "PYTHONPATH"))
    ]:
        monkeypatch.delenv(name)
    programs = installed(python, wheel, tmp_path / "venv")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    det = programs / "det"
    where = "import determined, determined_service; print(determined.__file__, determined_service.__file__)"
    found = run(programs / "python", "-c", where, cwd=tmp_path).split()
    assert all(path.startswith(f"{tmp_path}/venv/") for path in found), found
    say = "from determined.common.installation import command; print(command('s3'))"
    assert shlex.split(run(programs / "python", "-c", say, cwd=tmp_path))[-1] == f"{wheel}[s3]"
    with memory_folder("determined-wheel-") as folder:
        monkeypatch.setenv("HOME", folder)
        monkeypatch.setenv("DET_DATA_DIR", f"{folder}/data")
        try:
            run(det, "init", "sklearn", cwd=tmp_path)
            run(det, "flow", "run", "sklearn/random.yaml", "sklearn", cwd=tmp_path)
            # The page of plots is a file of the wheel.
            run(det, "experiment", "plot", "1", "-o", tmp_path / "plot.html", cwd=tmp_path)
            assert "<html" in (tmp_path / "plot.html").read_text()
        finally:
            run(det, "deploy", "local", "cluster-down", cwd=tmp_path)
