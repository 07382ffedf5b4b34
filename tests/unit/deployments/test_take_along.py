"""An interpreter with its packages is copied, and runs where the original is not."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

from determined_deployments.agent.launchers.kubernetes import take_along

SEEN = """
import json, sys, ssl, sqlite3, ctypes, taken, taken.inner
print(json.dumps({"path": sys.path, "prefix": sys.prefix, "said": taken.inner.SAID,
                  "executable": sys.executable, "cached": taken.__cached__}))
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with a package, and a script of it."""
    made = tmp_path / "environment"
    venv.EnvBuilder(symlinks=True).create(made)
    package = made / "lib" / take_along.VERSION / "site-packages" / "taken"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("SAID = 'from the package'\n")
    script = made / "bin" / "taken"
    script.write_text(f"#!{made}/bin/python3\nimport taken.inner\nprint(taken.inner.SAID)\n")
    script.chmod(0o755)
    return made


def run(*command: str | Path, **env: str) -> str:
    # Nothing of this test's own interpreter may help.
    clean = {"PATH": os.defpath, **env}
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_copy_runs_by_itself(environment: Path, tmp_path: Path) -> None:
    target = tmp_path / "taken-along"
    target.mkdir()
    run(environment / "bin/python3", take_along.__file__, target)
    # The original is gone, as in another image.
    environment.rename(tmp_path / "elsewhere")
    libraries = {"LD_LIBRARY_PATH": f"{target}/base/lib"}
    seen = json.loads(run(target / "bin/python3", "-c", SEEN, **libraries))
    assert seen["said"] == "from the package"
    assert seen["prefix"] == str(target) and seen["executable"] == f"{target}/bin/python3"
    outside = [path for path in seen["path"] if path and not path.startswith(str(target))]
    assert outside == []
    assert (target / "bin/python3").resolve().is_relative_to(target)
    assert run(target / "bin/taken", **libraries) == "from the package\n"
    assert not (target / "base/lib" / take_along.VERSION / "test").exists()
