"""DeepSpeed's own package with our trial classes, where it is not installed beside us."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import kept, run_or_skip

ROOT = Path(__file__).parents[2]
# What it imports and we do not.
PACKAGES = ("deepspeed", "einops", "hjson", "msgpack", "ninja", "py-cpuinfo")
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where the packages are; installed on first use, without torch, which is here."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if line.partition("==")[0] in PACKAGES]
    assert len(pinned) == len(PACKAGES)

    def install(home: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_or_skip("deepspeed", [*pip, "--no-deps", "--target", str(home), *pinned])

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return kept(f"{pinned[0].replace('==', '-')}-python{version}", install)


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is not None,
    reason="deepspeed is installed: tests/unit/frameworks/test_deepspeed.py runs in this session",
)
def test_trials_with_the_package(folder: Path) -> None:
    tests = [
        "tests/unit/frameworks/test_deepspeed.py",
        "tests/unit/frameworks/test_deepspeed_horovod.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *tests],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
