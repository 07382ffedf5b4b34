"""`import determined` is thin, and its names are imported on demand."""

from __future__ import annotations

import subprocess
import sys

import determined as det
from tests.waiting import TIMEOUT_S

HEAVY = [
    "prefect",
    "sqlalchemy",
    "mlflow",
    "fastapi",
    "torch",
    "numpy",
    "httpx",
    "rich",
    "typer",
    "pydantic",
]


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    return set(done.stdout.split())


def test_import_determined_is_thin() -> None:
    assert loaded_after("import determined") == set()


def test_the_core_api_off_cluster_needs_no_http_client() -> None:
    code = "import determined as det\nwith det.core.init(checkpoint_storage='/tmp') as c: c.info"
    assert loaded_after(code) == set()


def test_the_public_names_exist() -> None:
    for name in det.__all__:
        assert getattr(det, name) is not None
        assert name in dir(det)
    assert det.LOG_FORMAT == "%(levelname)s: [%(process)s] %(name)s: %(message)s"
    assert issubclass(det.InvalidHP, Exception)
    assert det.errors.CheckpointNotFound.__mro__[1] is det.errors.StorageError


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(det, "no_such_name")
